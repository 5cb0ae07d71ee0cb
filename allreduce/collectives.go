package allreduce

import (
	"context"
	"fmt"
)

// Sum is an all-reduce: what it sums, what of it travels, and what travels ahead of it.
type Sum struct {
	// Buf is replaced on every rank by the sum over the ranks, the same bits everywhere.
	Buf []float32

	// Element is what travels, the same on all ranks. What is added is float32 whatever it is. A
	// ring of one sends nothing, and so rounds nothing.
	Element Element

	// Residual, as long as Buf, is what this rank has withheld by rounding in earlier sums: it is
	// added to what the rank sends, and then holds what that has withheld. It is zero before the
	// first sum. After a sum that failed it is in no defined state: the caller forgets it, as all
	// ranks do. nil: what is rounded away is lost. A sum of Float32 withholds nothing, and has
	// none.
	Residual []float32

	// Carry goes one place along the ring ahead of the sum, as float32.
	Carry Carry
}

// Carry is what travels one place along the ring ahead of a sum: Out goes to the successor, In
// is filled with what the predecessor hands out, which must be of In's length.
//
// Both are the ring's while the collective runs. In is the caller's again when it returns, even
// with an error; it may then be complete, in part or untouched. Out is the caller's to write to
// as the buffer is: at once after a success, after Close else.
type Carry struct {
	Out, In []float32
}

// minCarryingFloats is the shortest sum behind a carry. Of two floats each rank receives at
// least one before any rank can know the sum; a single one's sum is known to a rank whose
// successor has not received anything.
const minCarryingFloats = 2

// AllReduce replaces buf on every rank by the sum over the ranks, the same bits everywhere. It
// takes 2(N-1) steps and sends 2(N-1)/N of buf's bytes.
func (r *Ring) AllReduce(ctx context.Context, buf []float32) error {
	return r.wait(ctx, Sum{Buf: buf})
}

// AllReduceCarry is [Ring.AllReduce] with a carry ahead of it on the same stream. It adds neither
// a step nor a wait: the sum follows behind the carry. When any rank completes the sum, every
// rank's In is complete, whatever breaks then, and so is every collective that was started before.
// Behind a carry on any rank the sum has at least 2 floats. In a ring of one Out is ignored, and In
// must be empty.
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

// Start queues an all-reduce behind the collectives that were started before, of which at most
// [MaxQueued] are on the way: it waits for room among them, and for nothing else. The sum's slices
// are the ring's until [Pending.Wait] has returned.
//
// No collective waits for the one before it: each half of the ring, the one that sends and the one
// that receives, goes on to the next as soon as its own part is done. Between a rank's calls of
// Start the others wait for it: see [Config.StepTimeout].
func (r *Ring) Start(ctx context.Context, s Sum) (*Pending, error) {
	if err := r.check(s); err != nil {
		return nil, fmt.Errorf("all-reduce: %w", err)
	}
	return r.start(ctx, s, schedule{last: 2 * (r.config.World - 1)})
}

func (r *Ring) check(s Sum) error {
	carries := len(s.Carry.Out)+len(s.Carry.In) > 0
	switch {
	case r.config.World == 1 && len(s.Carry.In) > 0:
		return fmt.Errorf("a ring of one carries nothing in, %d floats are expected",
			len(s.Carry.In))
	case r.config.World > 1 && carries && len(s.Buf) < minCarryingFloats:
		return fmt.Errorf("a carry ahead of %d floats, want at least %d", len(s.Buf),
			minCarryingFloats)
	case s.Element > Float16:
		return fmt.Errorf("no ring sends numbers as %v", s.Element)
	case s.Residual != nil && s.Element == Float32:
		return fmt.Errorf("a residual beside %v, which rounds nothing", s.Element)
	case s.Residual != nil && len(s.Residual) != len(s.Buf):
		return fmt.Errorf("a residual of %d floats beside %d", len(s.Residual), len(s.Buf))
	}
	return nil
}

// AllGather gives every rank what each one has: rank i contributes buf[ends[i-1]:ends[i]], which
// may be empty, and exactly these bits arrive. It takes N-1 steps and sends all of buf but the
// successor's range. ends is the same on all ranks.
func (r *Ring) AllGather(ctx context.Context, buf []float32, ends []int) error {
	plan := schedule{first: r.config.World - 1, last: 2 * (r.config.World - 1), ends: ends}
	return r.overRanges(ctx, "all-gather", buf, plan)
}

// ReduceScatter gives every rank the sum over the ranks of its own range: rank i's is
// buf[ends[i-1]:ends[i]], which may be empty. What the rest of buf then holds is not defined. It is
// the first half of an all-reduce, as [Ring.AllGather] is the second: it takes N-1 steps and sends
// all of buf but this rank's range. ends is the same on all ranks.
func (r *Ring) ReduceScatter(ctx context.Context, buf []float32, ends []int) error {
	plan := schedule{last: r.config.World - 1, ends: ends}
	return r.overRanges(ctx, "reduce-scatter", buf, plan)
}

// overRanges runs a collective over ranges of the caller's.
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

// checkEnds holds ends to name one range for each rank, one behind the other.
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
