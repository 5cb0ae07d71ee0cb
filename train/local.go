package train

import (
	"errors"
	"fmt"
	"math"

	"rondo/compute"
)

// Outer is the rule that makes the next round's parameters of what the ranks have come to.
type Outer string

// The outer rules. x are the parameters that a round began with, y_r those that rank r has come to,
// w_r its share of the lanes; d = sum_r w_r (x - y_r), the outer gradient; a is Local.Rate, mu is
// Local.Momentum.
const (
	// OuterAverage is x - d, the mean of the y_r: local SGD (Stich 2019, arXiv:1805.09767), or
	// federated averaging (McMahan et al. 2017, arXiv:1602.05629).
	OuterAverage Outer = "average"
	// OuterSGD is x - a d (Reddi et al. 2021, arXiv:2003.00295).
	OuterSGD Outer = "sgd"
	// OuterNesterov is v = mu v + d; x - a (d + mu v): DiLoCo's (Douillard et al. 2023,
	// arXiv:2311.08105), which has a = 0.7 and mu = 0.9.
	OuterNesterov Outer = "nesterov"
)

// Local says that the ranks take several steps by themselves between two sums: a round. Each
// clips the mean gradient over its own lanes, and updates its own parameters by it, at the rates of
// the Schedule. At the round's end the ranks sum by how much their parameters have changed, and
// the outer rule makes the next ones of it. What the inner optimizer keeps (momenta and the like)
// is averaged over the ranks by their shares there, so that between two rounds all ranks have the
// same, as they do between two steps without rounds (SlowMo's "average" strategy; Wang et al. 2020,
// arXiv:1910.00643; DiLoCo leaves each rank its own).
//
// A round is what commits, wholly or not at all: one that breaks off is done again from its
// beginning with the same numbers, and one in which a loss or a gradient of some rank is not finite
// counts as skipped for all of its steps. What is due every so many steps is done at the end of the
// round in which it falls due. Rounds end at multiples of Every, and with the job.
type Local struct {
	Every    int64 // steps of a round, K; 0: none, the ranks sum each step's gradient
	Outer    Outer
	Rate     float64 // of OuterSGD and OuterNesterov
	Momentum float64 // of OuterNesterov
}

// on says whether there are rounds.
func (l Local) on() bool { return l.Every > 0 }

// end is where the round ends that begins after a step, in a job of so many.
func (l Local) end(step, steps int64) int64 { return min(steps, (step/l.Every+1)*l.Every) }

// began is after which step the round began that ended with one; without rounds, the step did.
func (l Local) began(step int64) int64 { return (step - 1) / max(1, l.Every) * max(1, l.Every) }

// due says whether something that is due every interval steps is at the end of the round, or step,
// that has just ended; 0: it never is.
func (l Local) due(step, interval int64) bool {
	return interval > 0 && step/interval > l.began(step)/interval
}

func (l Local) validate(clip Clip) error {
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

// Kept is how many values a device keeps of each parameter for rounds with an inner rule: what the
// outer rule keeps, which is saved, and copies of what a round began with.
func (l Local) Kept(inner compute.Optimizer) (slots, copies int) {
	if !l.on() {
		return 0, 0
	}
	return len(l.slots()), 1 + inner.Slots()
}

// slots are the names of what the outer rule keeps for each parameter.
func (l Local) slots() []string {
	if l.on() && l.Outer == OuterNesterov {
		return []string{"outer_momentum_buffer"}
	}
	return nil
}

// update returns the arguments of the outer update.
func (l Local) update() compute.Update {
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
