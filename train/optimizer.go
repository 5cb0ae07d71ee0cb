package train

import (
	"fmt"
	"math"
	"strings"

	"rondo/compute"
)

// Optimizer is an update rule and its constants. compute.Optimizer has the formulas, and says which
// constants each rule uses.
type Optimizer struct {
	Rule         compute.Optimizer
	Momentum     float64
	Beta1, Beta2 float64
	Rho          float64
	Epsilon      float64
	WeightDecay  float64
}

// optimizers lists each rule's flag name and the names that torch.optim gives its slots.
//
//nolint:gochecknoglobals // a table that nothing changes
var optimizers = []struct {
	rule  compute.Optimizer
	name  string
	slots []string
}{
	{compute.SGD, "sgd", nil},
	{compute.Momentum, "momentum", []string{"momentum_buffer"}},
	{compute.Nesterov, "nesterov", []string{"momentum_buffer"}},
	{compute.Adam, "adam", []string{"exp_avg", "exp_avg_sq"}},
	{compute.AdamW, "adamw", []string{"exp_avg", "exp_avg_sq"}},
	{compute.RMSProp, "rmsprop", []string{"square_avg"}},
	{compute.Adagrad, "adagrad", []string{"sum"}},
}

// ParseOptimizer returns the rule with this name: sgd, momentum, nesterov, adam, adamw, rmsprop or
// adagrad.
func ParseOptimizer(name string) (compute.Optimizer, error) {
	names := make([]string, len(optimizers))
	for i, o := range optimizers {
		if o.name == name {
			return o.rule, nil
		}
		names[i] = o.name
	}
	return 0, fmt.Errorf("--optimizer %q is not one of %s", name, strings.Join(names, ", "))
}

// slotNames returns the names of the rule's slots.
func slotNames(rule compute.Optimizer) []string {
	for _, o := range optimizers {
		if o.rule == rule {
			return o.slots
		}
	}
	panic(fmt.Sprintf("train: optimizer %d is not one of %d", int(rule), len(optimizers)))
}

func (o Optimizer) validate() error {
	if o.Rule < compute.SGD || o.Rule > compute.Adagrad {
		return fmt.Errorf("--optimizer: %d is not an optimizer", int(o.Rule))
	}
	fraction := func(flag string, v float64, used bool) error {
		if used && !(v >= 0 && v < 1) {
			return fmt.Errorf("%s %v: must be at least 0 and less than 1", flag, v)
		}
		return nil
	}
	adam := o.Rule == compute.Adam || o.Rule == compute.AdamW
	for _, err := range []error{
		fraction("--momentum", o.Momentum,
			o.Rule == compute.Momentum || o.Rule == compute.Nesterov),
		fraction("--beta1", o.Beta1, adam),
		fraction("--beta2", o.Beta2, adam),
		fraction("--rho", o.Rho, o.Rule == compute.RMSProp),
	} {
		if err != nil {
			return err
		}
	}
	// A parameter that never had a gradient divides by epsilon alone.
	divides := adam || o.Rule == compute.RMSProp || o.Rule == compute.Adagrad
	if eps := float32(o.Epsilon); divides && !(eps > 0 && o.Epsilon <= math.MaxFloat32) {
		return fmt.Errorf("--epsilon %v: must be positive, as a float32 too", o.Epsilon)
	}
	if !(o.WeightDecay >= 0 && o.WeightDecay <= math.MaxFloat32) {
		return fmt.Errorf("--weight-decay %v: must be at least 0 and finite", o.WeightDecay)
	}
	return nil
}

// update returns the arguments of the n-th update, from 1.
func (o Optimizer) update(n int64, rate float64) compute.Update {
	return compute.Update{
		Optimizer: o.Rule, Step: n, LR: float32(rate), Momentum: float32(o.Momentum),
		Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Rho: float32(o.Rho),
		Epsilon: float32(o.Epsilon), WeightDecay: float32(o.WeightDecay),
	}
}
