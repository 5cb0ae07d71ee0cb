package worker

import (
	"context"
	"time"

	"rondo/allreduce"
	"rondo/train"
)

// reducer is the ring as train sees it, and the time spent in the tiers if there are any.
type reducer struct {
	*allreduce.Ring
	tiers *tiers
}

// Start implements train.Reducer.
func (r reducer) Start(ctx context.Context, buf []float32) (train.Pending, error) {
	return r.Ring.Start(ctx, allreduce.Sum{Buf: buf})
}

func (r reducer) AllReduceCarry(ctx context.Context, buf, out, in []float32) error {
	return r.Ring.AllReduceCarry(ctx, buf, allreduce.Carry{Out: out, In: in})
}

// AllReduceTree implements train.TreeReducer.
func (r reducer) AllReduceTree(
	ctx context.Context, buf []float32, ends []int, parts [][]float32,
) error {
	return r.Ring.AllReduceTree(ctx, allreduce.TreeSum{Buf: buf, Ends: ends, Parts: parts})
}

func (r reducer) Timing() (sending, waiting time.Duration) {
	t := r.Ring.Timing()
	if r.tiers != nil {
		for _, ring := range r.tiers.rings {
			more := ring.Timing()
			t.Sending, t.Waiting = t.Sending+more.Sending, t.Waiting+more.Waiting
		}
	}
	return t.Sending, t.Waiting
}
