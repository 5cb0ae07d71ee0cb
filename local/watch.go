package local

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/cluster/rpc"
	"rondo/internal/app"
	"rondo/internal/events"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Time limits at a job's end.
const (
	// stopTimeout is the time from the request to stop until the end. It covers the current step
	// and the last checkpoint.
	stopTimeout = 5 * time.Minute
	// reportTimeout bounds a request to etcd or the coordinator about a worker's end.
	reportTimeout = 5 * time.Second
)

// watch supervises a run: it receives the job's events and replaces dead workers.
type watch struct {
	run     Run
	client  *rpc.Client
	store   *etcdstore.Store
	workers *Workers
	end     context.CancelFunc // ends everything at once

	stopping sync.Once

	mu          sync.Mutex
	wanted      int             // processes on this machine
	done        *telemetry.Done // the job's end
	failed      bool            // the job failed
	showErr     error           // why events are no longer shown
	giveUpError error           // why the job was given up
}

// hear shows an event and keeps the job's end. If events cannot be shown any more, it asks the job
// to stop.
func (w *watch) hear(life context.Context, e *rondov1.Event) error {
	shown, err := events.Telemetry(e)
	if err != nil {
		return err
	}
	w.mu.Lock()
	if done, ok := shown.(telemetry.Done); ok {
		w.done = &done
	}
	w.failed = w.failed || e.GetFailure() != nil
	silent := w.showErr != nil
	w.mu.Unlock()
	if scale := e.GetScale(); scale != nil {
		w.scale(int(scale.Workers))
	}
	w.run.showOnPage(shown)
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

// stop asks the job to stop. If the job does not stop in time, everything is ended.
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

// scale starts the processes for a larger ring, if all workers run on this machine. Processes that
// a smaller ring does not need stay as spares.
func (w *watch) scale(workers int) {
	if w.run.LocalWorkers >= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; w.wanted < workers; w.wanted++ {
		if err := w.workers.Start(w.wanted); err != nil {
			w.run.Log(err.Error())
			return
		}
	}
}

// guard handles the end of worker processes until the job ends. It unregisters a dead one at once
// and starts it again. A process that died soon after its start waits before its restart.
func (w *watch) guard(life context.Context) {
	restarts, pause := 0, time.Duration(0)
	due := time.NewTimer(0)
	due.Stop()
	defer due.Stop()
	var waiting []int // numbers of the workers to restart
	for {
		select {
		case <-life.Done():
			return
		case <-due.C:
			for _, worker := range waiting {
				if err := w.workers.Start(worker); err != nil {
					w.run.Log(err.Error())
				}
			}
			waiting = nil
		case exit := <-w.workers.Exits():
			again, text := w.judge(life, exit, &restarts)
			if again {
				pause = nextPause(pause, exit.Lived)
				waiting = append(waiting, exit.Worker)
				due.Reset(pause)
			}
			if text != "" {
				w.run.Log(text)
			}
			alone := len(w.run.Etcd) == 0 // no other machine can add workers
			if alone && w.giveUp(life, exit, w.workers.Running()+len(waiting)) {
				return
			}
		}
	}
}

// shortLife is the lifetime up to which a restart is delayed. longPause is the longest delay.
const (
	shortLife = 5 * time.Second
	longPause = 30 * time.Second
)

func nextPause(last, lived time.Duration) time.Duration {
	if lived > shortLife {
		return 0
	}
	return min(max(2*last, time.Second/2), longPause)
}

// judge decides whether an ended process is restarted. text is a line for the log, or empty.
func (w *watch) judge(life context.Context, exit Exit, restarts *int) (again bool, text string) {
	var status *exec.ExitError
	if errors.As(exit.Err, &status) {
		switch status.ExitCode() {
		case app.ExitUsage, app.ExitJob, app.ExitLeft:
			return false, "" // it has reported why, or was asked to leave
		}
	}
	if exit.Err == nil {
		return false, ""
	}
	w.unregister(life, exit)
	if life.Err() != nil {
		return false, ""
	}
	text = fmt.Sprintf("worker process %d ended: %v; ", exit.PID, exit.Err)
	if *restarts == w.run.Restarts {
		return false, fmt.Sprintf("%sit is not started again: --restarts %d are used up", text,
			w.run.Restarts)
	}
	*restarts++
	return true, fmt.Sprintf("%sit is started again (%d of %d, --restarts)", text, *restarts,
		w.run.Restarts)
}

// unregister removes a dead process from the job's members before its lease ends.
func (w *watch) unregister(life context.Context, exit Exit) {
	ctx, cancel := context.WithTimeout(life, reportTimeout)
	defer cancel()
	err := w.store.Unregister(ctx, meet.HostName(), exit.PID)
	if err != nil && life.Err() == nil {
		w.run.Log(fmt.Sprintf("worker %d (process %d) ended: %v; its lease ends by itself: %v",
			exit.Worker, exit.PID, exit.Err, err))
	}
}

// giveUp ends a job that runs only on this machine if too few processes are left: none, or, before
// the first ring, fewer than --min-workers. It returns whether it did. The reason of the job's plan
// is added to the error.
func (w *watch) giveUp(life context.Context, exit Exit, left int) bool {
	if left >= int(w.run.Spec.MinWorkers) {
		return false
	}
	ctx, cancel := context.WithTimeout(life, reportTimeout)
	defer cancel()
	view, err := w.store.View(ctx)
	if err == nil && view.Plan.Phase == cluster.Ended && !view.Plan.Failed {
		return false // its last event will arrive
	}
	if left > 0 && (err != nil || view.Plan.Phase != cluster.Forming) {
		return false
	}
	how := "with exit code 0"
	if exit.Err != nil {
		how = fmt.Sprintf("with %v", exit.Err)
	}
	ended := "every worker process has ended"
	if left > 0 {
		ended = fmt.Sprintf("%d of at least %d worker processes (--min-workers) are left for the "+
			"start", left, w.run.Spec.MinWorkers)
	}
	text := fmt.Sprintf("%s, the last one (process %d) %s, and --restarts %d are used up", ended,
		exit.PID, how, w.run.Restarts)
	if err == nil && view.Plan.Reason != "" {
		reason, _, _ := strings.Cut(view.Plan.Reason, "; paused: ")
		text += "; the last of it: " + reason
	}
	w.mu.Lock()
	w.giveUpError = errors.New(text + "; --resume auto goes on from the newest checkpoint, if " +
		"one was kept")
	w.mu.Unlock()
	w.end()
	return true
}

// last shows a failure that no event has reported.
func (w *watch) last(ctx context.Context, failure error) {
	w.mu.Lock()
	told := w.failed || w.showErr != nil
	w.mu.Unlock()
	if failure == nil || told {
		return
	}
	end := telemetry.Failed{Reason: failure.Error()}
	w.run.showOnPage(end)
	if err := w.run.Show(ctx, end); err != nil {
		w.run.Log(fmt.Sprintf("showing the job's end: %v", err))
	}
}

// result returns the job's end, or the error. The job's own reason precedes consequences of it.
func (w *watch) result(led, watched error) (telemetry.Done, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var outcome telemetry.Done
	if w.done != nil {
		outcome = *w.done
	}
	switch {
	case w.giveUpError != nil && w.done == nil && !w.failed:
		return outcome, w.giveUpError
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
	return outcome, nil
}
