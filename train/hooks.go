package train

import (
	"context"
	"fmt"
	"math"
)

// Ledger records committed steps. What was read for them goes to the Task's own ledger.
type Ledger interface {
	// Commit says that this rank has completed a step, and with it everything read since the last
	// Commit. In a job with rounds that is the whole round.
	Commit(Commit) error
}

// Commit is what a Ledger records of a step, or of a round. It is the same on all ranks.
type Commit struct {
	Step      int64  // completed steps
	Digest    uint64 // Trainer.Digest after it
	Skipped   bool   // it was not finite, so its gradient did not change the parameters
	Nonfinite int    // ranks whose loss or gradient was not finite
	Culprit   int    // the rank, if Nonfinite is 1
	Random    bool   // a random step was taken in its place
}

// Rehearsal injects faults.
type Rehearsal interface {
	// At is called at the start of each phase of a step, from 1. Its error ends the run like a
	// fault at that point.
	At(ctx context.Context, phase string, step int64) error
	// Again is called instead of At in a step's later passes, for load, forward and backward. n is
	// the pass, from 2.
	Again(ctx context.Context, phase string, step int64, n int) error
	// Spoil returns the faults to inject into a step's numbers. It is called once per step.
	Spoil(ctx context.Context, step int64) Spoil
}

// The phases of a step.
const (
	PhaseLoad       = "load"       // reading the batch
	PhaseForward    = "forward"    // of this rank's lanes
	PhaseBackward   = "backward"   // after the loss
	PhaseUpdate     = "update"     // of the parameters, by the summed gradient
	PhaseCheckpoint = "checkpoint" // gathering the lanes and, on rank 0, handing a snapshot over
)

// Spoil lists faults in a step's numbers on this rank.
type Spoil struct {
	NaN  bool // one element of the gradient becomes NaN, before clipping
	Flip bool // one mantissa bit of a parameter is flipped, after the update
}

// beginPhase announces a phase of a step to Beat and the Rehearsal.
func (c *core) beginPhase(ctx context.Context, phase string, step int64) error {
	c.beat()
	if c.cfg.Rehearsal == nil {
		return nil
	}
	if err := c.cfg.Rehearsal.At(ctx, phase, step); err != nil {
		return fmt.Errorf("%s: %w", phase, err)
	}
	return nil
}

// repeatPhase announces a phase of the step's later pass n, from 2.
func (c *core) repeatPhase(ctx context.Context, phase string, step int64, n int) error {
	c.beat()
	if err := context.Cause(ctx); err != nil || c.cfg.Rehearsal == nil {
		return err
	}
	if err := c.cfg.Rehearsal.Again(ctx, phase, step, n); err != nil {
		return fmt.Errorf("%s of pass %d: %w", phase, n, err)
	}
	return nil
}

func (c *core) beat() {
	if c.cfg.Beat != nil {
		c.cfg.Beat()
	}
}

// askSpoil asks the Rehearsal for the step's faults.
func (c *core) askSpoil(ctx context.Context, step int64) {
	if c.cfg.Rehearsal == nil {
		return
	}
	c.spoil = c.cfg.Rehearsal.Spoil(ctx, step)
}

// spoilGradient injects the gradient's fault.
func (c *core) spoilGradient() {
	if c.spoil.NaN {
		c.dev.Upload(c.grads[:1], []float32{float32(math.NaN())})
	}
}

// flipBit injects the parameters' fault.
func (c *core) flipBit() {
	if !c.spoil.Flip {
		return
	}
	const bit = 1 << 12 // in the middle of the mantissa, so that the parameter stays plausible
	one, where := make([]float32, 1), c.task.Params()[:1]
	c.dev.Download(one, where)
	one[0] = math.Float32frombits(math.Float32bits(one[0]) ^ bit)
	c.dev.Upload(where, one)
}
