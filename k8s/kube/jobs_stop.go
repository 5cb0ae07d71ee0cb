package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Limits of waits for a job's observer.
const (
	// farewell is the time that an observer has to write the end after the Job's own end.
	farewell = 30 * time.Second
	// forgetTimeout bounds a job's stop and the removal of its keys in etcd.
	forgetTimeout = 10 * time.Second
)

// Stop holds the options of Cluster.Stop.
type Stop struct {
	Timeout time.Duration // from the request to the end: a step, and the last checkpoint
	Force   bool          // also a job whose model is then lost
	Say     func(string)  // receives a line about each change
}

// Stop annotates the Job with a stop request and waits until the job has ended. The observer beside
// the leader passes the request on; the leader stops the job after a step, with a checkpoint.
func (c *Cluster) Stop(ctx context.Context, name string, how Stop) error {
	job, err := c.Job(ctx, name)
	if err != nil {
		return err
	}
	p := job.Progress()
	switch {
	case job.Ended():
		return hasEnded(name, job.Reason())
	case p.Phase == "":
		return fmt.Errorf("job %s has not begun: no coordinator has stored it yet%s; %s removes it",
			name, c.why(name), c.command("delete", name))
	}
	if silence := job.silence(time.Now()); silence > SilenceLimit {
		return fmt.Errorf("job %s cannot be asked to stop: nothing was heard of it for %v%s", name,
			silence.Round(time.Second), c.why(name))
	}
	spec, err := job.spec(ctx)
	if err != nil {
		return err
	}
	if err := Stoppable(spec, p.Phase == telemetry.PhaseForming, how.Force); err != nil {
		return err
	}
	how.Say(fmt.Sprintf("job %s is %s, with %d in the ring: stopping it", name, p.Phase,
		p.WorldSize))
	ctx, cancel := context.WithTimeoutCause(ctx, how.Timeout, fmt.Errorf("the job has not ended "+
		"within %v: it goes on stopping; see rondo status", how.Timeout))
	defer cancel()
	_, err = c.WorkerJob(job.Workers.Name).patch(ctx,
		map[string]any{annotations + "stop": "rondo stop"}, manager)
	if err != nil {
		return Explain(err, "asking job "+name+" to stop")
	}
	end, err := job.awaitEnd(ctx)
	if err != nil {
		return err
	}
	return tellEnd(end, jobspec.KeepsModel(spec), how.Say)
}

// Stoppable fails if a stop would lose the job's model, unless that is forced. A job that forms its
// first ring has no model.
func Stoppable(spec *rondov1.JobSpec, forming, force bool) error {
	if force || forming || jobspec.KeepsModel(spec) {
		return nil
	}
	return app.Usagef("job %s has no --checkpoint-dir, so its model would be lost: let it train "+
		"to its end, or give --force to stop it all the same; jobs submitted with "+
		"--checkpoint-dir can be stopped and resumed", spec.Job)
}

func hasEnded(name, reason string) error {
	if reason == "" {
		return fmt.Errorf("job %s has ended", name)
	}
	return fmt.Errorf("job %s has ended: %s", name, reason)
}

// awaitEnd waits until the job has ended and its observer has written how. It does not wait for an
// observer that is gone.
func (j *Job) awaitEnd(ctx context.Context) (*Job, error) {
	end, stopping := j, false
	err := j.follow(ctx, func(now *Job) (bool, error) {
		end = now
		phase := now.Progress().Phase
		if stopping && phase != telemetry.PhaseStopping && !now.Ended() {
			return false, fmt.Errorf("an older run of job %s has been stopped, and the newer one "+
				"goes on: %s stops that", j.Name, j.cluster.command("stop", j.Name))
		}
		stopping = stopping || phase == telemetry.PhaseStopping
		return now.Ended(), nil
	})
	if err != nil || end.Progress().Over() {
		return end, err
	}
	late, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	err = end.follow(late, func(now *Job) (bool, error) {
		end = now
		return now.Progress().Over(), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return end, err
}

// tellEnd reports how a job has ended, and its checkpoint.
func tellEnd(job *Job, keepsModel bool, say func(string)) error {
	p, reason := job.Progress(), job.Reason()
	switch {
	case job.Failed():
		return fmt.Errorf("job %s has failed: %s", job.Name, reason)
	case p.Checkpoint == "" && !keepsModel:
		say(fmt.Sprintf("job %s has ended (%s) without a checkpoint: it was submitted without "+
			"--checkpoint-dir", job.Name, reason))
	case p.Checkpoint == "":
		say(fmt.Sprintf("job %s has ended (%s) without a checkpoint", job.Name, reason))
	default:
		say(fmt.Sprintf("job %s has ended (%s); checkpoint of step %d: %s", job.Name, reason,
			p.CheckpointStep, p.Checkpoint))
	}
	return nil
}
