package optim

import (
	"testing"

	"rondo/compute"
)

func TestOptimizerNames(t *testing.T) {
	if len(optimizers) != int(compute.Adagrad)+1 {
		t.Errorf("%d optimizers have names", len(optimizers))
	}
	for _, o := range optimizers {
		if rule, err := Parse(o.name); err != nil || rule != o.rule {
			t.Errorf("%s: %v, %v", o.name, rule, err)
		}
		if got, want := len((Optimizer{Rule: o.rule}).SlotNames()), o.rule.Slots(); got != want {
			t.Errorf("%s has names for %d slots of %d", o.name, got, want)
		}
	}
	const want = `--optimizer "lion" is not one of sgd, momentum, nesterov, adam, adamw, ` +
		`rmsprop, adagrad`
	if _, err := Parse("lion"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
