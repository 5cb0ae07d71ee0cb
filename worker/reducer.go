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
	tiers  *tiers
	traced bool // somebody wants to know when sums have ended
}

// Start implements train.Reducer.
func (r reducer) Start(ctx context.Context, buf []float32) (train.Pending, error) {
	p, err := r.Ring.Start(ctx, allreduce.Sum{Buf: buf})
	switch {
	case err != nil:
		return nil, err
	case r.traced:
		return watch(ctx, p), nil
	}
	return p, nil
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

// watched is a sum that notes when it has ended.
type watched struct {
	done chan struct{} // closed when it has, after what follows is set
	err  error
	at   time.Time
}

// watch waits for a sum in a goroutine, which the ring's end ends if nothing does before.
func watch(ctx context.Context, p *allreduce.Pending) *watched {
	w := &watched{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = p.Wait(ctx)
		w.at = time.Now()
	}()
	return w
}

// Wait implements train.Pending. The context that the sum was started with ends it, too.
func (w *watched) Wait(context.Context) error { <-w.done; return w.err }

// Ended implements train.Ender.
func (w *watched) Ended() time.Time { return w.at }
