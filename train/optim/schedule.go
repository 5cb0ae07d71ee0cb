package optim

import (
	"fmt"
	"math"
)

// ScheduleKind is how the learning rate changes.
type ScheduleKind string

// The schedules. r is Schedule.Rate, m is Min, W is Warmup, S is the number of steps of the job,
// and k = step - W counts the steps after the warm-up, from 0. No schedule goes below m.
const (
	// Constant is r.
	Constant ScheduleKind = "constant"
	// StepDecay is r * Decay^max(0, floor(k/Every)+1-Hold).
	StepDecay ScheduleKind = "step"
	// Cosine is m + (r-m) (1 + cos(pi k/(S-W))) / 2 (Loshchilov and Hutter, arXiv:1608.03983,
	// without restarts).
	Cosine ScheduleKind = "cosine"
	// Linear is r + (m-r) k/(S-W).
	Linear ScheduleKind = "linear"
	// OnPlateau is r * Decay^n, where n counts how often the loss has stopped falling: see Plateau.
	OnPlateau ScheduleKind = "plateau"
)

// Schedule is the learning-rate schedule. In the first W steps the rate is r (step+1)/W, with step
// from 0, so the last of them has r.
type Schedule struct {
	Kind     ScheduleKind
	Rate     float64 // the base rate
	Min      float64 // the least, at most Rate
	Warmup   int64   // steps
	Decay    float64 // the factor of StepDecay and OnPlateau, in (0, 1]
	Every    int64   // steps between the decays of StepDecay; 0: one epoch
	Hold     int64   // the first decay of StepDecay comes after Hold times Every steps; 0: 1
	Patience int64   // measurements that OnPlateau waits for a better loss
}

// Validate reports the first field out of range, by its flag.
func (s Schedule) Validate() error {
	switch s.Kind {
	case Constant, StepDecay, Cosine, Linear, OnPlateau:
	default:
		return fmt.Errorf("--lr-schedule %q is not one of %s, %s, %s, %s, %s", s.Kind, Constant,
			StepDecay, Cosine, Linear, OnPlateau)
	}
	decays := s.Kind == StepDecay || s.Kind == OnPlateau
	switch {
	case !(s.Rate > 0 && s.Rate <= math.MaxFloat32):
		return fmt.Errorf("--lr %v: must be positive and finite", s.Rate)
	case !(s.Min >= 0 && s.Min <= s.Rate):
		return fmt.Errorf("--lr-min %v: must be 0 to --lr, which is %v", s.Min, s.Rate)
	case s.Warmup < 0:
		return fmt.Errorf("--warmup-steps %d: must be at least 0", s.Warmup)
	case decays && !(s.Decay > 0 && s.Decay <= 1):
		return fmt.Errorf("--lr-decay %v: must be above 0 and at most 1", s.Decay)
	case s.Every < 0:
		return fmt.Errorf("--lr-step-every %d: must be at least 0", s.Every)
	case s.Hold < 0:
		return fmt.Errorf("--lr-hold %d: must be at least 0", s.Hold)
	case s.Patience < 0:
		return fmt.Errorf("--lr-patience %d: must be at least 0", s.Patience)
	}
	return nil
}

// At returns the learning rate of a step, from 0, in a job of that many steps. reductions is
// OnPlateau's n. It depends on its arguments only.
func (s Schedule) At(step, steps, reductions int64) float64 {
	if step < s.Warmup {
		return s.Rate * float64(step+1) / float64(s.Warmup)
	}
	k := step - s.Warmup
	progress := float64(k) / float64(max(1, steps-s.Warmup))
	rate := s.Rate
	switch s.Kind {
	case StepDecay:
		rate *= math.Pow(s.Decay, float64(max(0, k/s.Every+1-max(1, s.Hold))))
	case Cosine:
		rate = s.Min + (s.Rate-s.Min)*(1+math.Cos(math.Pi*progress))/2
	case Linear:
		rate += (s.Min - s.Rate) * progress
	case OnPlateau:
		rate *= math.Pow(s.Decay, float64(reductions))
	}
	return max(rate, s.Min)
}

// plateauThreshold is the relative improvement that counts as better: the default of
// torch.optim.lr_scheduler.ReduceLROnPlateau.
const plateauThreshold = 1e-4

// Plateau is the memory of the schedule OnPlateau. It measures the loss of each evaluation due by
// EvalEvery, or each epoch's mean loss if there are no evaluation data. After more than Patience
// measurements in a row that are not better than the best, the rate is reduced.
type Plateau struct {
	Seen       bool    `json:"seen"`       // there is a best loss
	Best       float64 `json:"best"`       // the least loss so far
	Waiting    int64   `json:"waiting"`    // measurements since the best
	Reductions int64   `json:"reductions"` // reductions of the rate so far
}

// Measure adds a loss. A loss that is not finite is never better.
func (p *Plateau) Measure(loss float64, patience int64) {
	finite := math.Abs(loss) <= math.MaxFloat64
	switch {
	case finite && (!p.Seen || loss < p.Best*(1-plateauThreshold)):
		p.Seen, p.Best, p.Waiting = true, loss, 0
		return
	case p.Waiting < patience:
		p.Waiting++
	default:
		p.Waiting = 0
		p.Reductions++
	}
}
