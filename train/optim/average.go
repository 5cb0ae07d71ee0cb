package optim

import (
	"fmt"
	"math"
)

// AverageKind is a kind of mean of the parameters after each update.
type AverageKind string

// The kinds of averages.
const (
	NoAverage AverageKind = ""
	// Polyak is the mean of all parameters from a step on (Polyak and Juditsky 1992).
	Polyak AverageKind = "polyak"
	// EMA is avg = decay avg + (1-decay) p. It begins as the parameters after the first update.
	EMA AverageKind = "ema"
	// NonMonotone is the mean of all parameters after its trigger, an evaluation whose loss is
	// worse than the best of all but the last Patience ones before it: NT-ASGD (Merity et al. 2018,
	// arXiv:1708.02182, Algorithm 1). As in torch.optim.ASGD, the parameters at the trigger are not
	// in the mean.
	NonMonotone AverageKind = "nt"
)

// MaxPatience bounds Averaging.Patience.
const MaxPatience = 16

// emaUnit is the least share of new parameters in an EMA. Multiples of it, and 1 less these, are
// exact in float32: shares whose sum is not 1 would shrink or grow the average in each step.
const emaUnit = 1.0 / (1 << 24)

// MaxDecay bounds Averaging.Decay.
const MaxDecay = 1 - emaUnit

// Averaging configures the average of the parameters. The job evaluates, samples and saves it in
// the place of the parameters, which training goes on from.
type Averaging struct {
	Kind     AverageKind
	From     int64   // of Polyak: the step after which the first parameters count
	Decay    float64 // of EMA; 1 less it is rounded to a multiple of 2^-24
	Patience int     // of NonMonotone: n, evaluations
}

// On reports whether there is an average.
func (a Averaging) On() bool { return a.Kind != NoAverage }

// Validate reports the first field out of range, by its flag.
func (a Averaging) Validate() error {
	switch a.Kind {
	case NoAverage:
		return nil
	case Polyak:
		if a.From < 0 {
			return fmt.Errorf("--average polyak:%d: must be at least 0", a.From)
		}
	case EMA:
		if !(a.Decay >= 0 && a.Decay <= MaxDecay) {
			return fmt.Errorf("--average ema:%v: must be 0 to 1-2^-24", a.Decay)
		}
	case NonMonotone:
		if a.Patience < 1 || a.Patience > MaxPatience {
			return fmt.Errorf("--average nt:%d: must be 1 to %d", a.Patience, MaxPatience)
		}
	default:
		return fmt.Errorf("--average %q is no kind of average", a.Kind)
	}
	return nil
}

// SlotNames names the copy of the parameters that the average needs.
func (a Averaging) SlotNames() []string {
	if a.On() {
		return []string{TrainingWeights}
	}
	return nil
}

// TrainingWeights is the slot in a snapshot of the parameters that training goes on from, beside
// their average.
const TrainingWeights = "training_weights"

// Average is the memory of an average, beside its values. It is comparable.
type Average struct {
	Count int64 `json:"count"` // parameters in the average; 0: it has not begun

	// Those of NonMonotone. Triggered: the next update's parameters are the first in it.
	Triggered   bool                 `json:"triggered,omitempty"`
	Evaluations int64                `json:"evaluations,omitempty"` // until the trigger
	Recent      [MaxPatience]float64 `json:"recent,omitzero"`       // losses: i's is at i mod n
	Older       float64              `json:"older,omitempty"`       // the lowest before these
}

// Next returns the weight of a step's updated parameters in the average. The old average has the
// rest. 0: the average has not begun.
func (a Averaging) Next(m *Average, step int64) float64 {
	switch {
	case a.Kind == NonMonotone && !m.Triggered, a.Kind == Polyak && step < a.From:
		return 0
	case a.Kind == EMA && m.Count > 0:
		return math.Round((1-a.Decay)/emaUnit) * emaUnit
	}
	return 1 / float64(m.Count+1)
}

// Measure adds the loss of an evaluation. One that is not finite does not count.
func (a Averaging) Measure(m *Average, loss float64) {
	if a.Kind != NonMonotone || m.Triggered || math.IsNaN(loss) || math.IsInf(loss, 0) {
		return
	}
	n := int64(a.Patience)
	if m.Evaluations > n && loss > m.Older {
		*m = Average{Triggered: true}
		return
	}
	at := m.Evaluations % n
	if m.Evaluations == n || m.Evaluations > n && m.Recent[at] < m.Older {
		m.Older = m.Recent[at]
	}
	m.Recent[at] = loss
	m.Evaluations++
}

// Valid reports whether the memory is of a job of so many updates.
func (m *Average) Valid(updates int64) bool {
	finite := !math.IsNaN(m.Older) && !math.IsInf(m.Older, 0)
	for _, loss := range m.Recent {
		finite = finite && !math.IsNaN(loss) && !math.IsInf(loss, 0)
	}
	return finite && m.Count >= 0 && m.Count <= updates && m.Evaluations >= 0
}
