package train

import (
	"context"
	"fmt"
	"iter"
	"math"

	"rondo/train/agree"
	"rondo/train/exact"
)

// A step consists of passes, each forward and backward. Usually it is one pass: all lanes of this
// rank read one segment. With Accumulate K, each lane reads K segments in turn. With LaneGroups,
// the groups are computed in turn. A pass overwrites the model's gradient, so with several passes
// the sum is kept elsewhere (fold). All passes of a step use the same parameters.

// pass is one pass of a step.
type pass struct {
	Span
	number int  // among the step's passes on this rank, from 1
	first  bool // first pass of the step
	last   bool
}

// batch computes the passes of a step.
type batch struct {
	*updater
	first, count int     // this rank's lanes are [first, first+count)
	groups       []Lanes // groups of lanes that are computed together
	seated       int     // the seat's number of lanes
	fold         fold
	finishes     []int // Task.Finishes
	own          tally // of the current step; reused
}

// groupLanes divides this rank's lanes into groups that are computed together.
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

// position is the segment that each lane reads after this many steps.
func (c *core) position(steps int64) int64 { return steps * int64(c.cfg.Accumulate) }

// epoch is the epoch, from 1, in which step, from 0, begins. A step may end in the next epoch if an
// epoch is not a whole number of steps.
func (c *core) epoch(step int64) int64 { return c.position(step)/c.segmentsPerEpoch + 1 }

// endsEpoch reports whether an epoch ended within the last step or round.
func (c *core) endsEpoch(steps int64) bool {
	return c.epoch(steps) > c.epoch(c.cfg.Local.Began(steps))
}

// whole is all lanes of the batch.
func (c *core) whole() Lanes { return Lanes{Count: c.cfg.Lanes} }

// targets is the number of targets that these lanes have in a step, from 0. It is K*G*T for all
// lanes of a language model.
func (c *core) targets(index int64, lanes Lanes) (n int64) {
	for _, known := range c.counted {
		if known.lanes == lanes && known.index == index && known.n > 0 {
			return known.n
		}
	}
	defer func() {
		c.counted[0], c.counted[1] = c.counted[1], counted{index, lanes, n}
	}()
	for part := range int64(c.cfg.Accumulate) {
		n += c.task.Targets(c.position(index)+part, lanes)
	}
	return n
}

// counted is a number of targets that core.targets keeps: each of a step's passes asks for it.
type counted struct {
	index int64
	lanes Lanes
	n     int64
}

// share is the part of a step's targets that these lanes have.
func (c *core) share(index int64, lanes Lanes) float64 {
	return float64(c.targets(index, lanes)) / float64(c.targets(index, c.whole()))
}

// ownLanes is this rank's lanes.
func (b *batch) ownLanes() Lanes { return Lanes{First: b.first, Count: b.count} }

// passes is the number of passes of a step on this rank.
func (b *batch) passes() int { return len(b.groups) * b.cfg.Accumulate }

// pass returns the n-th pass of a step, from 0. A group's segments are consecutive, so that
// gradients are accumulated for one group at a time.
func (b *batch) pass(step int64, n int) pass {
	part := n % b.cfg.Accumulate
	return pass{Span{step + 1, part, b.position(step) + int64(part), b.groups[n/b.cfg.Accumulate]},
		n + 1, n == 0, n == b.passes()-1}
}

// spans returns what the steps [from, to) read, in order.
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

// forwardBackward runs the step's passes. It leaves this rank's part of the global gradient in the
// model, or in the nodes of b.fold. The sum of the ranks' parts is the mean over all targets.
// A gradient that is clipped before the ring is first the mean over its own lanes' targets;
// clipping then weights it by its share of all targets. The lanes' states go to after.
func (b *batch) forwardBackward(
	ctx context.Context, index int64, after *agree.Entry,
) (tally, error) {
	own := &b.own
	*own = tally{}
	b.fold.begin()
	targets := float64(b.targets(index, b.whole()))
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
		own.loss.Add(lossSum / targets)
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

// runPass runs a pass and returns the loss summed over its targets.
func (b *batch) runPass(ctx context.Context, p pass) (lossSum float64, err error) {
	if err := b.beginPassPhase(ctx, PhaseLoad, p); err != nil {
		return 0, err
	}
	rows, err := b.seat.Next(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the batch: %w", err)
	}
	b.exchange.sum.Touch(rows)
	if err := b.beginPassPhase(ctx, PhaseForward, p); err != nil {
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
	if lossSum, err = b.path.backward(ctx, in); err != nil {
		return 0, err
	}
	b.exchange.gradient.Staged(b.seat.Staged())
	if in.BeforeBackward != nil {
		b.laps.end("backward")
	} else {
		b.laps.end("forward, backward queued")
	}
	return lossSum, nil
}

// beginPassPhase announces a phase of a pass.
func (b *batch) beginPassPhase(ctx context.Context, phase string, p pass) error {
	if p.first {
		return b.beginPhase(ctx, phase, p.Step)
	}
	return b.repeatPhase(ctx, phase, p.Step, p.number)
}

// setStates sets the states that the pass starts from. With one group the seat carries them itself;
// with several they come from laneStates.
func (b *batch) setStates(p pass) error {
	if b.task.Reset(p.Segment) {
		b.seat.ZeroState()
	} else if len(b.groups) > 1 && p.Part == 0 {
		before := b.laneStates.At(version{Step: p.Step - 1, Ring: b.committed})
		return b.seat.SetState(before.Lanes(p.Lanes))
	}
	return nil
}

// input returns the seat's work in a pass.
func (b *batch) input(ctx context.Context, p pass) Pass {
	// lanes without any target have a zero gradient, whatever the scale
	targets := max(1, b.targets(p.Step-1, b.path.averaged(p.Lanes)))
	in := Pass{Span: p.Span, Scale: float32(1 / float64(targets)), OnlyPasses: b.onlyPasses}
	if b.cfg.Rehearsal != nil || b.laps.tracer != nil && b.cfg.HostMemory && !b.records {
		in.BeforeBackward = func() error {
			b.laps.end("forward")
			return b.beginPassPhase(ctx, PhaseBackward, p)
		}
	}
	if p.last {
		in.Finished = b.finished(ctx)
	}
	if b.mayStage && b.path.stages() {
		in.Stage = b.exchange.sum.Stage()
	}
	return in
}

// finished returns the callback for parts of the gradient that the last pass has finished. It is
// nil if the sum cannot begin early.
func (b *batch) finished(ctx context.Context) func(end int) {
	x := b.exchange
	if !b.cfg.HostMemory || b.records || b.spoil.NaN || b.looksForNaN() || !b.cfg.Overlaps() ||
		!x.sum.Early() {
		return nil
	}
	return func(end int) {
		b.fold.addSegmentsUpTo(end)
		x.sum.Ready(ctx, end)
	}
}

// endGroup ends a lane group's last pass: it clips the group's gradient if groups are clipped, adds
// it to the fold, and stores the group's states.
func (b *batch) endGroup(p pass, after *agree.Entry, own *tally) error {
	b.path.endGroup(p, own)
	if len(b.groups) == 1 {
		return nil
	}
	b.fold.addLeaf(p.Lanes.First/p.Lanes.Count, p.Lanes.End() == b.first+b.count)
	if b.task.Reset(b.position(p.Step)) {
		return nil
	}
	return b.seat.State(after.Lanes(p.Lanes))
}

// endPasses combines the passes' gradients into one, unless the ranks sum tree nodes. It clips the
// result if this rank clips its own gradient as a whole.
func (b *batch) endPasses(own *tally) {
	if !b.cfg.Canonical {
		b.fold.collapse()
	}
	b.path.endPasses(own)
	if !exact.Fits(own.loss.Value()) || b.looksForNaN() && !b.fold.finite() {
		own.nonfinite = 1
	}
	if own.nonfinite > 0 {
		*own = tally{nonfinite: 1}
		b.zeroGradient()
		b.fold.zero()
	}
}

// looksForNaN reports whether each rank checks its whole gradient before the sum. After a step that
// was skipped because of the sum, this tells which rank is at fault.
func (b *batch) looksForNaN() bool { return b.progress.NonfiniteRun > 0 }

// zeroGradient zeroes the part of the gradient that is not yet on its way to other ranks, so that
// the ranks' sum stays finite.
func (b *batch) zeroGradient() {
	b.exchange.gradient.Arrive()
	b.dev.Zero(b.grads[b.exchange.sum.Begun():])
}
