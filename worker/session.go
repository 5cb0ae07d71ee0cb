package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/compute"
	"rondo/job"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/sum"
	"rondo/sum/sharded"
	"rondo/telemetry"
	"rondo/train"
	"rondo/train/agree"
)

// errSuperseded ends a ring that has not begun to train.
var errSuperseded = errors.New("a newer plan has come")

// session is a worker's part in the ring of one plan.
type session struct {
	*seat
	gpus gpuGroup

	rejoined bool // the ranks have joined again in the same ring

	mu            sync.Mutex
	training      bool          // the ring trains, so it ends only after a step
	superseded    bool          // a newer plan exists
	since         time.Time     // when training began
	trainingBegan chan struct{} // closed when training begins
}

// ringError is a failure of this worker in a ring.
type ringError struct {
	generation cluster.Generation
	fatal      bool // every worker would fail in this way
	err        error
}

func (e *ringError) Error() string { return e.err.Error() }
func (e *ringError) Unwrap() error { return e.err }

// serveRing is in the plan's ring until the ring or the job ends. done says that nothing is left to
// train. The error says why this worker cannot join the next ring.
func (w *worker) serveRing(
	life context.Context, leave <-chan struct{}, plan cluster.Plan, plans *plans,
) (done bool, err error) {
	w.pulse.begin()
	defer w.pulse.rest()
	rank, _ := plan.Rank(w.member.ID)
	s := &session{seat: &seat{worker: w, plan: plan, rank: rank},
		trainingBegan: make(chan struct{})}
	s.gpus.seat = s.seat
	if w.engine == nil {
		if w.engine, err = w.openEngine(life); err != nil {
			return false, s.failed(err)
		}
	}
	if err := w.engine.enter(s.seat); err != nil {
		return false, s.failed(err)
	}
	ctx, cancel := context.WithCancelCause(life)
	var watching sync.WaitGroup
	watching.Go(func() { s.watchPlans(ctx, cancel, leave, plans) })
	done, err = s.run(ctx)
	cancel(nil)
	watching.Wait()
	w.noteServed(plan.Generation, !s.since.IsZero())
	w.stable = w.stable || !s.since.IsZero() && time.Since(s.since) > lastReturn
	broke := err
	if err != nil {
		err = s.judge(life, err)
	}
	if s.ring != nil {
		if broke != nil && !isVerdict(broke) {
			s.breakOff(broke) // the others must not wait for this rank
		}
		s.gpus.leave()
		if closing := s.leaveRings(); closing != nil {
			w.log.Debug("leaving the ring", "generation", plan.Generation, "error", closing)
		}
	}
	return done && err == nil, err
}

// noteServed updates the registration after a ring: Served is the last ring in which this worker
// trained, if it still has a state.
func (w *worker) noteServed(generation cluster.Generation, trained bool) {
	switch {
	case !w.engine.trainer.HasState(): // a failed or a torn step has dropped it
		w.member.Served = 0
	case trained:
		w.member.Served = generation
	}
}

// isVerdict reports whether all ranks get this error from the same collective. A rank that broke
// the ring for it could prevent the others from getting it.
func isVerdict(err error) bool {
	var corrupt *agree.CorruptError
	var others *agree.PeerCorruptError
	var unsummed *sum.GroupError
	var refused *groupError
	return errors.As(err, &corrupt) || errors.As(err, &others) || errors.As(err, &unsummed) ||
		errors.As(err, &refused)
}

// watchPlans reacts to new plans and to the request to leave while the ring exists.
func (s *session) watchPlans(
	ctx context.Context, cancel context.CancelCauseFunc, leave <-chan struct{}, plans *plans,
) {
	late := time.NewTimer(0) // fires if no ring without this worker is planned
	late.Stop()
	defer late.Stop()
	trainingBegan, asked, early := s.trainingBegan, (<-chan struct{})(nil), (<-chan struct{})(nil)
	if s.plan.Rings <= 1 && !s.trainedBefore() {
		early = leave // the job has no state to lose yet
	}
	for {
		plan, changed := plans.newest()
		switch {
		case plan.Generation > s.plan.Generation:
			s.supersede(cancel)
			return
		case plan.Phase == cluster.Stopping:
			s.engine.trainer.RequestStop()
		}
		select {
		case <-changed:
		case <-trainingBegan: // not earlier: the others may not have this worker's state yet
			trainingBegan, asked, early = nil, leave, nil
		case <-early:
			early = nil
			if s.giveUp(cancel) {
				return
			}
		case <-asked:
			asked = nil
			s.sayLeaving(ctx)
			late.Reset(s.spec.RegroupTimeout.AsDuration())
		case <-late.C:
			s.supersede(cancel)
			return
		case <-ctx.Done():
			return
		}
	}
}

// supersede ends the ring: after the current step if it trains, otherwise at once.
func (s *session) supersede(cancel context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.superseded = true
	if s.training {
		s.engine.trainer.RequestRegroup()
		return
	}
	cancel(errSuperseded)
}

// trainedBefore reports whether this worker has trained, in this ring or an earlier one.
func (s *session) trainedBefore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasTrained
}

// giveUp ends a ring that has not begun to train. It returns false if the worker has trained.
func (s *session) giveUp(cancel context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hasTrained {
		return false
	}
	s.superseded = true
	cancel(errSuperseded)
	return true
}

// set sets whether the ring trains. It fails if a newer plan exists.
func (s *session) set(training bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.superseded {
		return errSuperseded
	}
	if s.training = training; training && s.since.IsZero() {
		s.since, s.hasTrained = time.Now(), true
		close(s.trainingBegan)
	}
	return nil
}

// run forms the ring and trains in it.
func (s *session) run(ctx context.Context) (done bool, err error) {
	if err := s.form(ctx); err != nil {
		return false, err
	}
	if err := s.gpus.open(ctx); err != nil {
		return false, err
	}
	if s.gpus.group == nil {
		if s.tiers, err = s.openTiers(ctx); err != nil {
			return false, err
		}
	}
	for {
		ring := s.trainRing()
		ring.Record = s.onRecord(ctx)
		result, err := s.train(ctx, ring)
		var unsaved *train.SaveError
		if errors.As(err, &unsaved) && ctx.Err() == nil {
			err = s.saveLater(ctx, unsaved)
		}
		if err != nil && s.soundRing(ctx, err) {
			s.rejoined = true
			if err = s.set(false); err == nil {
				continue
			}
		}
		if err != nil || result.Regroup {
			return false, err
		}
		s.reportUnfired(ctx)
		done := s.done(result)
		if s.rank == 0 {
			s.engine.recorder.final(done.GetDone())
		}
		return true, s.current.Load().Report(ctx, done)
	}
}

// storageInterval is the time between two attempts to save a job's final state, or to read the
// state to go on from.
const storageInterval = 5 * time.Second

// saveLater keeps a finished job's state that could not be saved, and tries again for
// --regroup-timeout.
func (s *session) saveLater(ctx context.Context, unsaved *train.SaveError) (err error) {
	defer compute.Catch(&err) // reading the state may panic with a device error
	patience := s.spec.RegroupTimeout.AsDuration()
	s.notice(ctx, fmt.Sprintf("the job's end is not saved: %v; its state is kept, and saving it "+
		"is tried again for %v (--regroup-timeout)", unsaved, patience))
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(storageInterval)
	defer tick.Stop()
	for {
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &lostStateError{unsaved}
		case <-tick.C:
			s.pulse.beat()
		}
		if err := s.engine.trainer.Keep(limited); err == nil {
			return nil
		}
	}
}

// train joins the other ranks and trains until the ring ends.
func (s *session) train(
	ctx context.Context, ring train.Ring,
) (result train.Result, err error) {
	defer compute.Catch(&err)
	joined, err := s.engine.trainer.Join(ctx, ring, s.engine.restore)
	if err == nil {
		err = s.engine.joined(s.seat, joined)
	}
	if err == nil {
		err = s.set(true)
	}
	if err != nil {
		return result, err
	}
	s.announce(ctx, joined)
	return s.engine.trainer.Run(ctx)
}

// soundRing reports whether all ranks got the same error from a collective, so that the ring is
// sound. They then go on in the same ring until the leader plans another.
func (s *session) soundRing(ctx context.Context, err error) bool {
	var split *agree.SplitError
	var late *agree.StragglerError
	var unsummed *sum.GroupError
	var apart *sharded.DifferError
	switch {
	case errors.As(err, &apart): // the next Join goes by neither
	case errors.As(err, &unsummed):
		return s.gpus.giveUp(ctx, unsummed)
	case errors.As(err, &split): // no rank can tell a right state from a wrong one
	case errors.As(err, &late):
		witness := cluster.Rank(0)
		if late.Rank == 0 {
			witness = 1
		}
		if s.rank == witness {
			s.reportSuspect(ctx, late.Rank, &rondov1.SuspectEvent{Text: err.Error(), Slow: true})
		}
		return true
	default:
		return false
	}
	if s.rank == 0 {
		s.notice(ctx, err.Error())
	}
	return true
}

// judge decides the consequence of an error that ended a session: the job's end, life's end, nil if
// another ring can follow, or this worker's failure. A rank that itself saw which neighbour failed
// reports it.
func (s *session) judge(life context.Context, err error) error {
	var (
		lost    *allreduce.PeerError
		hearsay *allreduce.AbortError
		corrupt *agree.CorruptError
		others  *agree.PeerCorruptError

		unsummed *sum.GroupError
		refused  *groupError
	)
	switch {
	case life.Err() != nil:
		return s.explain(context.Cause(life))
	case errors.Is(err, grpclink.ErrUnreachable) && errors.As(err, &lost):
		s.reportSuspect(life, int(lost.Peer.Rank), &rondov1.SuspectEvent{Text: err.Error(),
			Unreachable: s.plan.Members[lost.Peer.Rank].ID})
	case errors.Is(err, errSuperseded):
	case errors.As(err, &corrupt):
		s.reportEvent(life, &rondov1.Event{Kind: &rondov1.Event_Failure{
			Failure: &rondov1.FailureEvent{Id: s.member.ID, Text: err.Error(), Resync: true,
				Generation: uint64(s.plan.Generation)}}})
		s.flush(life) // the reason must arrive before the others report this rank missing
		return &expelledError{reason: err.Error(), forget: true}
	case errors.As(err, &others):
		for _, rank := range others.Ranks { // such a rank may not have got the verdict itself
			s.reportSuspect(life, rank, &rondov1.SuspectEvent{Text: err.Error(), Resync: true})
		}
	case errors.As(err, &hearsay): // the ranks that saw the failure report it
		s.reportSilent(life, -1)
	case errors.As(err, &unsummed) && unsummed.Own == nil: // likewise
	case errors.As(err, &refused) && refused.rank != int(s.rank):
	case errors.As(err, &lost):
		s.reportSuspect(life, int(lost.Peer.Rank), &rondov1.SuspectEvent{Text: err.Error()})
		s.reportSilent(life, lost.Peer.Rank)
	default:
		return s.failed(err)
	}
	s.log.Debug("the ring has ended", "generation", s.plan.Generation, "error", err)
	return nil
}

// reportSilent reports a neighbour that had fallen silent when the ring broke, unless it was
// reported already. reported is -1 if none was.
func (s *session) reportSilent(ctx context.Context, reported allreduce.Rank) {
	if s.ring == nil || s.ring.Err() == nil {
		return
	}
	if peer, found := s.ring.Silent(); found && peer.Rank != reported {
		s.reportSuspect(ctx, int(peer.Rank), &rondov1.SuspectEvent{Text: fmt.Sprintf(
			"%v had fallen silent, too, when the ring broke", peer)})
	}
}

// announce reports this worker, and from rank 0 the ring and the step from which it continues.
func (s *session) announce(ctx context.Context, joined agree.Joined) {
	from, to := s.plan.Lanes(s.rank)
	s.log.Info("joined the ring", "rank", int(s.rank), "of", len(s.plan.Members),
		"generation", s.plan.Generation, "device", s.engine.task.Device().Name(),
		"threads", job.Threads(s.spec, s.processesHere()),
		"lanes", fmt.Sprintf("%d-%d", from, to-1), "after_step", joined.Step)
	s.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Worker{Worker: &rondov1.WorkerEvent{
		Rank: int64(s.rank), Pid: int64(s.member.PID), Id: s.member.ID,
		Device: s.engine.task.Device().Name(), Host: s.member.Host,
		Generation: uint64(s.plan.Generation)}}})
	if s.rank != 0 {
		return
	}
	s.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Generation{
		Generation: &rondov1.GenerationEvent{Generation: uint64(s.plan.Generation),
			WorldSize: int64(len(s.plan.Members)), Step: joined.Step, Reason: s.plan.Reason}}})
	again := s.plan.Rings > 1 || s.rejoined
	if text := joined.String(); text != "" && again {
		s.notice(ctx, text)
	}
	s.engine.observer.catchUp(joined.Step) // joined's text has announced an earlier step
	if total := job.Steps(s.spec, s.data); joined.Step >= total && !again {
		s.notice(ctx, fmt.Sprintf("nothing is left to do: the checkpoint is of step %d, and the "+
			"job has %d; raise --steps or --epochs to train on", joined.Step, total))
	}
}

// done returns this rank's last event when nothing is left to train.
func (s *session) done(result train.Result) *rondov1.Event {
	d := &rondov1.DoneEvent{Step: result.Progress.Step, Epoch: result.Progress.Epoch,
		Loss: result.Loss, TokensPerSecond: result.TokensPerSecond, Stopped: result.Stopped,
		NonfiniteSteps: result.Progress.Nonfinite, Generation: uint64(s.plan.Generation),
		Reason: s.ending(result), SquaredError: s.engine.observer.squaredError()}
	d.BestStep, d.BestLoss = result.Progress.Validation.Lowest()
	if result.Eval != nil {
		d.Metrics = metrics(*result.Eval)
	}
	if s.rank == 0 {
		d.Checkpoint = s.engine.saver.path()
	}
	return &rondov1.Event{Kind: &rondov1.Event_Done{Done: d}}
}

// ending returns why the job ends. Only the leader knows who asked it to stop, and adds that.
func (s *session) ending(result train.Result) string {
	switch {
	case result.Early:
		return fmt.Sprintf(telemetry.EarlyStopped, result.Progress.Validation.Waiting)
	case result.Stopped:
		return "stopped"
	}
	return job.Ending(s.spec, s.data)
}
