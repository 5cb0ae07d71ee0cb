package train

import (
	"context"
	"fmt"
	"iter"
	"math"

	"rondo/train/agree"
)

// A step consists of passes, forward and backward each. The usual one has a single pass: all lanes
// of this rank read a segment. With Accumulate K, each lane reads K segments, one after the other;
// with LaneGroups, the lanes are computed in groups, one after the other. A pass leaves its
// gradient where the model has it; where there are several, what the passes before have left is
// added up elsewhere meanwhile. Every pass of a step starts from the same parameters.

// pass is one of a step's.
type pass struct {
	Span
	number int  // of the step's on this rank, from 1
	first  bool // of them
	last   bool
}

// batch computes the passes of a step.
type batch struct {
	*updater
	first, count int     // this rank's lanes are [first, first+count)
	groups       []Lanes // in which they are computed
	seated       int     // lanes that the seat is for
	fold         fold
	finishes     []int // up to where backward finishes the gradient, one after the other
	own          tally // of the step in hand, used again
}

// groupLanes divides this rank's lanes into the groups in which they are computed.
func (b *batch) groupLanes() error {
	b.groups = append(b.groups[:0], Lanes{First: b.first, Count: b.count})
	if b.cfg.LaneGroups == 0 {
		return nil
	}
	size := b.cfg.Lanes / b.cfg.LaneGroups
	if b.first%size != 0 || b.count%size != 0 {
		return fmt.Errorf("train: the lanes [%d, %d) are not whole groups of %d", b.first,
			b.first+b.count, size)
	}
	b.groups = b.groups[:0]
	for first := b.first; first < b.first+b.count; first += size {
		b.groups = append(b.groups, Lanes{First: first, Count: size})
	}
	return nil
}

// position is the segment that each lane reads next, after so many steps.
func (c *core) position(steps int64) int64 { return steps * int64(c.cfg.Accumulate) }

// epoch is the epoch, from 1, in which a step, from 0, begins. Where an epoch is not a whole number
// of steps, a step may end in another one.
func (c *core) epoch(step int64) int64 { return c.position(step)/c.segmentsPerEpoch + 1 }

// endsEpoch says whether an epoch ended within the last of so many steps, or the last round.
func (c *core) endsEpoch(steps int64) bool {
	return c.epoch(steps) > c.epoch(c.cfg.Local.began(steps))
}

// targets is how many targets a step has: K*G*T.
func (c *core) targets() int { return c.cfg.Accumulate * c.cfg.Lanes * c.task.Targets() }

// passes is how many a step has on this rank.
func (b *batch) passes() int { return len(b.groups) * b.cfg.Accumulate }

// pass is the n-th of a step, from 0. The segments of a group come one after the other, so that
// what is added up is one group's at a time.
func (b *batch) pass(step int64, n int) pass {
	part := n % b.cfg.Accumulate
	return pass{Span{step + 1, part, b.position(step) + int64(part), b.groups[n/b.cfg.Accumulate]},
		n + 1, n == 0, n == b.passes()-1}
}

// spans are what the steps [from, to) read, in order.
func (b *batch) spans(from, to int64) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		for step := from; step < to; step++ {
			for n := range b.passes() {
				if !yield(b.pass(step, n).Span) {
					return
				}
			}
		}
	}
}

// forwardBackward reads the batch, and leaves this rank's part of the global gradient in the model,
// or in parts of it in t.fold. The mean over all K*G*T targets is the sum of the ranks' parts.
// Where a gradient is clipped before the ring, it is that of the mean over those lanes' own
// targets, and is weighted by their share of all lanes afterwards. after takes the lanes' states.
func (b *batch) forwardBackward(
	ctx context.Context, index int64, after *agree.Entry,
) (tally, error) {
	own := &b.own
	*own = tally{}
	b.fold.begin()
	for n := range b.passes() {
		p := b.pass(index, n)
		lossSum, err := b.runPass(ctx, p)
		if err != nil {
			return tally{}, err
		}
		if p.first {
			b.spoilGradient()
		}
		if !(math.Abs(lossSum) < b.clip.LossLimit) {
			own.nonfinite = 1
		}
		own.loss.add(lossSum / float64(b.targets()))
		b.fold.addSegment(p.Part, b.cfg.Accumulate)
		if p.Part == b.cfg.Accumulate-1 {
			if err := b.endGroup(p, after, own); err != nil {
				return tally{}, err
			}
		}
	}
	b.endPasses(own)
	if b.stopping.Load() {
		own.stop = 1
	}
	if b.regrouping.Load() {
		own.regroup = 1
	}
	return *own, nil
}

// runPass runs a pass, and returns the loss summed over its targets.
func (b *batch) runPass(ctx context.Context, p pass) (lossSum float64, err error) {
	if err := b.begin(ctx, PhaseLoad, p); err != nil {
		return 0, err
	}
	rows, err := b.seat.Next(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the batch: %w", err)
	}
	b.exchange.sum.Touch(rows)
	if err := b.begin(ctx, PhaseForward, p); err != nil {
		return 0, err
	}
	b.laps.end("load")
	if err := b.setStates(p); err != nil {
		return 0, err
	}
	if p.first {
		b.askSpoil(ctx, p.Step)
	}
	in := b.input(ctx, p)
	if lossSum, err = b.ending.backward(ctx, in); err != nil {
		return 0, err
	}
	b.exchange.gradient.Staged(b.seat.Staged())
	if in.BeforeBackward != nil {
		b.laps.end("backward")
	} else {
		b.laps.end("forward, and backward asked for")
	}
	return lossSum, nil
}

// begin tells of a phase of a pass.
func (b *batch) begin(ctx context.Context, phase string, p pass) error {
	if p.first {
		return b.at(ctx, phase, p.Step)
	}
	return b.again(ctx, phase, p.Step, p.number)
}

// setStates gives the segment the states that the pass starts from. A group that is the only one
// has them from its last pass, and others have theirs from laneStates.
func (b *batch) setStates(p pass) error {
	if b.task.Reset(p.Segment) {
		b.seat.ZeroState()
	} else if len(b.groups) > 1 && p.Part == 0 {
		before := b.laneStates.At(version{Step: p.Step - 1, Ring: b.committed})
		return b.seat.SetState(before.Lanes(p.Lanes))
	}
	return nil
}

// input is what the seat is to do in a pass. Only a step's single pass leaves the gradient as it
// is to be, so that more can be asked for behind it.
func (b *batch) input(ctx context.Context, p pass) Pass {
	divisor := float64(b.targets()) * b.ending.mean() // K*G*T, or K*B*T
	in := Pass{Span: p.Span, Scale: float32(1 / divisor), OnlyPasses: b.onlyPasses}
	if b.cfg.Rehearsal != nil || b.laps.tracer != nil && b.cfg.HostMemory && !b.records {
		in.BeforeBackward = func() error {
			b.laps.end("forward")
			return b.begin(ctx, PhaseBackward, p)
		}
	}
	if p.last {
		in.Finished = b.finished(ctx)
	}
	if b.mayStage && b.ending.stages() {
		in.Stage = b.exchange.sum.Stage()
	}
	return in
}

// finished is what a step's last pass is to call when a part of the gradient is there; nil where
// nothing can begin with it.
func (b *batch) finished(ctx context.Context) func(end int) {
	x := b.exchange
	if !b.cfg.HostMemory || b.records || b.spoil.NaN || !b.cfg.Overlaps() || !x.sum.Early() {
		return nil
	}
	return func(end int) {
		b.fold.addSegmentsUpTo(end)
		x.sum.Ready(ctx, end)
	}
}

// endGroup is the end of a group's last pass: its states are kept, and its gradient clipped, if it
// is to be by itself, and folded with those of the groups before.
func (b *batch) endGroup(p pass, after *agree.Entry, own *tally) error {
	b.ending.endGroup(own)
	if len(b.groups) == 1 {
		return nil
	}
	b.fold.addLeaf(p.Lanes.First/p.Lanes.Count, p.Lanes.End() == b.first+b.count)
	if b.task.Reset(b.position(p.Step)) {
		return nil
	}
	return b.seat.State(after.Lanes(p.Lanes))
}

// endPasses makes one gradient of what the passes have left, unless the ranks are to sum the parts
// of it, and clips this rank's own, if it is to be and has not been.
func (b *batch) endPasses(own *tally) {
	if !b.cfg.Canonical {
		b.fold.collapse()
	}
	b.ending.endPasses(own)
	if !exactable(own.loss.value()) {
		own.nonfinite = 1
	}
	if own.nonfinite > 0 {
		*own = tally{nonfinite: 1}
		b.zeroGradient()
		b.fold.zero()
	}
}

// zeroGradient makes zeros of what is not on its way to the other ranks yet, so that the ranks' sum
// is of numbers.
func (b *batch) zeroGradient() {
	b.exchange.gradient.Arrive()
	b.dev.Zero(b.grads[b.exchange.sum.Begun():])
}
