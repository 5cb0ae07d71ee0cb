package train

import (
	"context"
	"fmt"

	"rondo/train/agree"
)

// stride is what commits at once: a step, or a round of them.
type stride interface {
	name() string // for people: its last step's number follows
	// end is the last step of the stride that begins after a step.
	end(from int64) int64
	// prepare readies the stride that begins after a step. rate is its last step's learning rate,
	// and sumRate the rate by which the ranks' sum changes the parameters.
	prepare(from int64) (rate, sumRate float64)
	// compute leaves this rank's part of what the ranks sum in the gradient's place. after takes
	// the lanes' states.
	compute(ctx context.Context, end int64, after *agree.Entry) (own tally, err error)
	// update changes the parameters by the sum, or leaves them as they were before the stride.
	update(ctx context.Context, end int64, all tally) (norm float64, skipped bool, err error)
	// undo takes back what compute has changed, before the update.
	undo()
	close()
}

// step does what commits next. All ranks do it at the same time. What they decide (to skip, to
// stop,
// to evaluate, to save), they decide from the step's number and from what the ring has summed, so
// that all decide alike. Until the ring has summed, nothing of the step is in what another ring
// would go on from: the parameters, what the optimizer keeps, the progress, and the lanes' states
// after the step before, which laneStates keeps. It returns true when the ranks are to leave the
// ring after it. Whatever ends it between its update and its commit leaves no state.
func (t *Trainer) step(ctx context.Context) (leave bool, err error) {
	defer t.forgetTorn()
	from := t.progress.Step
	end := t.stride.end(from)
	rate, sumRate := t.stride.prepare(from)
	if err := t.beginSum(ctx, end, sumRate); err != nil {
		return false, err
	}
	began := t.cfg.Now()
	t.laps.begin()
	states := t.laneStates.Open(version{Step: end, Ring: t.ring.Generation}, from)
	all, err := t.computeAndSum(ctx, end, states)
	if err != nil {
		t.stride.undo()
		return false, err
	}
	t.laps.end("exposed to the ring")
	exposed := t.exchange.exposed()
	norm, skipped, err := t.stride.update(ctx, end, all)
	if err != nil {
		return false, err
	}
	if !skipped {
		t.flip()
	} else if err := t.healStates(states); err != nil {
		return false, err
	}
	loss := missing(all.loss.value(), all.nonfinite)
	t.commit(end, loss, skipped, all)
	ended := t.cfg.Now()
	compute := ended.Sub(began) - exposed
	t.roll.Count(compute)
	speed := t.speed(ended.Sub(began), end-from)
	t.laps.whole(t.stride.name(), end, began, ended, speed)
	t.observe(StepReport{Loss: loss, LearningRate: rate, GradientNorm: norm, Skipped: skipped,
		TokensPerSecond: speed, Times: StepTimes{Compute: compute,
			Exposed: exposed, Waiting: waited(all.slowest, t.exchange.took, exposed)}})
	return all.regroup > 0, t.afterCommit(ctx, end, all.nonfinite, skipped)
}

// computeAndSum computes what this rank gives to the sum, and sums it, with the lanes' states
// ahead.
func (t *Trainer) computeAndSum(
	ctx context.Context, end int64, states *agree.Entry,
) (all tally, err error) {
	own, err := t.stride.compute(ctx, end, states)
	if err != nil {
		return tally{}, err
	}
	ahead, err := t.recordStates(end-1, states) // for whoever may need them
	if err != nil {
		return tally{}, err
	}
	return t.exchange.meet(ctx, end-1, own, ahead)
}

// oneStep is a stride of one step.
type oneStep struct{ *batch }

func (oneStep) name() string         { return "step" }
func (oneStep) end(from int64) int64 { return from + 1 }
func (oneStep) undo()                {}
func (oneStep) close()               {}

func (s oneStep) prepare(from int64) (rate, sumRate float64) {
	rate = s.plan(from)
	return rate, rate
}

// compute implements stride: read, forward, backward; clip, if each rank clips its own.
func (s oneStep) compute(ctx context.Context, end int64, after *agree.Entry) (tally, error) {
	return s.forwardBackward(ctx, end-1, after)
}

// update implements stride: clip, if the sum is clipped; update.
func (s oneStep) update(
	ctx context.Context, end int64, all tally,
) (norm float64, skipped bool, err error) {
	norm, err = s.ending.update(ctx, end-1, all)
	return norm, all.nonfinite > 0 || !isFinite(norm), err
}

// afterCommit tells of what was committed, up to a step, whoever is to know, and does what is due.
func (t *Trainer) afterCommit(ctx context.Context, step int64, ranks int, skipped bool) error {
	if skipped {
		if err := t.noteSkipped(ranks); err != nil {
			return err
		}
	}
	if t.cfg.Ledger != nil {
		if err := t.cfg.Ledger.Commit(step); err != nil {
			return fmt.Errorf("noting the step as done: %w", err)
		}
	}
	return t.afterStep(ctx)
}

// beginSum begins the sum of a step, from 1.
func (t *Trainer) beginSum(ctx context.Context, step int64, rate float64) error {
	t.laps.begin()
	t.exchange.sum.Resume(t.progress.Step, t.committed, t.progress.NonfiniteRun > 0)
	met, err := t.exchange.sum.Begin(ctx, step, rate)
	if met {
		t.exchange.met = t.cfg.Now()
		t.laps.end("measuring the ring")
	}
	return err
}

// commit makes the steps up to end, which were computed, the last that are done. Each counts with
// the mean of their losses, and all of them as one in NonfiniteRun. What is due after them is
// pending.
func (t *Trainer) commit(end int64, loss float64, skipped bool, all tally) {
	run := t.progress.NonfiniteRun
	for t.progress.Step < end {
		t.progress.record(t.epoch(t.progress.Step), loss, skipped)
	}
	if skipped {
		t.progress.NonfiniteRun = run + 1
	}
	t.progress.Held = t.next.Held
	t.committed, t.pending, t.stopped = t.ring.Generation, true, all.stop > 0
	t.torn = false
	t.slots.Commit()
}

// recordStates stores the states of this rank's lanes after the step in e, unless the passes have.
// It returns the carry: states to send to the successor, and room for the predecessor's. Where all
// states are zero before the next step, the carry is empty.
func (b *batch) recordStates(index int64, e *agree.Entry) (carry, error) {
	if b.task.Reset(b.position(index + 1)) {
		return carry{}, nil
	}
	own := b.ranks.Lanes(b.ring.Rank)
	ahead := carry{out: e.Lanes(own)}
	if len(b.groups) == 1 {
		if err := b.seat.State(ahead.out); err != nil {
			return carry{}, err
		}
	}
	e.Know(own)
	if n := len(b.ring.LaneEnds); n > 1 {
		before := b.ranks.Lanes((b.ring.Rank + n - 1) % n)
		ahead.in = e.Lanes(before)
		e.Know(before) // no rank completes the step before all have their predecessor's
	}
	return ahead, nil
}

// healStates sets the state of every lane that is not finite to zero after a step that was skipped.
// The state before the step would overflow in the same way again.
func (b *batch) healStates(e *agree.Entry) error {
	own := b.ranks.Lanes(b.ring.Rank)
	if !e.Heal(own) || len(b.groups) > 1 { // groups read laneStates
		return nil
	}
	return b.seat.SetState(e.Lanes(own))
}

// afterStep does what is due between two steps: the roll call, evaluating, saving, sampling. A stop
// is not made to wait for an evaluation or a sample that only the job's end would bring. If it is
// broken off, the next ring does all of it again: the progress changes at its end only.
func (t *Trainer) afterStep(ctx context.Context) error {
	step := t.progress.Step
	last := step == t.cfg.Steps
	every := func(interval int64) bool { return t.cfg.Local.due(step, interval) }
	after := t.progress

	t.laps.begin()
	epochEnds := t.endsEpoch(step)
	evalDue := t.task.Evaluates() &&
		(every(t.cfg.EvalEvery) || t.cfg.EvalEvery == 0 && epochEnds)
	saveDue := t.cfg.Save && (every(t.cfg.SaveEvery) || last || t.stopped)
	mayBeBest := t.cfg.Save && evalDue && (t.cfg.SaveBest || t.cfg.EarlyStop > 0)
	if every(t.cfg.CheckEvery) {
		if err := t.rollCall(ctx); err != nil {
			return err
		}
		t.laps.end("roll call")
	} else if saveDue || mayBeBest { // after a split, all go back to what was saved
		if err := t.alike(ctx); err != nil {
			return err
		}
	}
	if evalDue || last && t.task.Evaluates() {
		best, err := t.measure(ctx, &after, evalDue)
		if err != nil {
			return err
		}
		last = last || t.endsEarly(&after)
		saveDue = saveDue || t.cfg.Save && (last || best && t.cfg.SaveBest)
	}
	if !t.task.Evaluates() && epochEnds {
		after.Plateau.measure(t.progress.EpochLoss(), t.cfg.Schedule.Patience)
	}
	if saveDue {
		if err := t.save(ctx, after); err != nil {
			return err
		}
		t.laps.end("checkpoint")
	}
	if every(t.cfg.SampleEvery) || last {
		if err := t.sample(ctx, saveDue); err != nil {
			return err
		}
	}
	t.progress, t.pending = after, false
	t.tellUnrecorded()
	return nil
}

// sample has rank 0's model write text. The others, which may have waited for it to save, meet it
// before that, so that they wait anew. A sample that fails is not worth a job.
func (t *Trainer) sample(ctx context.Context, waited bool) error {
	if waited {
		if _, err := agree.Gather(ctx, t.ranks, t.progress.Step); err != nil {
			return err
		}
	}
	if t.cfg.Sample == nil || t.ring.Rank != 0 {
		return nil
	}
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
