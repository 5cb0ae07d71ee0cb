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
	// AllReduceCarry does AllReduce. In hop h it sends each rank's out[h] to its successor's in[h]:
	// see allreduce.Carry.
	// When a rank completes it, every rank's in is complete.
	AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error
	// AllReduceTree replaces buf on every rank by the sum over all leaves of a binary tree. Rank r
	// has the leaves [ends[r-1], ends[r]). parts are this rank's topmost nodes, from left to right,
	// each as long as buf. The last may be buf itself.
	AllReduceTree(ctx context.Context, buf []float32, ends []int, parts [][]float32) error
	// AllGather gives every rank buf[ends[i-1]:ends[i]] of each rank i.
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// ReduceScatter gives rank i the sum over the ranks of buf[ends[i-1]:ends[i]], which may be
	// empty. The rest of buf is undefined afterwards.
	ReduceScatter(ctx context.Context, buf []float32, ends []int) error
	// Start starts an AllReduce of buf without waiting for it. Later calls run after it. ended
	// receives the time when it is done, before Wait returns; nil: no time.
	Start(ctx context.Context, buf []float32, ended *time.Time) (Pending, error)
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

// Of returns an allreduce.Ring as a Ring.
func Of(ring *allreduce.Ring) Ring { return ringAdapter{ring} }

// ringAdapter is an allreduce.Ring as a Ring.
type ringAdapter struct{ *allreduce.Ring }

func (r ringAdapter) Start(
	ctx context.Context, buf []float32, ended *time.Time,
) (Pending, error) {
	return r.Ring.Start(ctx, allreduce.Sum{Buf: buf, Ended: ended})
}

func (r ringAdapter) AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error {
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
