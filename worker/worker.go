// Package worker is a worker process: it finds its job in etcd, registers, and trains its lanes in
// one ring after another, as the coordinator plans them, until the job ends.
//
// The engine (device, model, trainer) outlives the rings and is opened once. A session is the
// worker's part in one ring; life.go has what happens between rings. The package decides nothing
// about membership and knows nothing of Kubernetes. internal/tidy lists what it may import.
package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/compute"
	"rondo/internal/app"
	"rondo/internal/health"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Time limits at a worker's end.
const (
	farewellTimeout = 5 * time.Second // to report why this worker ends
	leaveTimeout    = 3 * time.Second // to end the registration
)

// fabric is a worker's access to etcd and the ring's network.
type fabric struct {
	registry cluster.Registry
	// connect joins the ring of a seat. addresses are those of the ring's members. A neighbour to
	// which no connection opens within silence counts as lost.
	connect func(ctx context.Context, seat grpclink.Seat, addresses []string,
		silence time.Duration) (allreduce.Links, error)
	// reach opens a connection to a member's address, and closes it.
	reach func(ctx context.Context, address string) error
	// claim returns true once per job for each name.
	claim func(ctx context.Context, name string) (bool, error)
}

// worker is one process of one job.
type worker struct {
	fabric
	reports
	alone      bool // it shares its cores with no other worker
	spec       *rondov1.JobSpec
	data       job.Data
	name       string         // of the process; a member's id begins with it
	member     cluster.Member // the current or last registration
	own        string         // its own --device; empty: the job's
	allow      jobspec.Allow
	device     compute.Device // nil before it is opened
	engine     *engine        // nil before the first ring
	hasTrained bool           // this worker has trained in a ring
	stable     bool           // this worker has trained in a ring for a while
	end        *cluster.Plan  // the last plan of a job that ended well; nil: it has not
	kept       bool           // this worker saved its state when it left

	groupFault string // why its device is in no group any more; empty: it may be

	started health.Flag // it has the spec and the text
	ready   health.Flag // it is registered
	pulse   pulse
}

// reportedError is a failure that the coordinator knows.
type reportedError struct{ error }

func (e *reportedError) Unwrap() error { return e.error }

// verdict returns a worker's failure with the right exit code. A single worker cannot know whether
// a retry is useless, because its machine may be the cause. So it returns a JobError only if the
// leader, which knows the failure, has failed the job. It never returns a usage error: that exit
// code belongs to flags, and a crashed Go process has it too.
func (w *worker) verdict(ctx context.Context, err error) error {
	var ended *endedError
	var failed *app.JobError
	if err == nil || errors.As(err, &ended) || errors.As(err, &failed) {
		return err // the leader has decided
	}
	reported, own := w.failure(err).GetFailure(), errors.New(err.Error())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if newer := w.newerRun(ctx); newer != 0 {
		return superseded(w.spec.Job, w.spec.Submitted, newer)
	}
	var last cluster.Plan
	seen := errors.New("the plan is known")
	_ = w.registry.WatchPlan(ctx, func(p cluster.Plan) error {
		last = p
		if p.Phase != cluster.Ended && w.failureKnown && (reported.Usage || reported.Fatal) {
			return nil // wait for the leader's decision
		}
		return seen
	})
	if last.Phase == cluster.Ended && last.Failed {
		return &app.JobError{Err: own}
	}
	return own
}

// superseded is the error of a worker of an older run.
func superseded(name string, run, newer int64) error {
	return &app.JobError{Err: fmt.Errorf("this worker is of run %d of job %s, and run %d has been "+
		"submitted since: nothing is left to do for it", run, name, newer)}
}

// step returns the last step that this worker has completed; 0: none.
func (w *worker) step() int64 {
	if w.engine == nil || w.engine.observer == nil {
		return 0
	}
	return w.engine.observer.last.Step
}

// done describes this worker's part in a job that ended well.
func (w *worker) done() string {
	if step := w.step(); step > 0 {
		return fmt.Sprintf("done after step %d: %s", step, w.end.Reason)
	}
	return "the job has ended without a step of this worker: " + w.end.Reason
}

// left describes how this worker left a job that has not ended.
func (w *worker) left() string {
	text := "asked to go before the job's end"
	step := w.step()
	switch {
	case w.kept && step > 0:
		return fmt.Sprintf("%s, with too few others to go on; step %d is kept in a checkpoint",
			text, step)
	case step > 0:
		return fmt.Sprintf("%s, after step %d; the others go on", text, step)
	}
	return text + ", and before its first step"
}
