package train

import (
	"context"
	"errors"
	"time"

	"rondo/train/agree"
)

// tensors are all that is the same on every rank: the parameters, and what the optimizer keeps. It
// is called between steps only.
func (t *Trainer) tensors() [][]float32 {
	return append([][]float32{t.task.Params()}, t.slots.Same()...)
}

func (t *Trainer) digest() uint64 { return t.memory.Digest(t.tensors()) }

// rollCall has the ranks compare what they have and how fast they are. All come to the same
// verdict, at the same step.
func (t *Trainer) rollCall(ctx context.Context) error {
	if t.ring.Peers == nil || len(t.ring.LaneEnds) == 1 {
		return nil
	}
	step := t.progress.Step
	late, err := t.roll.Call(ctx, t.ranks, step, t.digest(), t.blocked())
	if err != nil {
		return t.distrust(err)
	}
	if err := t.slots.Alike(ctx); err != nil || late == nil {
		return err
	}
	notices, err := t.roll.Judge(t.ranks, step, late, t.cfg.EvictStragglers)
	for _, text := range notices {
		t.cfg.Observer.Notice(text)
	}
	return err
}

// blocked is for how long this rank's sends were blocked in the ring so far.
func (t *Trainer) blocked() time.Duration {
	if t.ring.Peers == nil {
		return 0
	}
	sending, _ := t.ring.Peers.Timing()
	return sending
}

// alike has the ranks compare what they have after the last step.
func (t *Trainer) alike(ctx context.Context) error {
	if t.cfg.CheckEvery == 0 {
		return nil
	}
	return t.distrust(agree.Alike(ctx, t.ranks, t.progress.Step, t.digest))
}

// distrust drops the state if err says that it is corrupt.
func (t *Trainer) distrust(err error) error {
	if _, corrupt := errors.AsType[*agree.CorruptError](err); corrupt {
		t.Forget()
	}
	return err
}
