package allreduce

import (
	"context"
	"fmt"
	"time"
)

// Sum is an all-reduce: a buffer, its wire format, and the carry ahead of it.
type Sum struct {
	// Buf is replaced on every rank by the sum over the ranks, the same bits everywhere.
	Buf []float32

	// Element is the wire format, the same on all ranks. The arithmetic is float32 with each of
	// them. A ring of one sends nothing, so it rounds nothing.
	Element Element

	// Residual holds the rounding errors that this rank has withheld, as long as Buf. The sum adds
	// them to the numbers that the rank sends, and stores the new errors. It is zero before the
	// first sum. A failed sum leaves it undefined: the caller must discard it, as all ranks do.
	// nil: rounding errors are lost. It must be nil for Float32.
	Residual []float32

	// Carry goes some places along the ring beside the sum, as float32.
	Carry Carry

	// Ended receives the time at which this rank's part was done, before Wait returns; nil: no
	// time is taken.
	Ended *time.Time
}

// end records the end of this rank's part.
func (s *Sum) end() {
	if s.Ended != nil {
		*s.Ended = time.Now()
	}
}

// Carry is what travels some places along the ring beside a sum, in N-1 hops at most. In hop h
// (from 0) Out[h] goes to the successor, and In[h] is filled with the predecessor's Out[h], which
// must have the same length. Out[0] is this rank's own. A later Out[h] is In[h-1], which this rank
// passes on, or empty: nothing goes so far.
//
// The ring owns both while the collective runs. The caller may use In again when it returns. After
// an error In may be complete, partly filled or untouched. The caller may write to Out as it may to
// the buffer: at once after a success, and after Close otherwise.
type Carry struct {
	Out, In [][]float32
}

// into returns how many floats hop h brings; h may be any.
func (c Carry) into(h int) int {
	if h < 0 || h >= len(c.In) {
		return 0
	}
	return len(c.In[h])
}

// minCarryingFloats is the length of the shortest sum behind a carry. With two floats each rank
// receives at least one before any rank has the sum. With one float a rank may have the sum
// although its successor has received nothing.
const minCarryingFloats = 2

// AllReduce replaces buf on every rank by the sum over the ranks, with the same bits everywhere. It
// takes 2(N-1) steps and sends 2(N-1)/N of buf's bytes.
func (r *Ring) AllReduce(ctx context.Context, buf []float32) error {
	return r.wait(ctx, Sum{Buf: buf})
}

// AllReduceCarry is [Ring.AllReduce] with a carry on the same stream. It adds no step and no wait
// to a sum of at least N floats, and otherwise the carry's hops but the first. When any rank
// completes the sum, every rank's In is complete, even if the ring breaks then, and so is every
// collective that was started before. If any rank carries floats, the sum must have at least 2. In
// a ring of one Out is ignored, and In must be empty.
func (r *Ring) AllReduceCarry(ctx context.Context, buf []float32, carry Carry) error {
	return r.wait(ctx, Sum{Buf: buf, Carry: carry})
}

func (r *Ring) wait(ctx context.Context, s Sum) error {
	p, err := r.Start(ctx, s)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Start queues an all-reduce behind those started before. It waits only while [MaxQueued]
// collectives are unfinished. The ring owns the sum's slices until [Pending.Wait] has returned.
//
// No collective waits for the one before it: each half of the ring goes on to the next when its own
// part is done. The other ranks wait between this rank's calls of Start: see [Config.StepTimeout].
func (r *Ring) Start(ctx context.Context, s Sum) (*Pending, error) {
	if err := r.check(s); err != nil {
		return nil, fmt.Errorf("all-reduce: %w", err)
	}
	return r.start(ctx, s, schedule{last: 2 * (r.config.World - 1)})
}

func (r *Ring) check(s Sum) error {
	hops := max(len(s.Carry.Out), len(s.Carry.In))
	carries := hops > 0
	switch {
	case r.config.World == 1 && len(s.Carry.In) > 0:
		return fmt.Errorf("a ring of one carries nothing in, %d floats are expected",
			s.Carry.into(0))
	case r.config.World > 1 && hops >= r.config.World:
		return fmt.Errorf("a carry of %d hops around a ring of %d", hops, r.config.World)
	case r.config.World > 1 && carries && len(s.Buf) < minCarryingFloats:
		return fmt.Errorf("a carry ahead of %d floats, want at least %d", len(s.Buf),
			minCarryingFloats)
	case s.Element > Float16:
		return fmt.Errorf("unknown %v: want %v, %v or %v", s.Element, Float32, BFloat16, Float16)
	case s.Residual != nil && s.Element == Float32:
		return fmt.Errorf("a residual beside %v, which rounds nothing", s.Element)
	case s.Residual != nil && len(s.Residual) != len(s.Buf):
		return fmt.Errorf("a residual of %d floats beside %d", len(s.Residual), len(s.Buf))
	}
	return nil
}

// AllGather gives every rank all ranks' ranges of buf. Rank i contributes buf[ends[i-1]:ends[i]],
// which may be empty; its bits arrive unchanged. It takes N-1 steps and sends all of buf but the
// successor's range. ends is the same on all ranks.
func (r *Ring) AllGather(ctx context.Context, buf []float32, ends []int) error {
	plan := schedule{first: r.config.World - 1, last: 2 * (r.config.World - 1), ends: ends}
	return r.overRanges(ctx, "all-gather", buf, plan)
}

// ReduceScatter gives every rank the sum over the ranks of its own range: rank i's is
// buf[ends[i-1]:ends[i]], which may be empty. The rest of buf is undefined after it. It is the
// first half of an all-reduce, as [Ring.AllGather] is the second. It takes N-1 steps and sends all
// of buf but this rank's range. ends is the same on all ranks.
func (r *Ring) ReduceScatter(ctx context.Context, buf []float32, ends []int) error {
	plan := schedule{last: r.config.World - 1, ends: ends}
	return r.overRanges(ctx, "reduce-scatter", buf, plan)
}

func (r *Ring) overRanges(
	ctx context.Context, what string, buf []float32, plan schedule,
) error {
	if err := r.checkEnds(what, plan.ends); err != nil {
		return err
	}
	if at := plan.ends[r.config.World-1]; at != len(buf) {
		return fmt.Errorf("%s: ranges end at %d, the buffer at %d", what, at, len(buf))
	}
	p, err := r.start(ctx, Sum{Buf: buf}, plan)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// checkEnds returns an error unless ends name one range for each rank, in order.
func (r *Ring) checkEnds(what string, ends []int) error {
	if len(ends) != r.config.World {
		return fmt.Errorf("%s: %d ranges for %d ranks", what, len(ends), r.config.World)
	}
	at := 0
	for i, end := range ends {
		if end < at {
			return fmt.Errorf("%s: range of rank %d is [%d:%d]", what, i, at, end)
		}
		at = end
	}
	return nil
}
