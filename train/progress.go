package train

import (
	"fmt"
	"math"
)

// Progress is what a job must know of its past to go on as if it had not been interrupted, beside
// its tensors. All ranks have the same. Every number in it is finite, so that JSON holds it to
// the last bit.
type Progress struct {
	Step    int64 `json:"step"`    // completed steps
	Epoch   int64 `json:"epoch"`   // that the last step belongs to, from 1; 0 before the first
	Updates int64 `json:"updates"` // of the parameters: the steps that were not skipped

	// Held is how many updates the optimizer's second moment is of, once it is held: it stays so,
	// whoever goes on with the job. 0: it takes in every gradient. See compute.Update.
	Held int64 `json:"second_moment_held,omitempty"`

	Loss         float64 `json:"loss"`           // of the last step that counts
	EpochLossSum float64 `json:"epoch_loss_sum"` // of the steps of the epoch that count
	EpochSteps   int64   `json:"epoch_steps"`    // how many these are

	Nonfinite    int64 `json:"nonfinite_steps"`  // skipped because they were not finite
	NonfiniteRun int64 `json:"nonfinite_in_row"` // how many of these were the last ones

	Plateau    Plateau    `json:"plateau"`
	Validation Validation `json:"validation"`

	// Pending says that what is due after the last step was not done. It is so in a snapshot only.
	Pending bool `json:"pending,omitempty"`
}

// EpochLoss is the mean loss of the epoch that the last step belongs to, so far; NaN when none of
// its steps counts. Its exp is the training perplexity.
func (p *Progress) EpochLoss() float64 {
	if p.EpochSteps == 0 {
		return math.NaN()
	}
	return p.EpochLossSum / float64(p.EpochSteps)
}

// startEvaluations prepares for evaluations of a text: losses of another text are forgotten. The
// learning rate stays as it is.
func (p *Progress) startEvaluations(text int64) {
	v := p.Validation.On(text)
	if v != p.Validation {
		p.Validation, p.Plateau = v, Plateau{Reductions: p.Plateau.Reductions}
	}
}

// record counts a step of an epoch, from 1, and its loss.
func (p *Progress) record(epoch int64, loss float64, skipped bool) {
	if p.Epoch != epoch {
		p.Epoch, p.EpochLossSum, p.EpochSteps = epoch, 0, 0
	}
	p.Step++
	if skipped {
		p.Nonfinite++
		p.NonfiniteRun++
		return
	}
	p.NonfiniteRun = 0
	p.Updates++
	p.Loss = loss
	p.EpochLossSum += loss
	p.EpochSteps++
}

// validate finds what no run can have left behind.
func (p *Progress) validate(steps int64) error {
	if p.Step > steps {
		return fmt.Errorf("the checkpoint is of step %d, past the job's last, %d: raise --steps "+
			"or --epochs", p.Step, steps)
	}
	counts := p.Step >= 0 && p.Epoch >= 0 && p.Updates >= 0 && p.Nonfinite >= 0 &&
		p.EpochSteps >= 0 && p.NonfiniteRun >= 0 && p.Plateau.Waiting >= 0 &&
		p.Plateau.Reductions >= 0
	sums := p.Updates+p.Nonfinite == p.Step && p.NonfiniteRun <= p.Nonfinite &&
		p.EpochSteps <= p.Updates && p.Held >= 0 && p.Held <= p.Updates
	finite := isFinite(p.Loss) && isFinite(p.EpochLossSum) && isFinite(p.Plateau.Best)
	sums = sums && p.Validation.valid(p.Step)
	if !counts || !sums || !finite {
		return fmt.Errorf("the checkpoint's progress contradicts itself: %+v", *p)
	}
	return nil
}
