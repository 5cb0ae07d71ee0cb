package train

import (
	"context"
	"fmt"
	"math"
	"time"

	"rondo/model"
)

// step does the next step. All ranks do it at the same time. What they decide (to skip, to stop,
// to evaluate, to save), they decide from the step's number and from what the ring has summed, so
// that all decide alike. It returns true when the job is to stop after it.
func (t *Trainer) step(ctx context.Context) (stop bool, err error) {
	began := t.cfg.Now()
	index := t.progress.Step

	own, err := t.forwardBackward(ctx, index) // batch, forward, backward; clip, if each its own
	if err != nil {
		return false, err
	}
	all, err := t.exchange.sum(ctx, index, own) // reduce
	if err != nil {
		return false, err
	}
	norm := all.norm
	if !t.cfg.Clip.beforeRing() {
		norm = t.cfg.Clip.apply(t.dev, t.grads, 1) // clip, if the whole
	}
	rate := t.cfg.Schedule.at(index, t.cfg.Steps, t.progress.Plateau.Reductions)
	skipped := all.nonfinite > 0 || !isFinite(norm)
	if skipped {
		err = t.healStates()
	} else {
		t.update(rate)
	}
	if err != nil {
		return false, err
	}
	loss := all.loss
	if all.nonfinite > 0 {
		loss = math.NaN() // some rank's part of it is missing
	}
	t.progress.record(t.stepsPerEpoch, loss, skipped)
	t.observe(StepReport{Loss: loss, LearningRate: rate, GradientNorm: norm, Skipped: skipped,
		TokensPerSecond: t.speed(began)})
	if skipped {
		if err := t.noteSkipped(all.nonfinite); err != nil {
			return false, err
		}
	}
	stop = all.stop > 0
	return stop, t.afterStep(ctx, stop)
}

// forwardBackward reads the batch, and leaves this rank's part of the global gradient in the
// model. The mean over all G*T targets is the sum of the ranks' parts. Where each rank clips its
// own gradient, that is of the mean over its own B*T targets, weighted by B/G afterwards.
func (t *Trainer) forwardBackward(ctx context.Context, index int64) (tally, error) {
	b, err := t.ahead.next(ctx)
	if err != nil {
		return tally{}, fmt.Errorf("reading the batch: %w", err)
	}
	if t.batches.Reset(index) {
		t.segment.ZeroState()
	}
	share := float64(t.count) / float64(t.all)
	divisor := float64(t.all * t.cfg.BPTT) // G*T
	if t.cfg.Clip.beforeRing() {
		divisor *= share // B*T
	}
	sum, err := t.segment.Run(model.SegmentInput{Inputs: b.inputs, Targets: b.targets,
		Scale: float32(1 / divisor), Step: index, Lanes: t.laneNumbers})
	if err != nil {
		return tally{}, err
	}
	own := tally{loss: sum / float64(t.all*t.cfg.BPTT)}
	if t.cfg.Clip.beforeRing() {
		own.norm = share * t.cfg.Clip.apply(t.dev, t.grads, share)
	}
	if !exactable(own.loss) || !isFinite(own.norm) {
		own = tally{nonfinite: 1}
		t.dev.Zero(t.grads) // so that the sum over the ranks is of numbers
	}
	if t.stopping.Load() {
		own.stop = 1
	}
	return own, nil
}

// update applies the optimizer to the summed gradient.
func (t *Trainer) update(rate float64) {
	var slots [2][]float32
	copy(slots[:], t.slots)
	t.dev.Update(t.cfg.Optimizer.update(t.progress.Updates+1, rate), t.model.Params(), t.grads,
		slots[0], slots[1])
}

// healStates sets the state of every lane that is not finite to zero, after a step that was
// skipped; the others carry on. Each lane is judged by itself, so that the ranks' number does not
// matter. To go back to the state before the step would meet the same overflow again.
func (t *Trainer) healStates() error {
	if err := t.segment.State(t.states); err != nil {
		return err
	}
	healed := false
	for b := range t.count {
		if lane := t.states[b*t.laneSize:][:t.laneSize]; !allFinite(lane) {
			clear(lane)
			healed = true
		}
	}
	if !healed {
		return nil
	}
	return t.segment.SetState(t.states)
}

// noteSkipped tells of a step that was skipped, and ends the job after too many in a row.
func (t *Trainer) noteSkipped(ranks int) error {
	p := &t.progress
	if p.NonfiniteRun >= t.cfg.NonfiniteLimit {
		return fmt.Errorf("the loss or the gradient was not finite in %d steps in a row, which is "+
			"--nonfinite-limit: lower --lr, or lower --clip (0 is no clipping)", p.NonfiniteRun)
	}
	who := "the summed gradient is not finite"
	if ranks > 0 {
		who = fmt.Sprintf("the loss or the gradient is not finite on %d of %d ranks", ranks,
			len(t.cfg.LaneEnds))
	}
	t.cfg.Observer.Notice(fmt.Sprintf("step %d was skipped: %s (%d in a row, at most %d)", p.Step,
		who, p.NonfiniteRun, t.cfg.NonfiniteLimit-1))
	return nil
}

// speed returns the tokens of a step by the time since it began, and counts them for the median.
func (t *Trainer) speed(began time.Time) float64 {
	seconds := t.cfg.Now().Sub(began).Seconds()
	if seconds <= 0 {
		return 0
	}
	rate := float64(t.all*t.cfg.BPTT) / seconds
	t.rates.add(rate)
	return rate
}

// observe fills in what the progress says, and tells the Observer.
func (t *Trainer) observe(r StepReport) {
	p := &t.progress
	r.Step, r.Steps, r.Epoch, r.EpochLoss = p.Step, t.cfg.Steps, p.Epoch, p.EpochLoss()
	t.cfg.Observer.Step(r)
}

// afterStep does what is due between two steps: evaluate, save, sample. A stop is not made to wait
// for an evaluation or a sample that only the job's end would bring.
func (t *Trainer) afterStep(ctx context.Context, stop bool) error {
	step := t.progress.Step
	last := step == t.cfg.Steps
	every := func(interval int64) bool { return interval > 0 && step%interval == 0 }

	if evalDue := every(t.cfg.EvalEvery); t.cfg.Evaluation != nil && (evalDue || last) {
		report, err := t.evaluate(ctx)
		if err != nil {
			return err
		}
		t.evaluated = &report
		t.cfg.Observer.Evaluated(report)
		if evalDue {
			t.progress.Plateau.measure(report.Loss, t.cfg.Schedule.Patience)
		}
	}
	if t.cfg.Evaluation == nil && step%t.stepsPerEpoch == 0 {
		t.progress.Plateau.measure(t.progress.EpochLoss(), t.cfg.Schedule.Patience)
	}
	if t.cfg.Save && (every(t.cfg.SaveEvery) || last || stop) {
		if err := t.save(ctx); err != nil {
			return err
		}
	}
	if t.cfg.Sample != nil && t.cfg.Rank == 0 && (every(t.cfg.SampleEvery) || last) {
		return t.sample(ctx)
	}
	return nil
}

// sample has the model write text. A sample that fails is not worth a job.
func (t *Trainer) sample(ctx context.Context) error {
	text, err := t.cfg.Sample(ctx, t.progress.Step)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		t.cfg.Observer.Notice(fmt.Sprintf("step %d: no sample: %v", t.progress.Step, err))
	default:
		t.cfg.Observer.Sampled(t.progress.Step, text)
	}
	return nil
}
