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
	"rondo/compute"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/model"
	"rondo/task/lm"
	"rondo/telemetry/trace"
	"rondo/train"
	"rondo/train/agree"
)

// engine is what a worker trains with, in all of its rings.
type engine struct {
	worker  *worker
	model   *model.Model
	stored  *job.Checkpoints
	trainer *train.Trainer
	summer  *compress.Summer // nil: all of a gradient is summed, as it is
	// overlaps says that a gradient may be summed while backward goes on.
	overlaps bool
	heard    *observer
	saver    *saver
	faults   faults
	ledger   *audit.Log    // nil without --audit-dir
	tracer   *trace.Writer // nil without --trace

	session atomic.Pointer[session] // the newest
	scratch bool                    // a checkpoint to start from was looked for, and there is none
	split   *agree.SplitError       // why no rank has a state any more
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
	config, err := job.ModelConfig(w.spec, w.data.Corpus.Vocabulary().Len())
	if err != nil {
		return nil, err
	}
	inPlace := job.HostMemory(w.device)
	if inPlace {
		config.GradientTail = train.Tail
	}
	if e.model, err = model.New(config, w.device); err != nil {
		return nil, err
	}
	if err := e.newSummer(config); err != nil {
		return nil, app.Usage(err)
	}
	if e.faults, err = w.newFaults(); err != nil {
		return nil, app.Usage(err)
	}
	e.stored, err = job.OpenCheckpoints(ctx, w.spec, w.data.Corpus, e.faults.disk)
	if err != nil {
		return nil, err
	}
	if e.saver, err = newSaver(e); err != nil {
		return nil, err
	}
	e.trainer, err = e.newTrainer(inPlace)
	return e, err
}

// newTrainer makes the trainer of the job's language model. What it opens on the way, close closes.
func (e *engine) newTrainer(inPlace bool) (*train.Trainer, error) {
	w := e.worker
	settings, err := job.TrainConfig(w.spec, w.data)
	if err != nil {
		return nil, err
	}
	settings.HostMemory, settings.Now = inPlace, time.Now
	e.overlaps = settings.Overlaps()
	reads, err := w.data.Reads(w.spec)
	if err != nil {
		return nil, err
	}
	e.watch(&settings)
	if w.spec.AuditDir != "" {
		if e.ledger, err = audit.Open(w.spec.AuditDir, w.name, w.data.Sampler.Offset); err != nil {
			return nil, app.Usage(err)
		}
		settings.Ledger, reads.Ledger = e.ledger, e.ledger
	}
	if w.spec.Trace != "" {
		if e.tracer, err = trace.Create(w.spec.Trace, w.name, w.member.PID,
			trace.DefaultLimit); err != nil {
			return nil, app.Usage(err)
		}
		settings.Tracer = e.tracer
	}
	if reads.Evaluation != nil {
		reads.Evaluation = beating{reads.Evaluation, &w.pulse}
	}
	e.heard = &observer{engine: e}
	settings.Observer = e.heard
	if e.stored.Store != nil {
		settings.Save, settings.SaveBest, settings.Saver = true, true, e.saver
	}
	task, err := lm.New(e.model, reads)
	if err != nil {
		return nil, app.Usage(err)
	}
	if reads.Writer != nil {
		settings.Sample = func(ctx context.Context, step int64) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, e.patience())
			defer cancel()
			return task.Sample(ctx, step)
		}
	}
	trainer, err := train.New(task, settings)
	return trainer, app.Usage(err)
}

// watch has each phase of a step be a beat, and where faults are ordered, be hit by them: a trainer
// that has a Rehearsal records no work of its device and stages no gradient.
func (e *engine) watch(settings *train.Config) {
	settings.Beat = e.worker.pulse.beat
	if e.worker.spec.Inject != "" {
		settings.Rehearsal = e.faults
	}
}

// openDevice opens the device of a worker, unless it has done so. It has one thread until the plan
// says who else is on this host, and so how many cores are its share. The job exists by now: what
// it asks for and this machine does not have is this worker's failure, and no wrong input, for
// other machines may have it.
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

// closeDevice closes it, once.
func (w *worker) closeDevice() error {
	if w.device == nil {
		return nil
	}
	device := w.device
	w.device = nil
	return freed(device.Close)
}

// freed calls what frees memory of a device, which may have failed.
func freed(free func()) (err error) {
	defer compute.Catch(&err)
	free()
	return nil
}

// close frees everything but the device; the saver's last checkpoint is waited for.
func (e *engine) close() error {
	var errs []error
	if e.saver != nil {
		errs = append(errs, e.saver.close())
	}
	if e.trainer != nil {
		errs = append(errs, freed(e.trainer.Close))
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
	if e.model != nil {
		errs = append(errs, freed(e.model.Close))
	}
	return errors.Join(errs...)
}

// enter says which ring comes next, whose workers of this machine share its cores. Who is not rank
// 0 any more finishes what it still saves, in the background.
func (e *engine) enter(s *session) error {
	e.session.Store(s)
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

// lostStateError ends a job that has no state to go on from.
type lostStateError struct{ error }

func (e *lostStateError) Unwrap() error { return e.error }

// restore implements train.Restore. Storage that fails ends a job that has nothing else to go on
// from; one that has lost some lanes' states alone goes on without it.
func (e *engine) restore(
	ctx context.Context, reason agree.Reason,
) (*train.Snapshot, error) {
	resume := e.worker.pulse.pause()
	snapshot, err := e.readStart(ctx)
	resume()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && reason == agree.LostLanes:
		e.worker.notice(ctx, "there is no checkpoint to go back to: "+err.Error())
		return nil, nil
	case err != nil:
		return nil, &lostStateError{err}
	case snapshot == nil && e.split != nil:
		return nil, &lostStateError{errors.New(e.split.Error() + // no ring is sound after it
			"; there is no checkpoint to go back to")}
	}
	return snapshot, nil
}

// readStart reads the checkpoint that the job starts from, or goes back to; nil if there is none.
func (e *engine) readStart(ctx context.Context) (*train.Snapshot, error) {
	found, err := e.stored.Start(ctx, e.worker.spec)
	e.scratch = found == nil && err == nil
	if e.scratch && jobspec.ShardsAtRisk(e.worker.spec) {
		e.worker.jobNotice(ctx, "no checkpoint is written while the job trains, so a worker that "+
			"is killed takes its part of what --optimizer keeps along, which begins at zero "+
			"again: give --checkpoint-every, or --shard-copies 2")
	}
	if err != nil || found == nil {
		return nil, err
	}
	snapshot, err := readSnapshot(ctx, found, e.trainer.NewSnapshot())
	if err != nil {
		return nil, err
	}
	e.saver.startFrom(found)
	before, err := job.Spec(found)
	if err != nil {
		return nil, err
	}
	if now := e.worker.spec.Precision; now != before.Precision {
		e.worker.jobNotice(ctx, fmt.Sprintf("the checkpoint of step %d was trained in %s, and "+
			"is trained on in %s", found.Step, before.Precision, now))
	}
	return snapshot, nil
}

// patience is how long rank 0 may do what the others only wait for, in the ring.
func (e *engine) patience() time.Duration { return e.worker.spec.StepTimeout.AsDuration() / 2 }

// joined notes that the ring has formed: the steps that follow are in it.
func (e *engine) joined(s *session, j agree.Joined) error {
	e.split = nil
	if e.ledger == nil {
		return nil
	}
	return e.ledger.Ring(audit.Ring{Run: e.worker.spec.Submitted,
		Generation: uint64(s.plan.Generation), From: j.Step, Committed: uint64(j.Committed),
		World: len(s.plan.Members), Accumulate: int(e.worker.spec.Accumulate),
		Batches: e.worker.data.Sampler.Config(), SyncEvery: e.worker.spec.SyncEvery})
}

// keep saves the state without a ring, for a job that nobody is left to hold it for.
func (e *engine) keep(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	defer compute.Catch(&err)
	return e.trainer.Keep(ctx)
}
