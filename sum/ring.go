package sum

import (
	"context"
	"time"

	"rondo/allreduce"
)

// Ring is one rank's part in a ring. All ranks call the same methods, with buffers of the same
// length, in the same order. After an error a buffer may hold anything.
type Ring interface {
	// AllReduce replaces buf on every rank by the sum over the ranks: the same bits on all. Whole
	// numbers below 2^24 are added exactly.
	AllReduce(ctx context.Context, buf []float32) error
	// AllReduceCarry is AllReduce. Before it, each rank's out fills its successor's in: no rank
	// completes it before every rank's in is complete.
	AllReduceCarry(ctx context.Context, buf, out, in []float32) error
	// AllReduceTree replaces buf on every rank by the sum over all leaves of a binary tree. Rank r
	// has the leaves [ends[r-1], ends[r]). Its parts are those of its nodes that have no parent
	// among them, from left to right, each as long as buf. The last may be buf itself.
	AllReduceTree(ctx context.Context, buf []float32, ends []int, parts [][]float32) error
	// AllGather gives every rank what rank i has in buf[ends[i-1]:ends[i]].
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// ReduceScatter gives rank i the sum over the ranks of buf[ends[i-1]:ends[i]], which may be
	// empty. The rest of buf may hold anything then.
	ReduceScatter(ctx context.Context, buf []float32, ends []int) error
	// Start begins an AllReduce of buf and does not wait for it. Later calls are done behind it.
	Start(ctx context.Context, buf []float32) (Pending, error)
	// Timing returns for how long in all this rank's sends were blocked, and for how long it waited
	// to receive.
	Timing() (sending, waiting time.Duration)
}

// Pending is a sum that has begun.
type Pending interface {
	// Wait waits for the sum. After an error the buffer may hold anything, and may be written until
	// the ring is left.
	Wait(ctx context.Context) error
}

// Ender is a Pending that knows when its sum was done.
type Ender interface {
	// Ended is when. Wait comes before it.
	Ended() time.Time
}

// Of returns a rank's ring. traced: its sums tell when they have ended.
func Of(ring *allreduce.Ring, traced bool) Ring { return around{ring, traced} }

// around is an allreduce.Ring as a Ring.
type around struct {
	*allreduce.Ring
	traced bool
}

func (r around) Start(ctx context.Context, buf []float32) (Pending, error) {
	p, err := r.Ring.Start(ctx, allreduce.Sum{Buf: buf})
	switch {
	case err != nil:
		return nil, err
	case r.traced:
		return watch(ctx, p), nil
	}
	return p, nil
}

func (r around) AllReduceCarry(ctx context.Context, buf, out, in []float32) error {
	return r.Ring.AllReduceCarry(ctx, buf, allreduce.Carry{Out: out, In: in})
}

func (r around) AllReduceTree(
	ctx context.Context, buf []float32, ends []int, parts [][]float32,
) error {
	return r.Ring.AllReduceTree(ctx, allreduce.TreeSum{Buf: buf, Ends: ends, Parts: parts})
}

func (r around) Timing() (sending, waiting time.Duration) {
	t := r.Ring.Timing()
	return t.Sending, t.Waiting
}

// watched is a sum that notes when it has ended.
type watched struct {
	done chan struct{} // closed when err and at are set
	err  error
	at   time.Time
}

// watch waits for a sum in a goroutine. The ring's end ends it if nothing does before.
func watch(ctx context.Context, p *allreduce.Pending) *watched {
	w := &watched{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = p.Wait(ctx)
		w.at = time.Now()
	}()
	return w
}

// Wait implements Pending. The context that the sum was started with ends it, too.
func (w *watched) Wait(context.Context) error { <-w.done; return w.err }

// Ended implements Ender.
func (w *watched) Ended() time.Time { return w.at }
