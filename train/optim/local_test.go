package optim

import (
	"strings"
	"testing"
)

func TestLocalRefuses(t *testing.T) {
	clip := Clip{Limit: 1, By: ByNorm, Scope: ScopeWorker}
	for want, change := range map[string]func(*Local, *Clip){
		"--sync-every -1":                func(l *Local, _ *Clip) { l.Every = -1 },
		`--outer-optimizer "adam"`:       func(l *Local, _ *Clip) { l.Outer = "adam" },
		"--outer-lr 0: must be positive": func(l *Local, _ *Clip) { l.Rate = 0 },
		"--outer-momentum 1: must be":    func(l *Local, _ *Clip) { l.Momentum = 1 },
		"give --clip-scope worker":       func(_ *Local, c *Clip) { c.Scope = ScopeGlobal },
	} {
		l, c := Local{4, OuterNesterov, 0.7, 0.9}, clip
		change(&l, &c)
		if err := l.Validate(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	unclipped := Clip{By: ByNorm, Scope: ScopeGlobal}
	if err := (Local{4, OuterNesterov, 0.7, 0.9}).Validate(unclipped); err != nil {
		t.Error(err)
	}
}
