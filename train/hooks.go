package train

import (
	"context"
	"fmt"
	"math"
)

// Ledger hears which steps count. What was read for them, a Task's own ledger hears.
type Ledger interface {
	// Commit hears that this rank has completed a step, and with it all that it has read since the
	// last Commit: in a job with rounds, those of a round.
	Commit(step int64) error
}

// Rehearsal is where faults are brought about on purpose.
type Rehearsal interface {
	// At is called at the beginning of each phase of a step, from 1; its error ends the run as a
	// fault there would.
	At(ctx context.Context, phase string, step int64) error
	// Again is At of a step's second and later passes, in which it loads, goes forward and backward
	// once more: of pass n, from 2.
	Again(ctx context.Context, phase string, step int64, n int) error
	// Spoil says what is to go wrong with a step's numbers. It is asked once in a step.
	Spoil(ctx context.Context, step int64) Spoil
}

// The phases of a step that a Rehearsal hears of.
const (
	PhaseLoad       = "load"       // reading the batch
	PhaseForward    = "forward"    // of this rank's lanes
	PhaseBackward   = "backward"   // after the loss
	PhaseUpdate     = "update"     // of the parameters, by the summed gradient
	PhaseCheckpoint = "checkpoint" // gathering the lanes and, on rank 0, handing a snapshot over
)

// Spoil is what goes wrong with a step's numbers on this rank.
type Spoil struct {
	NaN  bool // an element of the gradient is not a number, before it is clipped
	Flip bool // a bit of a parameter's mantissa is flipped, after the update
}

// at tells of a phase, whoever looks and the Rehearsal.
func (c *core) at(ctx context.Context, phase string, step int64) error {
	c.beat()
	if c.cfg.Rehearsal == nil {
		return nil
	}
	if err := c.cfg.Rehearsal.At(ctx, phase, step); err != nil {
		return fmt.Errorf("%s: %w", phase, err)
	}
	return nil
}

// again tells of a phase of a step's later pass n, from 2.
func (c *core) again(ctx context.Context, phase string, step int64, n int) error {
	c.beat()
	if err := context.Cause(ctx); err != nil || c.cfg.Rehearsal == nil {
		return err
	}
	if err := c.cfg.Rehearsal.Again(ctx, phase, step, n); err != nil {
		return fmt.Errorf("%s of pass %d: %w", phase, n, err)
	}
	return nil
}

// beat gives a sign of life.
func (c *core) beat() {
	if c.cfg.Beat != nil {
		c.cfg.Beat()
	}
}

// askSpoil asks the Rehearsal what is to go wrong in a step.
func (c *core) askSpoil(ctx context.Context, step int64) {
	if c.cfg.Rehearsal == nil {
		return
	}
	c.spoil = c.cfg.Rehearsal.Spoil(ctx, step)
}

// spoilGradient does what the Rehearsal wants done to the gradient.
func (c *core) spoilGradient() {
	if c.spoil.NaN {
		c.dev.Upload(c.grads[:1], []float32{float32(math.NaN())})
	}
}

// flip does what the Rehearsal wants done to the parameters.
func (c *core) flip() {
	if !c.spoil.Flip {
		return
	}
	const bit = 1 << 12 // in the middle of the mantissa: the parameter stays a plausible number
	one, where := make([]float32, 1), c.task.Params()[:1]
	c.dev.Download(one, where)
	one[0] = math.Float32frombits(math.Float32bits(one[0]) ^ bit)
	c.dev.Upload(where, one)
}
