package train

import (
	"context"
	"fmt"
	"time"

	"rondo/train/agree"
)

// step does the next step. All ranks do it at the same time. What they decide (to skip, to stop,
// to evaluate, to save), they decide from the step's number and from what the ring has summed, so
// that all decide alike. Until the ring has summed, nothing of the step is in what another ring
// would go on from: the parameters, what the optimizer keeps, the progress, and the lanes' states
// after the step before, which laneStates keeps. It returns true when the ranks are to leave the
// ring after it. Whatever ends it between its update and its commit leaves no state.
func (t *Trainer) step(ctx context.Context) (leave bool, err error) {
	defer t.forgetTorn()
	index := t.progress.Step
	rate := t.plan(index)
	if err := t.beginSum(ctx, index+1, rate); err != nil {
		return false, err
	}
	began := t.cfg.Now()
	t.laps.begin()

	states := t.laneStates.Open(version{Step: index + 1, Ring: t.ring.Generation}, index)
	own, err := t.forwardBackward(ctx, index, states) // batch, forward, backward; clip, if its own
	if err != nil {
		return false, err
	}
	ahead, err := t.recordStates(index, states) // the lanes' states, for whoever may need them
	if err != nil {
		return false, err
	}
	all, err := t.exchange.meet(ctx, index, own, ahead) // sum
	if err != nil {
		return false, err
	}
	t.laps.end("exposed to the ring")
	exposed := t.exchange.exposed()
	norm, err := t.ending.update(ctx, index, all) // clip, if the whole; update
	if err != nil {
		return false, err
	}
	skipped := all.nonfinite > 0 || !isFinite(norm)
	if !skipped {
		t.flip()
	} else if err := t.healStates(states); err != nil {
		return false, err
	}
	loss := missing(all.loss.value(), all.nonfinite)
	t.commit(index+1, loss, skipped, all)
	ended := t.cfg.Now()
	compute := ended.Sub(began) - exposed
	t.roll.Count(compute)
	speed := t.speed(ended.Sub(began), 1)
	t.laps.whole("step", index+1, began, ended, speed)
	t.observe(StepReport{Loss: loss, LearningRate: rate, GradientNorm: norm, Skipped: skipped,
		TokensPerSecond: speed, Times: StepTimes{Compute: compute,
			Exposed: exposed, Waiting: waited(all.slowest, t.exchange.took, exposed)}})
	return all.regroup > 0, t.afterCommit(ctx, index+1, all.nonfinite, skipped)
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

// commit makes the steps up to end, which were computed, the last that are done: one, or those of a
// round. What is due after them is pending.
func (t *Trainer) commit(end int64, loss float64, skipped bool, all tally) {
	for t.progress.Step < end {
		t.progress.record(t.epoch(t.progress.Step), loss, skipped)
	}
	t.progress.Held = t.next.Held
	t.committed, t.pending, t.stopped = t.ring.Generation, true, all.stop > 0
	t.torn = false
	t.slots.Commit()
}

// tellUnrecorded tells once that steps, or evaluations or samples, take longer than they should for
// as long as the job lasts.
func (t *Trainer) tellUnrecorded() {
	if err := t.task.Unrecorded(); err != nil && !t.unrecorded {
		t.unrecorded = true
		t.cfg.Observer.OwnNotice(fmt.Sprintf("some work takes longer, since the device has not "+
			"recorded it: %v", err))
	}
}

// recordStates stores the states of this rank's lanes after the step in e, unless the passes have.
// It returns the carry: states to send to the successor, and room for the predecessor's. Where all
// states are zero before the next step, the carry is empty.
func (t *Trainer) recordStates(index int64, e *agree.Entry) (carry, error) {
	if t.task.Reset(t.position(index + 1)) {
		return carry{}, nil
	}
	own := t.ranks.Lanes(t.ring.Rank)
	ahead := carry{out: e.Lanes(own)}
	if len(t.groups) == 1 {
		if err := t.seat.State(ahead.out); err != nil {
			return carry{}, err
		}
	}
	e.Know(own)
	if n := len(t.ring.LaneEnds); n > 1 {
		before := t.ranks.Lanes((t.ring.Rank + n - 1) % n)
		ahead.in = e.Lanes(before)
		e.Know(before) // no rank completes the step before all have their predecessor's
	}
	return ahead, nil
}

// healStates sets the state of every lane that is not finite to zero after a step that was skipped.
// The state before the step would overflow in the same way again.
func (t *Trainer) healStates(e *agree.Entry) error {
	own := t.ranks.Lanes(t.ring.Rank)
	if !e.Heal(own) || len(t.groups) > 1 { // groups read laneStates
		return nil
	}
	return t.seat.SetState(e.Lanes(own))
}

// NonfiniteError ends a job that has gone astray: every rank has it at the same step.
type NonfiniteError struct {
	Steps  int64 // or rounds
	Rounds bool
}

func (e *NonfiniteError) Error() string {
	what := "steps"
	if e.Rounds {
		what = "rounds (--sync-every)"
	}
	return fmt.Sprintf("the loss or the gradient was not finite in %d %s in a row, which is "+
		"--nonfinite-limit: lower --lr, or lower --clip (0 is no clipping)", e.Steps, what)
}

// noteSkipped tells of a step that was skipped, and ends the job after too many in a row.
func (t *Trainer) noteSkipped(ranks int) error {
	p := &t.progress
	if p.NonfiniteRun >= t.cfg.NonfiniteLimit {
		return &NonfiniteError{Steps: p.NonfiniteRun, Rounds: t.cfg.Local.on()}
	}
	who := "the summed gradient is not finite"
	if ranks > 0 {
		who = fmt.Sprintf("the loss or the gradient is not finite on %d of %d ranks", ranks,
			len(t.ring.LaneEnds))
	}
	what := "step"
	if t.cfg.Local.on() {
		what = "the round up to step"
	}
	t.cfg.Observer.Notice(fmt.Sprintf("%s %d was skipped: %s (%d in a row, at most %d)", what,
		p.Step, who, p.NonfiniteRun, t.cfg.NonfiniteLimit-1))
	return nil
}

// speed returns the tokens of some steps by the time that they took, and counts it for the median.
func (t *Trainer) speed(took time.Duration, steps int64) float64 {
	seconds := took.Seconds()
	if seconds <= 0 {
		return 0
	}
	rate := float64(steps) * float64(t.targets()) / seconds
	t.rates.add(rate)
	return rate
}

// observe fills in what the progress says, and tells the Observer.
func (t *Trainer) observe(r StepReport) {
	p := &t.progress
	r.Step, r.Steps, r.Epoch, r.EpochLoss = p.Step, t.cfg.Steps, p.Epoch, p.EpochLoss()
	t.cfg.Observer.Step(r)
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
