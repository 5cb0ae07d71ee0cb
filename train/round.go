package train

import (
	"context"
	"fmt"
	"math"

	"rondo/train/agree"
)

// round does the steps up to the end of a round, as step does one: see Local. Until the ranks have
// met at its end, what another ring would go on from is what the round began with: copies of the
// tensors, the progress, and the lanes' states in laneStates. It returns true when the ranks are to
// leave the ring after it.
func (t *Trainer) round(ctx context.Context) (leave bool, err error) {
	defer t.forgetTorn()
	began := t.cfg.Now()
	t.laps.begin()
	from := t.progress.Step
	end := t.cfg.Local.end(from, t.cfg.Steps)
	if err := t.beginSum(ctx, end, 1); err != nil { // the outer rule's rate is always the same
		return false, err
	}
	t.keepStart()
	t.tear()
	t.laps.end("keeping the round's start")
	states := t.laneStates.Open(version{Step: end, Ring: t.ring.Generation}, from)
	own, err := t.stepsAlone(ctx, end, states)
	if err != nil {
		t.rewind()
		return false, err
	}
	reached := t.cfg.Now()
	all, err := t.meet(ctx, end, own, states)
	if err != nil {
		t.rewind()
		return false, err
	}
	summed := t.cfg.Now()
	t.laps.end("exposed to the ring")
	rate := t.cfg.Schedule.at(end-1, t.cfg.Steps, t.progress.Plateau.Reductions)
	norm, skipped := t.outerUpdate(all)
	t.laps.end("outer update")
	if !skipped {
		t.flip()
	} else if err := t.healStates(states); err != nil {
		return false, err
	}
	t.commitRound(end, all, skipped)
	ended := t.cfg.Now()
	exposed := summed.Sub(reached) - t.exchange.busy
	compute := ended.Sub(began) - exposed
	t.roll.Count(compute)
	speed := t.speed(ended.Sub(began), end-from)
	t.laps.whole("round up to step", end, began, ended, speed)
	t.observe(StepReport{Loss: missing(all.loss.value(), all.nonfinite), LearningRate: rate,
		GradientNorm: norm, Skipped: skipped,
		TokensPerSecond: speed, Times: StepTimes{Compute: compute,
			Exposed: exposed, Waiting: waited(all.slowest, t.exchange.took, exposed)}})
	return all.regroup > 0, t.afterCommit(ctx, end, all.nonfinite, skipped)
}

// stepsAlone does the steps of a round, up to end, with this rank's lanes alone. What it returns is
// the mean over these steps. after takes the lanes' states.
func (t *Trainer) stepsAlone(
	ctx context.Context, end int64, after *agree.Entry,
) (sum tally, err error) {
	from := t.progress.Step
	flip := false
	for index := from; index < end; index++ {
		t.plan(index)
		own, err := t.forwardBackward(ctx, index, after) // batch, forward, backward; clip
		if err != nil {
			return tally{}, fmt.Errorf("in the round's step %d: %w", index+1, err)
		}
		if _, err := t.ending.update(ctx, index, own); err != nil {
			return tally{}, fmt.Errorf("in the round's step %d: %w", index+1, err)
		}
		flip = flip || t.spoil.Flip
		sum.loss.add(own.loss.value() / float64(end-from))
		sum.norm.add(t.ending.mean() * own.norm.value() / float64(end-from))
		sum.nonfinite = max(sum.nonfinite, own.nonfinite)
		sum.stop, sum.regroup = own.stop, own.regroup // as they are at the end
	}
	t.spoil.Flip = flip
	return sum, nil
}

// ownTensors are what a rank changes by itself in a round: the parameters, and what the inner
// optimizer keeps.
func (t *Trainer) ownTensors() [][]float32 { return t.tensors()[:1+t.innerSlots()] }

// innerSlots is how many of the slots are not the outer rule's.
func (t *Trainer) innerSlots() int { return t.cfg.Optimizer.Rule.Slots() }

// keepStart keeps what the round begins with.
func (t *Trainer) keepStart() {
	for i, x := range t.ownTensors() {
		t.copyWithin(t.start[i], x)
	}
}

// rewind undoes a round. If it does not come to its end, because the device fails, forgetTorn drops
// the state.
func (t *Trainer) rewind() {
	for i, x := range t.ownTensors() {
		t.copyWithin(x, t.start[i])
	}
	t.torn = false
}

// copyRow is how much of a tensor copyWithin takes for a row of a table.
const copyRow = 1 << 10

// copyWithin copies within the device's memory, every bit. In memory of its own the device gathers
// all rows of a table, and what is left as the only row of another.
func (t *Trainer) copyWithin(dst, src []float32) {
	if t.cfg.HostMemory {
		copy(dst, src)
		return
	}
	for len(t.copyRows) < len(src)/copyRow {
		t.copyRows = append(t.copyRows, int32(len(t.copyRows)))
	}
	whole := len(src) / copyRow * copyRow
	if whole > 0 {
		t.dev.Embed(dst[:whole], src[:whole], t.copyRows[:whole/copyRow])
	}
	if whole < len(src) {
		t.dev.Embed(dst[whole:], src[whole:], []int32{0})
	}
}

// meet ends a round: it leaves in the gradient's place the outer gradient, summed over the ranks,
// and in the inner slots' their means. A rank alone whose parameters are the mean leaves all as it
// is. What is on its way to the ranks' sums counts for nothing until the last of them, which is the
// outer gradient's, with all that travels with a step's gradient.
func (t *Trainer) meet(
	ctx context.Context, end int64, own tally, states *agree.Entry,
) (tally, error) {
	if err := context.Cause(ctx); err != nil { // a rank alone meets nobody who would say so
		return tally{}, err
	}
	ahead, err := t.recordStates(end-1, states)
	if err != nil {
		return tally{}, err
	}
	if t.ring.Peers == nil && t.cfg.Local.Outer == OuterAverage {
		return own, nil
	}
	if t.ring.Peers != nil {
		for _, slot := range t.ownTensors()[1:] {
			t.dev.Scale(slot, float32(t.ending.mean()))
			if err := t.sumTensor(ctx, slot); err != nil {
				return tally{}, fmt.Errorf("averaging what --optimizer keeps: %w", err)
			}
		}
	}
	t.laps.end("averaging the optimizer's")
	t.copyWithin(t.grads, t.task.Params())
	t.dev.Scale(t.grads, -1)
	t.dev.Add(t.grads, t.start[0])
	t.dev.Scale(t.grads, float32(t.ending.mean()))
	if own.nonfinite > 0 || !isFinite(t.dev.SumSquares(t.grads)) {
		own = tally{nonfinite: 1, stop: own.stop, regroup: own.regroup}
		t.zeroGradient()
	}
	t.laps.end("outer gradient")
	return t.exchange.meet(ctx, end-1, own, ahead)
}

// sumTensor replaces a tensor, device memory, by its sum over the ranks.
func (t *Trainer) sumTensor(ctx context.Context, tensor []float32) error {
	if t.cfg.HostMemory {
		return t.ring.Peers.AllReduce(ctx, tensor)
	}
	for len(tensor) > 0 {
		n := min(len(tensor), len(t.memory.Piece))
		t.dev.Download(t.memory.Piece[:n], tensor[:n])
		if err := t.ring.Peers.AllReduce(ctx, t.memory.Piece[:n]); err != nil {
			return err
		}
		t.dev.Upload(tensor[:n], t.memory.Piece[:n])
		tensor = tensor[n:]
	}
	return nil
}

// outerUpdate makes the next round's parameters, or those of this one again if it is skipped. The
// norm is the mean of the steps' gradients' norms.
func (t *Trainer) outerUpdate(all tally) (norm float64, skipped bool) {
	if t.ring.Peers == nil && t.cfg.Local.Outer == OuterAverage {
		if skipped = all.nonfinite > 0; skipped {
			t.rewind()
		}
		return all.norm.value(), skipped
	}
	if all.nonfinite > 0 || !isFinite(t.dev.SumSquares(t.grads)) {
		t.rewind()
		return all.norm.value(), true
	}
	t.copyWithin(t.task.Params(), t.start[0])
	var momentum []float32
	if outer := t.slots.Own()[t.innerSlots():]; len(outer) > 0 {
		momentum = outer[0]
	}
	t.dev.Update(t.cfg.Local.update(), t.task.Params(), t.grads, momentum, nil)
	t.dev.Zero(t.task.Gradients()) // of which segments write only a part
	return all.norm.value(), false
}

// commitRound makes the round that was computed the last one that is done. Each of its steps counts
// with the mean of their losses. Of rounds that are skipped in a row, NonfiniteRun counts each as
// one.
func (t *Trainer) commitRound(end int64, all tally, skipped bool) {
	run := t.progress.NonfiniteRun
	t.commit(end, all.loss.value(), skipped, all)
	if skipped {
		t.progress.NonfiniteRun = run + 1
	}
}

// missing is the loss of a step, or a round, of which some rank's part is not a number.
func missing(loss float64, nonfinite int) float64 {
	if nonfinite > 0 {
		return math.NaN()
	}
	return loss
}
