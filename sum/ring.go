package sum

import (
	"context"
	"time"

	"rondo/allreduce"
)

// Ring is one rank's part in a ring. All ranks call the same methods, with buffers of the same
// length, in the same order. After an error a buffer's contents are undefined.
type Ring interface {
	// AllReduce replaces buf on every rank by the sum over the ranks, with the same bits on all.
	// Whole numbers below 2^24 are added exactly.
	AllReduce(ctx context.Context, buf []float32) error
	// AllReduceCarry first sends each rank's out to its successor's in, and then does AllReduce.
	// When a rank completes it, every rank's in is complete.
	AllReduceCarry(ctx context.Context, buf, out, in []float32) error
	// AllReduceTree replaces buf on every rank by the sum over all leaves of a binary tree. Rank r
	// has the leaves [ends[r-1], ends[r]). parts are this rank's topmost nodes, from left to right,
	// each as long as buf. The last may be buf itself.
	AllReduceTree(ctx context.Context, buf []float32, ends []int, parts [][]float32) error
	// AllGather gives every rank buf[ends[i-1]:ends[i]] of each rank i.
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// ReduceScatter gives rank i the sum over the ranks of buf[ends[i-1]:ends[i]], which may be
	// empty. The rest of buf is undefined afterwards.
	ReduceScatter(ctx context.Context, buf []float32, ends []int) error
	// Start starts an AllReduce of buf without waiting for it. Later calls run after it.
	Start(ctx context.Context, buf []float32) (Pending, error)
	// Timing returns the total time that this rank's sends were blocked, and the total time that it
	// waited to receive.
	Timing() (sending, waiting time.Duration)
}

// Pending is a sum that has started.
type Pending interface {
	// Wait waits for the sum. After an error the buffer's contents are undefined, and the ring may
	// write to it until it is left.
	Wait(ctx context.Context) error
}

// Ender is a Pending that knows when its sum ended.
type Ender interface {
	// Ended returns that time, after Wait.
	Ended() time.Time
}

// Of returns an allreduce.Ring as a Ring. If traced, its sums are Enders.
func Of(ring *allreduce.Ring, traced bool) Ring { return ringAdapter{ring, traced} }

// ringAdapter is an allreduce.Ring as a Ring.
type ringAdapter struct {
	*allreduce.Ring
	traced bool
}

func (r ringAdapter) Start(ctx context.Context, buf []float32) (Pending, error) {
	p, err := r.Ring.Start(ctx, allreduce.Sum{Buf: buf})
	switch {
	case err != nil:
		return nil, err
	case r.traced:
		return watch(ctx, p), nil
	}
	return p, nil
}

func (r ringAdapter) AllReduceCarry(ctx context.Context, buf, out, in []float32) error {
	return r.Ring.AllReduceCarry(ctx, buf, allreduce.Carry{Out: out, In: in})
}

func (r ringAdapter) AllReduceTree(
	ctx context.Context, buf []float32, ends []int, parts [][]float32,
) error {
	return r.Ring.AllReduceTree(ctx, allreduce.TreeSum{Buf: buf, Ends: ends, Parts: parts})
}

func (r ringAdapter) Timing() (sending, waiting time.Duration) {
	t := r.Ring.Timing()
	return t.Sending, t.Waiting
}

// watched is a sum that notes when it ended.
type watched struct {
	done chan struct{} // closed when err and at are set
	err  error
	at   time.Time
}

// watch waits for a sum in a goroutine. The goroutine ends at the latest when the ring does.
func watch(ctx context.Context, p *allreduce.Pending) *watched {
	w := &watched{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = p.Wait(ctx)
		w.at = time.Now()
	}()
	return w
}

// Wait implements Pending. The context of Start ends it too.
func (w *watched) Wait(context.Context) error { <-w.done; return w.err }

// Ended implements Ender.
func (w *watched) Ended() time.Time { return w.at }
