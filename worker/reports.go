package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// reporter sends events to the leader; rpc.Reporter implements it.
type reporter interface {
	Report(ctx context.Context, e *rondov1.Event) error
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// reports is what a worker reports to the leader and logs.
type reports struct {
	log             *slog.Logger
	newReporter     func(id string) (reporter, error) // of a member
	current         atomic.Pointer[memberReporter]
	failureReported bool // this worker has reported why it fails
	failureKnown    bool // the coordinator knows of the failure
}

// memberReporter is a member's reporter.
type memberReporter struct {
	reporter
	id string
}

// beginReports opens the reporter of a member. Its last events are sent by farewell.
func (r *reports) beginReports(id string) error {
	to, err := r.newReporter(id)
	if err == nil {
		r.current.Store(&memberReporter{reporter: to, id: id})
	}
	return err
}

// reportEvent queues an event. An unreachable coordinator must not stop the training.
func (r *reports) reportEvent(ctx context.Context, e *rondov1.Event) {
	if err := r.current.Load().Report(ctx, e); err != nil {
		r.log.Warn("an event is lost", "error", err)
	}
}

func (r *reports) notice(ctx context.Context, text string) {
	r.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Id: r.current.Load().id, Text: text}}})
}

// jobNotice sends a notice about the job rather than about this worker.
func (r *reports) jobNotice(ctx context.Context, text string) {
	r.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Text: text}}})
}

// flush waits a limited time for the coordinator to receive all events.
func (r *reports) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout)
	defer cancel()
	if err := r.current.Load().Flush(ctx); err != nil {
		r.log.Debug("the coordinator does not answer", "error", err)
	}
}

// reportFailure reports, once, why this worker cannot go on, unless the coordinator has ended the
// job. It returns when the coordinator has the report, because only then may others see this worker
// leave.
func (r *reports) reportFailure(ctx context.Context, err error) {
	var ended *endedError
	if errors.As(err, &ended) {
		r.failureKnown = true
	}
	if err == nil || r.failureReported || r.failureKnown {
		return
	}
	r.failureReported = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	reportErr := r.current.Load().Report(ctx, r.failure(err))
	if reportErr == nil {
		reportErr = r.current.Load().Flush(ctx)
	}
	r.failureKnown = reportErr == nil
	if reportErr != nil {
		r.log.Warn("telling the coordinator of a failure", "error", reportErr)
	}
}

// farewell sends a member's last events.
func (r *reports) farewell(ctx context.Context, err error) {
	r.reportFailure(ctx, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if r.failureReported && !r.failureKnown {
		cancel() // the wait has already failed once
	}
	if err := r.current.Load().Close(ctx); err != nil {
		r.log.Debug("leaving without the coordinator's answer", "error", err)
	}
}

// failure returns the event of an error. It says whether every worker would have the error.
func (r *reports) failure(err error) *rondov1.Event {
	f := &rondov1.FailureEvent{Id: r.current.Load().id, Text: err.Error()}
	var wrong *app.UsageError
	var spec *jobspec.UsageError
	var ring *ringError
	f.Usage = errors.As(err, &wrong) || errors.As(err, &spec)
	if errors.As(err, &ring) {
		f.Generation, f.Fatal = uint64(ring.generation), ring.fatal
	}
	return &rondov1.Event{Kind: &rondov1.Event_Failure{Failure: f}}
}
