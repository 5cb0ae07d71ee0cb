package optim

import (
	"errors"
	"fmt"
	"math"

	"rondo/compute"
)

// Outer is the rule that combines the ranks' parameters at a round's end.
type Outer string

// The outer rules. x are the parameters at the round's start, y_r those of rank r at its end, and
// w_r is rank r's share of the round's targets. d = sum_r w_r (x - y_r) is the outer gradient.
// a is Local.Rate, mu is Local.Momentum.
const (
	// OuterAverage is x - d, the mean of the y_r: local SGD (Stich 2019, arXiv:1805.09767), or
	// federated averaging (McMahan et al. 2017, arXiv:1602.05629).
	OuterAverage Outer = "average"
	// OuterSGD is x - a d (Reddi et al. 2021, arXiv:2003.00295).
	OuterSGD Outer = "sgd"
	// OuterNesterov is v = mu v + d; x - a (d + mu v): DiLoCo (Douillard et al. 2023,
	// arXiv:2311.08105) with a = 0.7 and mu = 0.9.
	OuterNesterov Outer = "nesterov"
)

// Local configures rounds of local SGD: the ranks take several steps by themselves between two
// sums. In a round each rank clips the mean gradient over its own lanes and updates its own
// parameters, at the Schedule's rates. At the round's end the ranks sum the changes of their
// parameters, and the outer rule computes the next parameters. The inner optimizer's slots are then
// averaged over the ranks, weighted by their shares. So between two rounds all ranks have the same
// state (SlowMo's "average" strategy; Wang et al. 2020, arXiv:1910.00643; DiLoCo instead leaves
// each rank its own).
//
// A round commits as a whole. An interrupted round is repeated from its beginning with the same
// numbers. If a loss or gradient of some rank is not finite, all steps of the round count as
// skipped. Work that falls due within a round is done at its end. Rounds end at multiples of Every,
// and with the job.
type Local struct {
	Every    int64 // steps of a round, K; 0: no rounds, the ranks sum each step's gradient
	Outer    Outer
	Rate     float64 // of OuterSGD and OuterNesterov
	Momentum float64 // of OuterNesterov
}

// On reports whether there are rounds.
func (l Local) On() bool { return l.Every > 0 }

// End returns the last step of the round that begins after step, in a job of that many steps.
func (l Local) End(step, steps int64) int64 { return min(steps, (step/l.Every+1)*l.Every) }

// Began returns the step after which the round that ended with step began. Without rounds it is the
// step before.
func (l Local) Began(step int64) int64 { return (step - 1) / max(1, l.Every) * max(1, l.Every) }

// Due reports whether a multiple of interval lies within the round or step that just ended. An
// interval of 0 is never due.
func (l Local) Due(step, interval int64) bool {
	return interval > 0 && step/interval > l.Began(step)/interval
}

// Validate reports the first field out of range, by its flag.
func (l Local) Validate(clip Clip) error {
	if l == (Local{}) {
		return nil
	}
	moves := l.Outer == OuterSGD || l.Outer == OuterNesterov
	switch {
	case l.Every < 1:
		return fmt.Errorf("--sync-every %d: must be at least 1", l.Every)
	case l.Outer != OuterAverage && !moves:
		return fmt.Errorf("--outer-optimizer %q is not one of %s, %s, %s", l.Outer, OuterAverage,
			OuterSGD, OuterNesterov)
	case moves && !(l.Rate > 0 && l.Rate <= math.MaxFloat32):
		return fmt.Errorf("--outer-lr %v: must be positive and finite", l.Rate)
	case l.Outer == OuterNesterov && !(l.Momentum >= 0 && l.Momentum < 1):
		return fmt.Errorf("--outer-momentum %v: must be at least 0 and less than 1", l.Momentum)
	case clip.Limit > 0 && clip.Scope != ScopeWorker:
		return errors.New("between two syncs (--sync-every) each worker has only its own " +
			"gradient to clip: give --clip-scope worker, or --clip 0")
	}
	return nil
}

// Kept returns how many values per parameter a device keeps for rounds: slots of the outer rule,
// which are saved, and copies of the round's start.
func (l Local) Kept(inner compute.Optimizer) (slots, copies int) {
	if !l.On() {
		return 0, 0
	}
	return len(l.SlotNames()), 1 + inner.Slots()
}

// SlotNames names the outer rule's slots.
func (l Local) SlotNames() []string {
	if l.On() && l.Outer == OuterNesterov {
		return []string{"outer_momentum_buffer"}
	}
	return nil
}

// Update returns the arguments of the outer rule's update.
func (l Local) Update() compute.Update {
	switch l.Outer {
	case OuterSGD:
		return compute.Update{Optimizer: compute.SGD, LR: float32(l.Rate)}
	case OuterNesterov:
		return compute.Update{Optimizer: compute.Nesterov, LR: float32(l.Rate),
			Momentum: float32(l.Momentum)}
	case OuterAverage:
	}
	return compute.Update{Optimizer: compute.SGD, LR: 1}
}
