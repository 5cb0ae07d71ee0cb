package train

import (
	"context"
	"fmt"
	"math"

	"rondo/train/agree"
	"rondo/train/optim"
)

// round is a commitUnit of several steps: see Local. Until the ranks have summed at its end,
// another ring would resume from the round's start: copies of the tensors, the progress, and the
// lane states in laneStates.
type round struct {
	*batch
	start [][]float32 // the tensors at the round's start, device memory
	share float64     // this rank's weight in a mean over the ranks: see weigh
}

func (*round) name() string { return "round up to step" }

func (r *round) end(from int64) int64 { return r.cfg.Local.End(from, r.cfg.Steps) }

// prepare implements commitUnit. The outer rule's rate is the same in all rounds.
func (r *round) prepare(from int64) (rate, sumRate float64) {
	last := r.end(from) - 1
	return r.cfg.rate(last, r.progress.Plateau.Reductions), 1
}

// compute implements commitUnit. It leaves the outer gradient in the gradient's memory, and
// averages the inner slots over the ranks. A single rank with OuterAverage needs neither: its
// parameters already are the mean.
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
	if err := context.Cause(ctx); err != nil { // a single rank has no collective that would fail
		return tally{}, err
	}
	if r.averagesAlone() {
		return own, nil
	}
	if r.ring.Peers != nil {
		began := r.cfg.Now()
		for _, slot := range r.ownTensors()[1:] {
			r.dev.Scale(slot, float32(r.share))
			if err := r.sumTensor(ctx, slot); err != nil {
				return tally{}, fmt.Errorf("averaging what --optimizer keeps: %w", err)
			}
		}
		r.exchange.waited = r.cfg.Now().Sub(began)
	}
	r.laps.end("averaging the slots")
	r.copyWithin(r.grads, r.task.Params())
	r.dev.Scale(r.grads, -1)
	r.dev.Add(r.grads, r.start[0])
	r.dev.Scale(r.grads, float32(r.share))
	if own.nonfinite > 0 || !isFinite(r.dev.SumSquares(r.grads)) {
		own = tally{nonfinite: 1, stop: own.stop, regroup: own.regroup}
		r.zeroGradient()
	}
	r.laps.end("outer gradient")
	return own, nil
}

// averagesAlone reports whether this rank's parameters are already the next round's.
func (r *round) averagesAlone() bool {
	return r.ring.Peers == nil && r.cfg.Local.Outer == optim.OuterAverage
}

// stepsAlone runs the round's steps, up to end, on this rank's lanes alone. It returns the mean
// tally of these steps. The lanes' states go to after.
func (r *round) stepsAlone(
	ctx context.Context, end int64, after *agree.Entry,
) (sum tally, err error) {
	from := r.progress.Step
	r.weigh(from, end)
	flip := false
	for index := from; index < end; index++ {
		r.plan(index)
		own, err := r.forwardBackward(ctx, index, after) // batch, forward, backward; clip
		if err == nil {
			_, err = r.path.update(ctx, index, own)
		}
		if err != nil {
			return tally{}, fmt.Errorf("in the round's step %d: %w", index+1, err)
		}
		flip = flip || r.spoil.Flip
		sum.loss.Add(own.loss.Value() / float64(end-from))
		sum.norm.Add(r.share * own.norm.Value() / float64(end-from))
		sum.nonfinite = max(sum.nonfinite, own.nonfinite)
		sum.stop, sum.regroup = own.stop, own.regroup // the latest request
	}
	r.spoil.Flip = flip
	return sum, nil
}

// weigh computes this rank's part of the targets of the steps [from, end).
func (r *round) weigh(from, end int64) {
	var own, all int64
	for index := from; index < end; index++ {
		own += r.targets(index, r.ownLanes())
		all += r.targets(index, r.whole())
	}
	r.share = float64(own) / float64(all)
}

// ownTensors returns what a rank changes by itself in a round: the parameters and the inner
// optimizer's slots.
func (r *round) ownTensors() [][]float32 { return r.tensors()[:1+r.innerSlots()] }

// undo implements commitUnit. If the device fails during it, forgetTorn drops the state.
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

// update implements commitUnit. It computes the next parameters by the outer rule, or restores the
// round's start if the round is skipped. norm is the mean of the steps' gradient norms.
func (r *round) update(
	_ context.Context, _ int64, all tally,
) (norm float64, skipped bool, err error) {
	defer r.laps.end("outer update")
	norm, alone := all.norm.Value(), r.averagesAlone()
	if all.nonfinite > 0 || !alone && !isFinite(r.dev.SumSquares(r.grads)) {
		r.undo()
		r.dev.Zero(r.task.Gradients()) // it has the sum, and segments do not write all of it
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
	r.dev.Update(r.cfg.Local.Update(), r.task.Params(), r.grads, momentum, nil)
	r.dev.Zero(r.task.Gradients()) // segments do not write all of them
	return norm, false, nil
}

func (r *round) close() {
	for _, s := range r.start {
		r.dev.Free(s)
	}
	r.start = nil
}

// lossOrNaN returns NaN if a rank's part of the loss is not finite.
func lossOrNaN(loss float64, nonfinite int) float64 {
	if nonfinite > 0 {
		return math.NaN()
	}
	return loss
}
