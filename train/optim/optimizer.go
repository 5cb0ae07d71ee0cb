package optim

import (
	"fmt"
	"math"
	"slices"
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

// Names returns the rules' names, in the order of their numbers.
func Names() []string {
	names := make([]string, len(optimizers))
	for i, o := range optimizers {
		names[i] = o.name
	}
	return names
}

// Parse returns the rule with this name.
func Parse(name string) (compute.Optimizer, error) {
	at := slices.Index(Names(), name)
	if at < 0 {
		return 0, fmt.Errorf("--optimizer %q is not one of %s", name, strings.Join(Names(), ", "))
	}
	return optimizers[at].rule, nil
}

// SlotNames returns the names of the rule's slots.
func (o Optimizer) SlotNames() []string {
	for _, known := range optimizers {
		if known.rule == o.Rule {
			return known.slots
		}
	}
	panic(fmt.Sprintf("optim: optimizer %d is not one of %d", int(o.Rule), len(optimizers)))
}

// Validate reports the first constant out of range, by its flag.
func (o Optimizer) Validate() error {
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

// Update returns the arguments of the n-th update, from 1.
func (o Optimizer) Update(n int64, rate float64) compute.Update {
	return compute.Update{
		Optimizer: o.Rule, Step: n, LR: float32(rate), Momentum: float32(o.Momentum),
		Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Rho: float32(o.Rho),
		Epsilon: float32(o.Epsilon), WeightDecay: float32(o.WeightDecay),
	}
}
