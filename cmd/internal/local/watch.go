package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"rondo/cluster/rpc"
	"rondo/cmd/internal/events"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Limits of the waits for a job's end.
const (
	// stopTimeout is from a request to stop to the end: the step in progress and the last
	// checkpoint.
	stopTimeout = 5 * time.Minute
	// exitGrace is how long a worker process may be gone before its death is reported: those who
	// know better, itself and its neighbours, go first.
	exitGrace = time.Second
	// reportTimeout is for the coordinator to hear of it.
	reportTimeout = 5 * time.Second
)

// watch is what a run hears of its job.
type watch struct {
	run    Run
	client *rpc.Client
	end    context.CancelFunc // of everything, without an orderly end

	stopping sync.Once

	mu      sync.Mutex
	pids    map[int64]string // workers' ids by process
	done    *telemetry.Done  // the job's end
	failed  bool             // the job's end is a failure
	showErr error            // why events are not shown any more
}

// hear passes an event on, and keeps the job's end. When nobody can be shown anything any more, it
// asks the job to stop.
func (w *watch) hear(life context.Context, e *rondov1.Event) error {
	shown, err := events.Telemetry(e)
	if err != nil {
		return err
	}
	w.mu.Lock()
	if done, ok := shown.(telemetry.Done); ok {
		w.done = &done
	}
	if worker, ok := shown.(telemetry.Worker); ok {
		w.pids[worker.PID] = worker.ID
	}
	w.failed = w.failed || e.GetFailure() != nil
	silent := w.showErr != nil
	w.mu.Unlock()
	if silent {
		return nil
	}
	if err := w.run.Show(life, shown); err != nil {
		w.mu.Lock()
		w.showErr = fmt.Errorf("showing the job's events: %w", err)
		w.mu.Unlock()
		go w.stop(life, "its output cannot be written")
	}
	return nil
}

// stop asks the job to stop, and ends everything if it does not in time.
func (w *watch) stop(life context.Context, reason string) {
	w.stopping.Do(func() {
		limited, cancel := context.WithTimeout(life, stopTimeout)
		defer cancel()
		if err := w.client.Stop(limited, reason); err != nil && life.Err() == nil {
			w.run.Log(fmt.Sprintf("the job cannot be asked to stop: %v", err))
			w.end()
			return
		}
		<-limited.Done()
		if life.Err() == nil {
			w.run.Log(fmt.Sprintf("the job did not stop within %v", stopTimeout))
			w.end()
		}
	})
}

// guard tells the coordinator of a worker process that ended before the job, until the job ends.
func (w *watch) guard(life context.Context, workers *Workers) {
	for {
		select {
		case <-life.Done():
			return
		case exit := <-workers.Exits():
			if exit.Err == nil {
				continue
			}
			select {
			case <-life.Done():
				return
			case <-time.After(exitGrace):
			}
			w.reportDeath(life, exit)
		}
	}
}

func (w *watch) reportDeath(life context.Context, exit Exit) {
	w.mu.Lock()
	id := w.pids[int64(exit.PID)]
	w.mu.Unlock()
	if id == "" {
		id = fmt.Sprintf("process-%d", exit.PID) // it had not joined a ring
	}
	ctx, cancel := context.WithTimeout(life, reportTimeout)
	defer cancel()
	reporter, err := w.client.NewReporter(fmt.Sprintf("exit-%d", exit.PID))
	if err == nil {
		err = errors.Join(reporter.Report(ctx, &rondov1.Event{Kind: &rondov1.Event_Failure{
			Failure: &rondov1.FailureEvent{Id: id, Text: fmt.Sprintf("process %d ended: %v",
				exit.PID, exit.Err)}}}), reporter.Close(ctx))
	}
	if err != nil && life.Err() == nil {
		w.run.Log(fmt.Sprintf("worker %d (process %d) ended: %v", exit.Worker, exit.PID, exit.Err))
	}
}

// result is the job's end, or why there is none. The job's own reason goes before what followed
// from it.
func (w *watch) result(led, watched, waited error) (telemetry.Done, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var outcome telemetry.Done
	if w.done != nil {
		outcome = *w.done
	}
	switch {
	case led != nil && !errors.Is(led, context.Canceled):
		return outcome, led
	case w.showErr != nil:
		return outcome, w.showErr
	case watched != nil && !errors.Is(watched, context.Canceled):
		return outcome, watched
	case led != nil:
		return outcome, led
	case w.done == nil:
		return outcome, errors.New("the job has ended, but its result was lost with the " +
			"coordinator that knew it")
	}
	return outcome, waited
}
