package train

import (
	"context"
	"fmt"
	"math"

	"rondo/train/agree"
)

// round is a stride of several steps, up to the end of a round: see Local. Until the ranks have met
// at its end, another ring would go on from what the round began with: copies of the tensors, the
// progress, and the lanes' states in laneStates.
type round struct {
	*batch
	start [][]float32 // what the round began with, device memory
}

func (*round) name() string { return "round up to step" }

func (r *round) end(from int64) int64 { return r.cfg.Local.end(from, r.cfg.Steps) }

// prepare implements stride. The outer rule's rate is the same in all rounds.
func (r *round) prepare(from int64) (rate, sumRate float64) {
	last := r.end(from) - 1
	return r.cfg.Schedule.at(last, r.cfg.Steps, r.progress.Plateau.Reductions), 1
}

// compute implements stride. It leaves in the gradient's place the outer gradient, and in the inner
// slots' their means over the ranks. A rank alone whose parameters are the mean leaves all as it
// is.
func (r *round) compute(
	ctx context.Context, end int64, after *agree.Entry,
) (own tally, err error) {
	for i, x := range r.ownTensors() {
		r.copyWithin(r.start[i], x)
	}
	r.tear()
	r.laps.end("keeping the round's start")
	if own, err = r.stepsAlone(ctx, end, after); err != nil {
		return tally{}, err
	}
	if err := context.Cause(ctx); err != nil { // a rank alone meets nobody who would say so
		return tally{}, err
	}
	if r.averagesAlone() {
		return own, nil
	}
	if r.ring.Peers != nil {
		for _, slot := range r.ownTensors()[1:] {
			r.dev.Scale(slot, float32(r.ending.mean()))
			if err := r.sumTensor(ctx, slot); err != nil {
				return tally{}, fmt.Errorf("averaging what --optimizer keeps: %w", err)
			}
		}
	}
	r.laps.end("averaging the optimizer's")
	r.copyWithin(r.grads, r.task.Params())
	r.dev.Scale(r.grads, -1)
	r.dev.Add(r.grads, r.start[0])
	r.dev.Scale(r.grads, float32(r.ending.mean()))
	if own.nonfinite > 0 || !isFinite(r.dev.SumSquares(r.grads)) {
		own = tally{nonfinite: 1, stop: own.stop, regroup: own.regroup}
		r.zeroGradient()
	}
	r.laps.end("outer gradient")
	return own, nil
}

// averagesAlone says that this rank's parameters are the next round's.
func (r *round) averagesAlone() bool {
	return r.ring.Peers == nil && r.cfg.Local.Outer == OuterAverage
}

// stepsAlone does the steps of a round, up to end, with this rank's lanes alone. What it returns is
// the mean over these steps. after takes the lanes' states.
func (r *round) stepsAlone(
	ctx context.Context, end int64, after *agree.Entry,
) (sum tally, err error) {
	from := r.progress.Step
	flip := false
	for index := from; index < end; index++ {
		r.plan(index)
		own, err := r.forwardBackward(ctx, index, after) // batch, forward, backward; clip
		if err == nil {
			_, err = r.ending.update(ctx, index, own)
		}
		if err != nil {
			return tally{}, fmt.Errorf("in the round's step %d: %w", index+1, err)
		}
		flip = flip || r.spoil.Flip
		sum.loss.add(own.loss.value() / float64(end-from))
		sum.norm.add(r.ending.mean() * own.norm.value() / float64(end-from))
		sum.nonfinite = max(sum.nonfinite, own.nonfinite)
		sum.stop, sum.regroup = own.stop, own.regroup // as they are at the end
	}
	r.spoil.Flip = flip
	return sum, nil
}

// ownTensors are what a rank changes by itself in a round: the parameters, and what the inner
// optimizer keeps.
func (r *round) ownTensors() [][]float32 { return r.tensors()[:1+r.innerSlots()] }

// undo implements stride. If it does not come to its end, because the device fails, forgetTorn
// drops the state.
func (r *round) undo() {
	for i, x := range r.ownTensors() {
		r.copyWithin(x, r.start[i])
	}
	r.torn = false
}

// sumTensor replaces a tensor, device memory, by its sum over the ranks.
func (r *round) sumTensor(ctx context.Context, tensor []float32) error {
	if r.cfg.HostMemory {
		return r.ring.Peers.AllReduce(ctx, tensor)
	}
	for len(tensor) > 0 {
		n := min(len(tensor), len(r.memory.Piece))
		r.dev.Download(r.memory.Piece[:n], tensor[:n])
		if err := r.ring.Peers.AllReduce(ctx, r.memory.Piece[:n]); err != nil {
			return err
		}
		r.dev.Upload(tensor[:n], r.memory.Piece[:n])
		tensor = tensor[n:]
	}
	return nil
}

// update implements stride: it makes the next round's parameters by the outer rule, or those of
// this round's start again if it is skipped. The norm is the mean of the steps' gradients' norms.
func (r *round) update(
	_ context.Context, _ int64, all tally,
) (norm float64, skipped bool, err error) {
	defer r.laps.end("outer update")
	norm, alone := all.norm.value(), r.averagesAlone()
	if all.nonfinite > 0 || !alone && !isFinite(r.dev.SumSquares(r.grads)) {
		r.undo()
		return norm, true, nil
	}
	if alone {
		return norm, false, nil
	}
	r.copyWithin(r.task.Params(), r.start[0])
	var momentum []float32
	if outer := r.slots.Own()[r.innerSlots():]; len(outer) > 0 {
		momentum = outer[0]
	}
	r.dev.Update(r.cfg.Local.update(), r.task.Params(), r.grads, momentum, nil)
	r.dev.Zero(r.task.Gradients()) // of which segments write only a part
	return norm, false, nil
}

func (r *round) close() {
	for _, s := range r.start {
		r.dev.Free(s)
	}
	r.start = nil
}

// missing is the loss of a step, or a round, of which some rank's part is not a number.
func missing(loss float64, nonfinite int) float64 {
	if nonfinite > 0 {
		return math.NaN()
	}
	return loss
}
