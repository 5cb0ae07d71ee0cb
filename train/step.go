package train

import (
	"context"
	"fmt"

	"rondo/train/agree"
)

// Run trains in the joined ring until the last step, a stop, a regroup or an error. It is called
// once per Join. When ctx ends, Run returns at once, between two steps or from a wait, and saves
// nothing.
func (t *Trainer) Run(ctx context.Context) (Result, error) {
	if err := t.finish(ctx); err != nil {
		return t.result(false), fmt.Errorf("step %d: %w", t.progress.Step, err)
	}
	if t.done() {
		return t.result(false), t.flush(ctx)
	}
	defer t.seat.Read(ctx, t.spans(t.progress.Step, t.cfg.Steps))()
	regroup := false
	for !regroup && !t.done() {
		index := t.progress.Step
		err := context.Cause(ctx)
		if err == nil {
			regroup, err = t.step(ctx)
		}
		if err != nil {
			return t.result(false), fmt.Errorf("step %d: %w", index+1, err)
		}
	}
	if !t.done() { // give every rank all lanes and slots, since any may be in the next ring
		err := t.lastStates().Gather(ctx, t.ranks)
		if err == nil {
			err = t.slots.Gather(ctx, true)
		}
		if err != nil {
			return t.result(false), fmt.Errorf("step %d: %w", t.progress.Step, err)
		}
		return t.result(true), nil
	}
	return t.result(false), t.flush(ctx)
}

func (t *Trainer) done() bool {
	return t.stopped || t.progress.Step >= t.cfg.Steps || t.endsEarly(&t.progress)
}

// finish does the work that an earlier ring left undone after its last step.
func (t *Trainer) finish(ctx context.Context) error {
	if t.pending {
		return t.afterStep(ctx)
	}
	if t.saveAgain {
		t.saveAgain = false
		if err := t.compareDigests(ctx); err != nil {
			return err
		}
		return t.save(ctx, t.progress)
	}
	return nil
}

// commitUnit is the work of one commit: a step, or a round of steps.
type commitUnit interface {
	name() string // the unit's name in messages, before its last step's number
	// end returns the last step of the unit that begins after step from.
	end(from int64) int64
	// prepare sets up the unit that begins after step from. It returns the learning rate of the
	// unit's last step and the rate at which the ranks' sum changes the parameters.
	prepare(from int64) (rate, sumRate float64)
	// compute leaves this rank's contribution to the sum in the gradient's memory. It stores the
	// lanes' new states in after.
	compute(ctx context.Context, end int64, after *agree.Entry) (own tally, err error)
	// update applies the sum to the parameters. A skipped unit leaves them as they were before it.
	update(ctx context.Context, end int64, all tally) (norm float64, skipped bool, err error)
	// undo reverts what compute has changed. It is not called after the update.
	undo()
	close()
}

// step runs the next unit: a step or a round. All ranks run it together. They decide whether to
// skip, stop, evaluate or save from the step number and the ring's sums, so all decide alike.
//
// Until the ring has summed, the state that another ring would resume from does not change:
// parameters, optimizer slots, progress, and the previous step's lane states in laneStates. An
// error or panic between the update and the commit drops the state. leave is true when the ranks
// must leave the ring after this step.
func (t *Trainer) step(ctx context.Context) (leave bool, err error) {
	defer t.forgetTorn()
	from := t.progress.Step
	end := t.unit.end(from)
	rate, sumRate := t.unit.prepare(from)
	if err := t.beginSum(ctx, end, sumRate); err != nil {
		return false, err
	}
	began := t.cfg.Now()
	t.laps.begin()
	states := t.laneStates.Open(version{Step: end, Ring: t.ring.Generation}, from)
	all, err := t.computeAndSum(ctx, end, states)
	if err != nil {
		t.unit.undo()
		return false, err
	}
	t.exchange.postponeStop(&all)
	t.laps.end("exposed to the ring")
	exposed := t.exchange.exposed()
	norm, skipped, err := t.unit.update(ctx, end, all)
	if err != nil {
		return false, err
	}
	if !skipped {
		t.flipBit()
	} else if err := t.healStates(states); err != nil {
		return false, err
	}
	loss := lossOrNaN(all.loss.Value(), all.nonfinite)
	if !skipped || t.cfg.RandomStep {
		averager{t.core}.addToAverage(end)
	}
	t.commit(end, loss, skipped, all)
	ended := t.cfg.Now()
	compute := ended.Sub(began) - exposed
	t.roll.Count(compute)
	tokens := t.tokens(from, end)
	speed := t.speed(ended.Sub(began), tokens)
	t.laps.whole(t.unit.name(), end, began, ended, speed)
	t.observe(StepReport{Loss: loss, LearningRate: rate, GradientNorm: norm, Skipped: skipped,
		Tokens: float64(tokens) / float64(end-from), TokensPerSecond: speed,
		Times: StepTimes{Compute: compute, Exposed: exposed,
			Waiting: waited(all.slowest, t.exchange.took, exposed)}})
	return all.regroup > 0, t.afterCommit(ctx, end, all, skipped)
}

// computeAndSum computes this rank's contribution and sums it over the ranks. The lanes' states
// travel ahead of the gradient.
func (t *Trainer) computeAndSum(
	ctx context.Context, end int64, states *agree.Entry,
) (all tally, err error) {
	own, err := t.unit.compute(ctx, end, states)
	if err != nil {
		return tally{}, err
	}
	ahead, err := t.recordStates(end-1, states) // the successor keeps them in case this rank dies
	if err != nil {
		return tally{}, err
	}
	return t.exchange.sumOverRanks(ctx, end-1, own, ahead)
}

// oneStep is the commitUnit of a single step.
type oneStep struct{ *batch }

func (oneStep) name() string         { return "step" }
func (oneStep) end(from int64) int64 { return from + 1 }
func (oneStep) undo()                {}
func (oneStep) close()               {}

func (s oneStep) prepare(from int64) (rate, sumRate float64) {
	rate = s.plan(from)
	return rate, rate
}

// compute implements commitUnit: read, forward, backward, and clip if each rank clips its own
// gradient.
func (s oneStep) compute(ctx context.Context, end int64, after *agree.Entry) (tally, error) {
	return s.forwardBackward(ctx, end-1, after)
}

// update implements commitUnit: clip if the sum is clipped, then update.
func (s oneStep) update(
	ctx context.Context, end int64, all tally,
) (norm float64, skipped bool, err error) {
	norm, err = s.path.update(ctx, end-1, all)
	skipped = all.nonfinite > 0 || !isFinite(norm)
	if skipped && err == nil && s.cfg.RandomStep {
		s.randomStep(end)
	}
	return norm, skipped, err
}

// afterCommit reports a committed step to the Observer and the Ledger, and does the work that is
// due.
func (t *Trainer) afterCommit(ctx context.Context, step int64, all tally, skipped bool) error {
	if t.cfg.Ledger != nil {
		t.laps.begin()
		done := Commit{Step: step, Digest: t.Digest(), Skipped: skipped, Nonfinite: all.nonfinite,
			Random: skipped && t.cfg.RandomStep}
		if all.nonfinite == 1 {
			done.Culprit = all.culprit
		}
		if err := t.cfg.Ledger.Commit(done); err != nil {
			return fmt.Errorf("noting the step as done: %w", err)
		}
		t.laps.end("audit log")
	}
	if skipped {
		if err := t.reportSkipped(all); err != nil {
			return t.forgetIfCorrupt(err)
		}
	}
	return t.afterStep(ctx)
}

// beginSum starts the sum of a step, from 1.
func (t *Trainer) beginSum(ctx context.Context, step int64, rate float64) error {
	t.laps.begin()
	t.exchange.waited = 0
	t.exchange.sum.Resume(t.progress.Step, t.committed, t.progress.NonfiniteRun > 0)
	keeper := t.exchange.keeper()
	if keeper != nil {
		t.exchange.sendsAll = t.exchange.stops || t.maySave(step)
		t.exchange.stops = false
		if t.exchange.sendsAll {
			keeper.SendAll()
		}
	}
	measured, err := t.exchange.sum.Begin(ctx, step, rate)
	if keeper != nil && t.momentumGone {
		if m := keeper.OldMomentum(); m != nil {
			t.dev.Download(m, t.ownSlots()[0])
		}
	}
	if measured {
		t.exchange.lastSum = t.cfg.Now()
		t.laps.end("measuring the ring")
		if c, cuts := t.exchange.sum.(Cutter); cuts {
			t.progress.Cut = Cut{Ranks: int64(t.exchange.ranks), Least: c.Cut()}
		}
	}
	return err
}

// commit records the steps up to end as done. Each counts with their mean loss. In NonfiniteRun
// they count as one. The work due after them is pending from here on.
func (t *Trainer) commit(end int64, loss float64, skipped bool, all tally) {
	run := t.progress.NonfiniteRun
	for t.progress.Step < end {
		t.progress.record(t.epoch(t.progress.Step), loss, skipped)
	}
	if skipped && t.cfg.RandomStep {
		t.progress.Updates++
		t.progress.Random++
	}
	if skipped {
		t.progress.NonfiniteRun = run + 1
	}
	t.progress.Commits++
	t.progress.Held = t.next.Held
	if p, pauses := t.exchange.sum.(Pauser); pauses {
		t.progress.Pause = p.Pause()
	}
	t.committed, t.pending, t.stopped = t.ring.Generation, true, all.stop > 0
	t.torn = false
	t.slots.Commit()
}

// recordStates stores this rank's lane states after the step in e, unless the passes have stored
// them. It returns the carry: states to send to the successors, and memory for those that come.
// The carry is empty if all states are zero before the next step.
func (b *batch) recordStates(index int64, e *agree.Entry) (carry, error) {
	if b.task.Reset(b.position(index + 1)) {
		return carry{}, nil
	}
	own := b.ranks.Lanes(b.ring.Rank)
	if len(b.groups) == 1 {
		if err := b.seat.State(e.Lanes(own)); err != nil {
			return carry{}, err
		}
	}
	e.Know(own)
	return b.carry(e), nil
}

// carry returns the states to send in each hop, and the memory for those that arrive. A rank
// completes the step only if all of them have arrived on every rank, so they count as known.
func (b *batch) carry(e *agree.Entry) (c carry) {
	n := len(b.ring.LaneEnds)
	for hop := range b.ring.hops() { // out are the states of the rank hop places before this one
		from, before := mod(b.ring.Rank-hop, n), mod(b.ring.Rank-hop-1, n)
		var out, in []float32
		if b.ring.reach(from) > hop {
			out = e.Lanes(b.ranks.Lanes(from))
		}
		if b.ring.reach(before) > hop {
			lanes := b.ranks.Lanes(before)
			in = e.Lanes(lanes)
			e.Know(lanes)
		}
		c.out, c.in = append(c.out, out), append(c.in, in)
	}
	return c
}

func mod(a, n int) int { return (a%n + n) % n }

// healStates zeroes the state of each lane that is not finite, after a skipped step. The state
// before the step would overflow in the same way again.
func (b *batch) healStates(e *agree.Entry) error {
	own := b.ranks.Lanes(b.ring.Rank)
	if !e.Heal(own) || len(b.groups) > 1 { // groups read laneStates
		return nil
	}
	return b.seat.SetState(e.Lanes(own))
}

// afterStep does the work due between two steps: roll call, evaluation, checkpoint, sample. A stop
// skips the evaluation and the sample that only the job's end would bring. The progress changes at
// the end only, so if afterStep is interrupted, the next ring repeats all of it.
func (t *Trainer) afterStep(ctx context.Context) error {
	step := t.progress.Step
	last := step == t.cfg.Steps
	every := func(interval int64) bool { return t.cfg.Local.Due(step, interval) }
	after := t.progress

	t.laps.begin()
	compared := len(t.ring.LaneEnds) == 1
	evalDue, saveDue := t.evalDue(step), t.saveDue(step) || t.cfg.Save && t.stopped
	if every(t.cfg.CheckEvery) {
		if err := t.rollCall(ctx); err != nil {
			return err
		}
		t.laps.end("roll call")
		compared = true
	} else if saveDue || t.maySave(step) { // after a split all ranks resume from this snapshot
		if err := t.compareDigests(ctx); err != nil {
			return err
		}
		compared = true
	}
	if evalDue || last && t.task.Evaluates() {
		best, err := t.measure(ctx, &after, evalDue)
		if err != nil {
			return err
		}
		last = last || t.endsEarly(&after)
		saveDue = saveDue || t.cfg.Save && (last || best && t.cfg.SaveBest)
	}
	if !t.task.Evaluates() && t.endsEpoch(step) {
		after.Plateau.Measure(t.progress.EpochLoss(), t.cfg.Schedule.Patience)
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
	t.reportUnrecorded()
	t.record(compared)
	return nil
}

// maySave reports whether a step may end with a checkpoint, unless by a stop.
func (t *Trainer) maySave(step int64) bool {
	maybeBest := t.evalDue(step) && (t.cfg.SaveBest || t.cfg.EarlyStop > 0)
	return t.saveDue(step) || t.cfg.Save && maybeBest
}

// record tells Config.Record of the last step.
func (t *Trainer) record(compared bool) {
	if t.cfg.Record == nil || t.ring.Rank != 0 {
		return
	}
	r := agree.Record{Version: t.version()}
	if compared {
		r.Digest = t.Digest()
	}
	t.cfg.Record(r)
}

// sample lets rank 0 generate text. If the other ranks may have waited for a save, all ranks
// synchronise first, which restarts their timeouts. A failed sample does not end the job.
func (t *Trainer) sample(ctx context.Context, waited bool) error {
	if waited {
		if _, err := agree.Gather(ctx, t.ranks, t.progress.Step); err != nil {
			return err
		}
	}
	if t.cfg.Sample == nil || t.ring.Rank != 0 {
		return nil
	}
	var text string
	err := averager{t.core}.withAverage(func() (err error) {
		text, err = t.cfg.Sample(ctx, t.progress.Step)
		return err
	})
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
