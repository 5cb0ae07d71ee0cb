package train

import (
	"fmt"
	"math"

	"rondo/train/optim"
)

// Progress is a job's past, besides its tensors: what it needs to resume as if it had not been
// interrupted. It is the same on all ranks. Every number is finite, so JSON keeps it exactly.
type Progress struct {
	Step    int64 `json:"step"`    // completed steps
	Epoch   int64 `json:"epoch"`   // of the last step, from 1; 0 before the first
	Updates int64 `json:"updates"` // updates of the parameters: steps that were not skipped, and Random
	Commits int64 `json:"commits"` // completed rounds; without rounds, steps

	// Held is the number of updates that the optimizer's second moment covers, once it is held. It
	// stays held in later rings. 0: it takes in every gradient. See compute.Update.
	Held int64 `json:"second_moment_held,omitempty"`

	Loss         float64 `json:"loss"`           // of the last step that was not skipped
	EpochLossSum float64 `json:"epoch_loss_sum"` // over the epoch's steps that were not skipped
	EpochSteps   int64   `json:"epoch_steps"`    // number of steps in EpochLossSum

	Nonfinite    int64 `json:"nonfinite_steps"`  // steps skipped because they were not finite
	NonfiniteRun int64 `json:"nonfinite_in_row"` // skipped steps since the last good one
	// Random is the number of random steps that were taken in the place of skipped ones.
	Random int64 `json:"random_steps,omitempty"`

	Plateau    optim.Plateau `json:"plateau"`
	Validation Validation    `json:"validation"`

	// Cut is the last measured one. A ring of as many ranks sums by it, in the same order.
	Cut Cut `json:"cut,omitzero"`

	// Pause is the number of steps left of a Pauser's pause.
	Pause int64 `json:"pause_steps,omitempty"`

	Average optim.Average `json:"average,omitzero"`

	// Pending: the work due after the last step is not done. Only a snapshot sets it.
	Pending bool `json:"pending,omitempty"`
}

// Cut is how a ring cuts the gradient into pieces that it sums one after the other: see Cutter.
type Cut struct {
	Ranks int64 `json:"ranks"`        // of the ring that was measured; 0: none was
	Least int64 `json:"least_floats"` // of a piece, except the last; 0: all is one piece
}

// EpochLoss is the mean loss of the current epoch so far; NaN if all its steps were skipped. Its
// exp is the training perplexity.
func (p *Progress) EpochLoss() float64 {
	if p.EpochSteps == 0 {
		return math.NaN()
	}
	return p.EpochLossSum / float64(p.EpochSteps)
}

// startEvaluations forgets losses that were measured on another text. The learning rate's
// reductions stay.
func (p *Progress) startEvaluations(text int64) {
	v := p.Validation.On(text)
	if v != p.Validation {
		p.Validation, p.Plateau = v, optim.Plateau{Reductions: p.Plateau.Reductions}
	}
}

// record counts a step of an epoch, from 1, with its loss.
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

// validate checks for values that no run can leave behind.
func (p *Progress) validate(steps int64) error {
	if p.Step > steps {
		return fmt.Errorf("step %d is past the job's last, %d: raise --steps or --epochs", p.Step,
			steps)
	}
	counts := p.Step >= 0 && p.Epoch >= 0 && p.Updates >= 0 && p.Nonfinite >= 0 &&
		p.EpochSteps >= 0 && p.NonfiniteRun >= 0 && p.Plateau.Waiting >= 0 &&
		p.Plateau.Reductions >= 0 && p.Cut.Ranks >= 0 && p.Cut.Least >= 0 &&
		p.Pause >= 0
	sums := p.Updates+p.Nonfinite-p.Random == p.Step && p.NonfiniteRun <= p.Nonfinite &&
		p.Random >= 0 && p.Random <= p.Nonfinite &&
		p.EpochSteps <= p.Updates && p.Held >= 0 && p.Held <= p.Updates &&
		p.Commits >= 0 && p.Commits <= p.Step
	finite := isFinite(p.Loss) && isFinite(p.EpochLossSum) && isFinite(p.Plateau.Best)
	sums = sums && p.Validation.valid(p.Step) && p.Average.Valid(p.Updates)
	if !counts || !sums || !finite {
		return fmt.Errorf("the progress contradicts itself: %+v", *p)
	}
	return nil
}
