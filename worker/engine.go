package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"rondo/allreduce/compress"
	"rondo/audit"
	"rondo/checkpoint"
	"rondo/compute"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/sum/sharded"
	"rondo/telemetry/trace"
	"rondo/train"
	"rondo/train/agree"
)

// engine is what a worker needs to train. It is used in all of its rings.
type engine struct {
	worker  *worker
	task    *job.Task
	stored  *job.Checkpoints
	trainer *train.Trainer
	summer  *compress.Summer // nil: gradients are summed uncompressed
	slots   *sharded.Slots   // nil: each worker has the whole optimizer state
	// overlaps: gradients may be summed while backward runs.
	overlaps bool
	observer *observer
	saver    *saver
	recorder *recorder
	faults   faults
	ledger   *audit.Log    // nil without --audit-dir
	tracer   *trace.Writer // nil without --trace

	seat    atomic.Pointer[seat] // in the current rings
	scratch bool                 // a checkpoint to start from was searched and there is none
}

// openEngine makes the engine of a worker.
func (w *worker) openEngine(ctx context.Context) (_ *engine, err error) {
	ctx = context.WithoutCancel(ctx) // it outlives the membership in which it is opened
	e := &engine{worker: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	defer compute.Catch(&err)
	if err := w.openDevice(); err != nil {
		return nil, err
	}
	if err := e.newSummer(); err != nil {
		return nil, app.Usage(err)
	}
	if e.faults, err = w.newFaults(); err != nil {
		return nil, app.Usage(err)
	}
	e.stored, err = job.OpenCheckpoints(ctx, w.spec, w.data, e.faults.disk)
	if err == nil {
		err = e.stored.Refused(ctx)
	}
	if err != nil {
		return nil, err
	}
	if e.saver, err = newSaver(e); err != nil {
		return nil, err
	}
	e.recorder = newRecorder(w)
	e.trainer, err = e.newTrainer()
	return e, err
}

// newTrainer makes the job's task and its trainer. close closes everything that it opens.
func (e *engine) newTrainer() (*train.Trainer, error) {
	w := e.worker
	settings, err := job.TrainConfig(w.spec, w.data)
	if err != nil {
		return nil, err
	}
	settings.HostMemory, settings.Now = job.HostMemory(w.device), time.Now
	e.overlaps = settings.Overlaps()
	e.watch(&settings)
	if copies := int(jobspec.ShardCopies(w.spec)); copies > 0 {
		settings.NewSlots = func(c agree.SlotsConfig) (_ train.Slots, err error) {
			e.slots, err = sharded.New(copies, c)
			return e.slots, err
		}
	}
	var ledger job.Ledger
	if w.spec.AuditDir != "" {
		if e.ledger, err = audit.Open(w.spec.AuditDir, w.name, w.data.Offset); err != nil {
			return nil, app.Usage(err)
		}
		settings.Ledger, ledger = commits{e.ledger}, e.ledger
	}
	if w.spec.Trace != "" {
		if e.tracer, err = trace.Create(w.spec.Trace, w.name, w.member.PID,
			trace.DefaultLimit); err != nil {
			return nil, app.Usage(err)
		}
		settings.Tracer = e.tracer
	}
	e.observer = &observer{engine: e}
	settings.Observer, settings.Record = e.observer, e.recorder.record
	if e.stored.Store != nil {
		settings.Save, settings.SaveBest, settings.Saver = true, true, e.saver
	}
	tail := 0
	if settings.HostMemory {
		tail = train.Tail
	}
	if e.task, err = w.data.NewTask(w.device, tail, ledger); err != nil {
		return nil, err
	}
	if e.task.Sample != nil {
		settings.Sample = func(ctx context.Context, step int64) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, e.patience())
			defer cancel()
			return e.task.Sample(ctx, step)
		}
	}
	trainer, err := train.New(e.task, settings)
	return trainer, app.Usage(err)
}

// watch makes each phase of a step a beat. With --inject it also makes the phases subject to
// faults; a trainer with a Rehearsal neither records its device's work nor stages gradients.
func (e *engine) watch(settings *train.Config) {
	settings.Beat = e.worker.pulse.beat
	if e.worker.spec.Inject != "" {
		settings.Rehearsal = e.faults
	}
}

// openDevice opens the worker's device if it is not open. The device has one thread until the plan
// shows how many workers share this host's cores. A device that this machine lacks is a failure of
// this worker, not wrong input, because other machines may have it.
func (w *worker) openDevice() (err error) {
	if w.device != nil {
		return nil
	}
	if w.device, err = job.OpenDevice(job.On(w.spec, w.own), 1); err != nil {
		var wrong *app.UsageError
		var spec *jobspec.UsageError
		if errors.As(err, &wrong) || errors.As(err, &spec) {
			return errors.New(err.Error())
		}
		return err
	}
	return job.Share(w.device, w.spec, runtime.GOMAXPROCS(0))
}

// closeDevice closes the device if it is open.
func (w *worker) closeDevice() error {
	if w.device == nil {
		return nil
	}
	device := w.device
	w.device = nil
	return tryFree(device.Close)
}

// tryFree calls free, which frees device memory. The panic of a failed device becomes an error.
func tryFree(free func()) (err error) {
	defer compute.Catch(&err)
	free()
	return nil
}

// close frees everything except the device. It waits for the saver's last checkpoint.
func (e *engine) close() error {
	var errs []error
	if e.saver != nil {
		errs = append(errs, e.saver.close())
	}
	if e.recorder != nil {
		e.recorder.close()
	}
	if e.trainer != nil {
		errs = append(errs, tryFree(e.trainer.Close))
	}
	if e.stored != nil {
		errs = append(errs, e.stored.Close())
	}
	if e.tracer != nil {
		errs = append(errs, e.tracer.Close())
	}
	if e.ledger != nil {
		errs = append(errs, e.ledger.Close())
	}
	if e.task != nil {
		errs = append(errs, tryFree(e.task.Close))
	}
	return errors.Join(errs...)
}

// enter prepares the engine for a ring. The ring's workers on this host share its cores. A worker
// that is not rank 0 any more finishes its saves in the background.
func (e *engine) enter(s *seat) error {
	e.seat.Store(s)
	if err := job.Share(e.worker.device, e.worker.spec, s.processesHere()); err != nil {
		return err
	}
	if e.tracer != nil {
		e.tracer.Name(fmt.Sprintf("rank %d, %s", s.rank, s.member.Place()), int(s.rank))
	}
	e.faults.SetRing(uint64(s.plan.Generation), int(s.rank))
	if s.rank != 0 {
		e.saver.abandonWriter()
	}
	return nil
}

// lostStateError ends a job that has no state to continue from.
type lostStateError struct{ error }

func (e *lostStateError) Unwrap() error { return e.error }

// restore implements train.Restore. If storage fails for long, a job that has lost only some lanes'
// states goes on without the checkpoint. If it has no state, this worker fails, and another one of
// the ring tries; without another one the job ends.
func (e *engine) restore(
	ctx context.Context, reason agree.Reason, after int64,
) (*train.Snapshot, error) {
	resume := e.worker.pulse.pause()
	defer resume()
	if reason == agree.Behind {
		return e.readLater(ctx, after)
	}
	snapshot, err := e.readPatiently(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && reason == agree.LostLanes:
		e.worker.notice(ctx, "there is no checkpoint to go back to: "+err.Error())
		return nil, nil
	case err != nil && e.seat.Load().othersMayRestore(err):
		return nil, err
	case err != nil:
		return nil, &lostStateError{err}
	case snapshot == nil && reason == agree.Untrusted:
		return nil, &lostStateError{errors.New("no more than half of the workers had the same " +
			"parameters, so none could be trusted; there is no checkpoint to go back to")}
	}
	return snapshot, nil
}

// readPatiently is readStart, but if storage fails it tries again for --regroup-timeout: the error
// would end the job. The other ranks know that this one still looks. Damage and wrong flags stay.
func (e *engine) readPatiently(ctx context.Context) (*train.Snapshot, error) {
	patience := e.worker.spec.RegroupTimeout.AsDuration()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(storageInterval)
	defer tick.Stop()
	for told := false; ; told = true {
		snapshot, err := e.readStart(ctx)
		var damage *checkpoint.DamageError
		var wrong *app.UsageError
		if err == nil || errors.As(err, &damage) || errors.As(err, &wrong) {
			return snapshot, err
		}
		if !told {
			e.worker.notice(ctx, fmt.Sprintf("no checkpoint can be read: %v; that is tried again "+
				"for %v (--regroup-timeout)", err, patience))
		}
		select {
		case <-limited.Done():
			return nil, err
		case <-tick.C:
		}
	}
}

// readStart reads the checkpoint that the job starts from or returns to. It returns nil if there is
// none.
func (e *engine) readStart(ctx context.Context) (*train.Snapshot, error) {
	found, err := e.stored.Start(ctx, e.worker.spec)
	e.scratch = found == nil && err == nil
	if e.scratch && jobspec.ShardsAtRisk(e.worker.spec) {
		e.worker.jobNotice(ctx, "no checkpoint is written while the job trains, so the optimizer "+
			"state of a worker that is killed is lost, and its part begins at zero again: give "+
			"--checkpoint-every, or --shard-copies 2")
	}
	if err != nil || found == nil {
		return nil, err
	}
	return e.read(ctx, found)
}

// readLater reads this run's newest checkpoint if it is of a later step than the state that the
// ring's workers have: they were put out, and the others went on, saved their state and left. If
// storage does not answer for a while, the ring goes on without.
func (e *engine) readLater(ctx context.Context, after int64) (*train.Snapshot, error) {
	looking, cancel := context.WithTimeout(ctx, e.patience())
	defer cancel()
	found, err := e.stored.Later(looking, e.worker.spec, after)
	var snapshot *train.Snapshot
	if err == nil && found != nil {
		snapshot, err = e.read(ctx, found)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		e.worker.notice(ctx, fmt.Sprintf("no checkpoint after step %d could be read: %v", after,
			err))
		return nil, nil
	}
	return snapshot, nil
}

// read reads a checkpoint that the job continues from.
func (e *engine) read(ctx context.Context, found *checkpoint.Checkpoint) (*train.Snapshot, error) {
	snapshot, err := readSnapshot(ctx, found, e.trainer.NewSnapshot())
	if err != nil {
		return nil, err
	}
	e.saver.startFrom(found)
	for _, skipped := range found.Skipped {
		e.worker.jobNotice(ctx, fmt.Sprintf("the checkpoint of step %d is damaged (%v): going on "+
			"from the one of step %d", skipped.Step, skipped.Err, found.Step))
	}
	before, err := job.Spec(found)
	if err != nil {
		return nil, err
	}
	if now := e.worker.spec.Precision; now != before.Precision {
		e.worker.jobNotice(ctx, fmt.Sprintf("the checkpoint of step %d was trained in %s, and "+
			"is trained on in %s", found.Step, before.Precision, now))
	}
	if text := job.OtherRates(e.worker.spec, e.worker.data, found); text != "" {
		e.worker.jobNotice(ctx, text)
	}
	return snapshot, nil
}

// patience is how long the other ranks may wait in the ring for work of rank 0 alone.
func (e *engine) patience() time.Duration { return e.worker.spec.StepTimeout.AsDuration() / 2 }

// joined records in the audit log that the ring has formed.
func (e *engine) joined(s *seat, j agree.Joined) error {
	if e.ledger == nil {
		return nil
	}
	return e.ledger.Ring(audit.Ring{Run: e.worker.spec.Submitted,
		Generation: uint64(s.plan.Generation), From: j.Step, Digest: e.trainer.Digest(),
		World: len(s.plan.Members), Rank: int(s.rank), Accumulate: int(e.worker.spec.Accumulate),
		Batches: e.worker.data.Batches(), SyncEvery: e.worker.spec.SyncEvery,
		Replayed: j.Replayed * int64(len(j.LostLanes))})
}

// commits is an audit log as a train.Ledger.
type commits struct{ log *audit.Log }

func (c commits) Commit(done train.Commit) error { return c.log.Commit(audit.Commit(done)) }

// saveState saves the state outside of a ring, when no other worker may have it.
func (e *engine) saveState(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	defer compute.Catch(&err)
	return e.trainer.Keep(ctx)
}
