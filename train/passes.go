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

// groupLanes divides this rank's lanes into the groups in which they are computed.
func (t *Trainer) groupLanes() error {
	t.groups = append(t.groups[:0], Lanes{First: t.first, Count: t.count})
	if t.cfg.LaneGroups == 0 {
		return nil
	}
	size := t.cfg.Lanes / t.cfg.LaneGroups
	if t.first%size != 0 || t.count%size != 0 {
		return fmt.Errorf("train: the lanes [%d, %d) are not whole groups of %d", t.first,
			t.first+t.count, size)
	}
	t.groups = t.groups[:0]
	for first := t.first; first < t.first+t.count; first += size {
		t.groups = append(t.groups, Lanes{First: first, Count: size})
	}
	return nil
}

// position is the segment that each lane reads next, after so many steps.
func (t *Trainer) position(steps int64) int64 { return steps * int64(t.cfg.Accumulate) }

// epoch is the epoch, from 1, in which a step, from 0, begins. Where an epoch is not a whole number
// of steps, a step may end in another one.
func (t *Trainer) epoch(step int64) int64 { return t.position(step)/t.segmentsPerEpoch + 1 }

// endsEpoch says whether an epoch ended within the last of so many steps, or the last round.
func (t *Trainer) endsEpoch(steps int64) bool {
	return t.epoch(steps) > t.epoch(t.cfg.Local.began(steps))
}

// targets is how many targets a step has: K*G*T.
func (t *Trainer) targets() int { return t.cfg.Accumulate * t.cfg.Lanes * t.task.Targets() }

// passes is how many a step has on this rank.
func (t *Trainer) passes() int { return len(t.groups) * t.cfg.Accumulate }

// pass is the n-th of a step, from 0. The segments of a group come one after the other, so that
// what is added up is one group's at a time.
func (t *Trainer) pass(step int64, n int) pass {
	part := n % t.cfg.Accumulate
	return pass{Span{step + 1, part, t.position(step) + int64(part), t.groups[n/t.cfg.Accumulate]},
		n + 1, n == 0, n == t.passes()-1}
}

// spans are what the steps [from, to) read, in order.
func (t *Trainer) spans(from, to int64) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		for step := from; step < to; step++ {
			for n := range t.passes() {
				if !yield(t.pass(step, n).Span) {
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
func (t *Trainer) forwardBackward(
	ctx context.Context, index int64, after *agree.Entry,
) (tally, error) {
	own := &t.own
	*own = tally{}
	t.fold.begin()
	for n := range t.passes() {
		p := t.pass(index, n)
		lossSum, err := t.runPass(ctx, p)
		if err != nil {
			return tally{}, err
		}
		if p.first {
			t.spoilGradient()
		}
		if !(math.Abs(lossSum) < t.clip.LossLimit) {
			own.nonfinite = 1
		}
		own.loss.add(lossSum / float64(t.targets()))
		t.fold.addSegment(p.Part, t.cfg.Accumulate)
		if p.Part == t.cfg.Accumulate-1 {
			if err := t.endGroup(p, after, own); err != nil {
				return tally{}, err
			}
		}
	}
	t.endPasses(own)
	if t.stopping.Load() {
		own.stop = 1
	}
	if t.regrouping.Load() {
		own.regroup = 1
	}
	return *own, nil
}

// runPass runs a pass, and returns the loss summed over its targets.
func (t *Trainer) runPass(ctx context.Context, p pass) (lossSum float64, err error) {
	if err := t.begin(ctx, PhaseLoad, p); err != nil {
		return 0, err
	}
	rows, err := t.seat.Next(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the batch: %w", err)
	}
	t.exchange.sum.Touch(rows)
	if err := t.begin(ctx, PhaseForward, p); err != nil {
		return 0, err
	}
	t.laps.end("load")
	if err := t.setStates(p); err != nil {
		return 0, err
	}
	if p.first {
		t.askSpoil(ctx, p.Step)
	}
	in := t.input(ctx, p)
	if lossSum, err = t.ending.backward(ctx, in); err != nil {
		return 0, err
	}
	t.exchange.gradient.Staged(t.seat.Staged())
	if in.BeforeBackward != nil {
		t.laps.end("backward")
	} else {
		t.laps.end("forward, and backward asked for")
	}
	return lossSum, nil
}

// begin tells of a phase of a pass.
func (t *Trainer) begin(ctx context.Context, phase string, p pass) error {
	if p.first {
		return t.at(ctx, phase, p.Step)
	}
	return t.again(ctx, phase, p.Step, p.number)
}

// setStates gives the segment the states that the pass starts from. A group that is the only one
// has them from its last pass, and others have theirs from laneStates.
func (t *Trainer) setStates(p pass) error {
	if t.task.Reset(p.Segment) {
		t.seat.ZeroState()
	} else if len(t.groups) > 1 && p.Part == 0 {
		before := t.laneStates.At(version{Step: p.Step - 1, Ring: t.committed})
		return t.seat.SetState(before.Lanes(p.Lanes))
	}
	return nil
}

// input is what the seat is to do in a pass. Only a step's single pass leaves the gradient as it
// is to be, so that more can be asked for behind it.
func (t *Trainer) input(ctx context.Context, p pass) Pass {
	divisor := float64(t.targets()) * t.ending.mean() // K*G*T, or K*B*T
	in := Pass{Span: p.Span, Scale: float32(1 / divisor), OnlyPasses: t.onlyPasses}
	if t.cfg.Rehearsal != nil || t.laps.tracer != nil && t.cfg.HostMemory && !t.records {
		in.BeforeBackward = func() error {
			t.laps.end("forward")
			return t.begin(ctx, PhaseBackward, p)
		}
	}
	if p.last {
		in.Finished = t.finished(ctx)
	}
	if t.mayStage && t.ending.stages() {
		in.Stage = t.exchange.sum.Stage()
	}
	return in
}

// finished is what a step's last pass is to call when a part of the gradient is there; nil where
// nothing can begin with it.
func (t *Trainer) finished(ctx context.Context) func(end int) {
	x := t.exchange
	if !t.cfg.HostMemory || t.records || t.spoil.NaN || !t.cfg.Overlaps() || !x.sum.Early() {
		return nil
	}
	return func(end int) {
		t.fold.addSegmentsUpTo(end)
		x.sum.Ready(ctx, end)
	}
}

// endGroup is the end of a group's last pass: its states are kept, and its gradient clipped, if it
// is to be by itself, and folded with those of the groups before.
func (t *Trainer) endGroup(p pass, after *agree.Entry, own *tally) error {
	t.ending.endGroup(own)
	if len(t.groups) == 1 {
		return nil
	}
	t.fold.addLeaf(p.Lanes.First/p.Lanes.Count, p.Lanes.End() == t.first+t.count)
	if t.task.Reset(t.position(p.Step)) {
		return nil
	}
	return t.seat.State(after.Lanes(p.Lanes))
}

// endPasses makes one gradient of what the passes have left, unless the ranks are to sum the parts
// of it, and clips this rank's own, if it is to be and has not been.
func (t *Trainer) endPasses(own *tally) {
	if !t.cfg.Canonical {
		t.fold.collapse()
	}
	t.ending.endPasses(own)
	if !exactable(own.loss.value()) {
		own.nonfinite = 1
	}
	if own.nonfinite > 0 {
		*own = tally{nonfinite: 1}
		t.zeroGradient()
		t.fold.zero()
	}
}

// zeroGradient makes zeros of what is not on its way to the other ranks yet, so that the ranks' sum
// is of numbers.
func (t *Trainer) zeroGradient() {
	t.exchange.gradient.Arrive()
	t.dev.Zero(t.grads[t.exchange.sum.Begun():])
}
