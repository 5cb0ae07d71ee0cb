package train

import (
	"context"
	"errors"
	"time"

	"rondo/train/agree"
)

// tensors are all that is the same on every rank: the parameters, and what the optimizer keeps. It
// is called between steps only.
func (c *core) tensors() [][]float32 {
	return append([][]float32{c.task.Params()}, c.slots.Same()...)
}

func (c *core) digest() uint64 { return c.memory.Digest(c.tensors()) }

// rollCaller has the ranks compare what they have between steps.
type rollCaller struct {
	*batch
	roll agree.Roll
}

// rollCall has the ranks compare what they have and how fast they are. All come to the same
// verdict, at the same step.
func (c *rollCaller) rollCall(ctx context.Context) error {
	if c.ring.Peers == nil || len(c.ring.LaneEnds) == 1 {
		return nil
	}
	step := c.progress.Step
	late, err := c.roll.Call(ctx, c.ranks, step, c.digest(), c.blocked())
	if err != nil {
		return c.distrust(err)
	}
	if err := c.slots.Alike(ctx); err != nil || late == nil {
		return err
	}
	notices, err := c.roll.Judge(c.ranks, step, late, c.cfg.EvictStragglers)
	for _, text := range notices {
		c.cfg.Observer.Notice(text)
	}
	return err
}

// blocked is for how long this rank's sends were blocked in the ring so far.
func (c *rollCaller) blocked() time.Duration {
	if c.ring.Peers == nil {
		return 0
	}
	sending, _ := c.ring.Peers.Timing()
	return sending
}

// alike has the ranks compare what they have after the last step.
func (c *rollCaller) alike(ctx context.Context) error {
	if c.cfg.CheckEvery == 0 {
		return nil
	}
	return c.distrust(agree.Alike(ctx, c.ranks, c.progress.Step, c.digest))
}

// distrust drops the state if err says that it is corrupt.
func (c *rollCaller) distrust(err error) error {
	if _, corrupt := errors.AsType[*agree.CorruptError](err); corrupt {
		c.Forget()
	}
	return err
}
