package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/cluster/rpc"
	"rondo/internal/app"
	"rondo/internal/events"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// farewell is how long the leader may take to say how a job has ended.
const farewell = 10 * time.Second

// Stop says how a job is stopped.
type Stop struct {
	Reason  string
	Timeout time.Duration // from the request to the end: a step, and the last checkpoint
	Force   bool          // although its model is lost, for want of a place to save it
	Say     func(string)  // told of what happens, one line each
}

// Stop asks the job's leader to stop after a step, with a checkpoint, and waits until that has
// happened. It speaks to etcd and the leader themselves: no observer is needed, and no worker where
// the job is paused or suspended.
func (c *Cluster) Stop(ctx context.Context, name string, how Stop) error {
	job, err := c.Job(ctx, name)
	if err != nil {
		return err
	}
	if job.Ended() {
		return hasEnded(name, job.Reason())
	}
	way, err := c.Way(ctx, job)
	if err != nil {
		return err
	}
	defer way.Close()
	store, err := way.Store(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	view, err := store.View(ctx)
	switch {
	case errors.Is(err, cluster.ErrNoSpec):
		return fmt.Errorf("job %s has not begun: no coordinator has stored it yet%s; %s "+
			"removes it", name, c.why(name), c.command("delete", name))
	case err != nil:
		return err
	case view.Plan.Phase == cluster.Ended:
		return hasEnded(name, view.Plan.Reason)
	}
	spec, err := meet.Decode(view.Spec)
	if err != nil {
		return err
	}
	if err := Stoppable(spec, view.Plan, how.Force); err != nil {
		return err
	}
	client, err := way.Client(store, 0)
	if err != nil {
		return err
	}
	how.Say(fmt.Sprintf("job %s is %s, with %d in the ring: stopping it%s", name,
		view.Plan.Phase, len(view.Plan.Members), job.older(spec.Submitted)))
	end, err := stop(ctx, store, client, how)
	if err != nil {
		return err
	}
	if end.checkpoint == "" { // of an earlier leader's time
		if now, err := c.Job(ctx, name); err == nil {
			p := now.Progress()
			end.checkpoint, end.step = p.Checkpoint, p.CheckpointStep
		}
	}
	end.nowhere = !jobspec.KeepsModel(spec)
	if job.Suspended() && spec.Submitted == job.run() {
		if err := c.markEnded(ctx, job, end.plan); err != nil {
			how.Say(fmt.Sprintf("note: %v", err))
		}
	}
	return end.tell(name, how.Say)
}

// Stoppable refuses to stop a job whose model would be lost, unless that is what is wanted.
func Stoppable(spec *rondov1.JobSpec, plan cluster.Plan, force bool) error {
	if force || plan.Phase == cluster.Forming || jobspec.KeepsModel(spec) {
		return nil
	}
	return app.Usagef("job %s has no --checkpoint-dir, so its model would be lost: let it train "+
		"to its end, or give --force to stop it all the same; jobs submitted with "+
		"--checkpoint-dir can be stopped and resumed", spec.Job)
}

// markEnded writes the end of a suspended job's run where it is looked for: its Job has no pods
// that could end, and its observer may be gone before it has.
func (c *Cluster) markEnded(ctx context.Context, job *Job, plan cluster.Plan) error {
	phase := telemetry.PhaseEnded
	if plan.Failed {
		phase = telemetry.PhaseFailed
	}
	return c.WorkerJob(job.Workers.Name).Annotate(ctx, Progress{Phase: phase, Reason: plan.Reason,
		Generation: int64(plan.Generation)}, time.Now())
}

// run is the number of the run that the Job's pods belong to; 0: it does not say.
func (j *Job) run() int64 {
	run, _ := strconv.ParseInt(j.Workers.Spec.Template.Annotations[annotationRun], 10, 64)
	return run
}

// older says so if a run is one that the Job's own waits for.
func (j *Job) older(run int64) string {
	if run >= j.run() {
		return ""
	}
	return fmt.Sprintf(" (run %d, which the newer run %d waits for)", run, j.run())
}

func hasEnded(name, reason string) error {
	if reason == "" {
		return fmt.Errorf("job %s has ended", name)
	}
	return fmt.Errorf("job %s has ended: %s", name, reason)
}

// ending is how a job has ended.
type ending struct {
	plan       cluster.Plan
	step       int64
	checkpoint string
	nowhere    bool // the job was not told where to save
}

func (e ending) tell(name string, say func(string)) error {
	if e.plan.Failed {
		return fmt.Errorf("job %s has failed: %s", name, e.plan.Reason)
	}
	switch {
	case e.checkpoint == "" && e.nowhere:
		say(fmt.Sprintf("job %s has ended (%s) without a checkpoint: it was submitted without "+
			"--checkpoint-dir", name, e.plan.Reason))
		return nil
	case e.checkpoint == "":
		say(fmt.Sprintf("job %s has ended (%s) without a checkpoint", name, e.plan.Reason))
		return nil
	}
	say(fmt.Sprintf("job %s has ended (%s); checkpoint of step %d: %s", name, e.plan.Reason,
		e.step, e.checkpoint))
	return nil
}

// stop asks the leader, and waits for the end, which the plan says.
func stop(ctx context.Context, store *etcdstore.Store, client *rpc.Client, how Stop) (
	end ending, err error) {
	ctx, cancel := limited(ctx, how.Timeout, func() string {
		return fmt.Sprintf("the job has not ended within %v: it goes on stopping; see rondo status",
			how.Timeout)
	})
	defer cancel()
	var listening sync.WaitGroup
	hearing, deaf := context.WithCancel(ctx)
	defer listening.Wait()
	defer deaf()
	heard := make(chan struct{})
	var kept ending
	listening.Go(func() {
		defer close(heard)
		_ = client.Watch(hearing, func(e *rondov1.Event) error { // the plan says how it ends
			kept.hear(e)
			return nil
		})
	})
	asking, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	listening.Go(func() { // a leader may end with the job before its answer is here
		if err := client.Stop(asking, how.Reason); err != nil {
			giveUp(err)
		}
	})
	ended := errors.New("the job has ended")
	err = store.WatchPlan(asking, func(p cluster.Plan) error {
		end.plan = p
		if p.Phase == cluster.Ended {
			return ended
		}
		return nil
	})
	if !errors.Is(err, ended) {
		return end, or(context.Cause(asking), err)
	}
	giveUp(nil)
	late := time.AfterFunc(farewell, deaf)
	defer late.Stop()
	<-heard
	end.step, end.checkpoint = kept.step, kept.checkpoint
	return end, nil
}

// or returns the first error that is one.
func or(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// hear keeps the newest checkpoint that the job speaks of.
func (e *ending) hear(event *rondov1.Event) {
	shown, err := events.Telemetry(event)
	if err != nil {
		return // of a newer version: not what we listen for
	}
	switch said := shown.(type) {
	case telemetry.Checkpoint:
		e.step, e.checkpoint = said.Step, said.Path
	case telemetry.Done:
		if said.Checkpoint != "" {
			e.step, e.checkpoint = said.Step, said.Checkpoint
		}
	}
}
