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

// Limits of the waits for a job's end.
const (
	// stopTimeout is from a request to stop to the end: the step in progress and the last
	// checkpoint.
	stopTimeout = 5 * time.Minute
	// reportTimeout is for etcd or the coordinator to hear of a worker's end.
	reportTimeout = 5 * time.Second
)

// watch is what a run hears of its job.
type watch struct {
	run     Run
	client  *rpc.Client
	store   *etcdstore.Store
	workers *Workers
	end     context.CancelFunc // of everything, without an orderly end

	stopping sync.Once

	mu       sync.Mutex
	wanted   int             // processes of this machine
	done     *telemetry.Done // the job's end
	failed   bool            // the job's end is a failure
	showErr  error           // why events are not shown any more
	deserted error           // nobody works on the job any more
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

// scale starts the processes that a bigger ring needs, where all workers are of this machine. What
// a smaller one does not need stays as a spare.
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

// guard sees to it that a worker process that dies is missed at once, and starts it again, until
// the job ends. One that dies soon after it was started waits before it is started again.
func (w *watch) guard(life context.Context) {
	restarts, pause := 0, time.Duration(0)
	due := time.NewTimer(0)
	due.Stop()
	defer due.Stop()
	var waiting []int // numbers of workers to start again
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
			alone := len(w.run.Etcd) == 0 // nobody else can come
			if alone && w.giveUp(life, exit, w.workers.Running()+len(waiting)) {
				return
			}
		}
	}
}

// shortLife is of a process whose death says something about the job; longPause is the longest wait
// before such a one is started again.
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

// judge says whether the process that ended is to be started again, and what people should know.
func (w *watch) judge(life context.Context, exit Exit, restarts *int) (again bool, text string) {
	var status *exec.ExitError
	if errors.As(exit.Err, &status) {
		switch status.ExitCode() {
		case app.ExitUsage, app.ExitJob, app.ExitLeft:
			return false, "" // it has said what is wrong, or was asked to go
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

// unregister takes a dead process out of the job's members: its lease would end by itself, later.
func (w *watch) unregister(life context.Context, exit Exit) {
	ctx, cancel := context.WithTimeout(life, reportTimeout)
	defer cancel()
	err := w.store.Unregister(ctx, meet.HostName(), exit.PID)
	if err != nil && life.Err() == nil {
		w.run.Log(fmt.Sprintf("worker %d (process %d) ended: %v; its lease ends by itself: %v",
			exit.Worker, exit.PID, exit.Err, err))
	}
}

// giveUp ends a job of this machine alone when too few processes are left: none, or before the
// first ring fewer than that needs, and says whether it did. Why the job has come to that is in
// its plan.
func (w *watch) giveUp(life context.Context, exit Exit, left int) bool {
	if left >= int(w.run.Spec.MinWorkers) {
		return false
	}
	ctx, cancel := context.WithTimeout(life, reportTimeout)
	defer cancel()
	view, err := w.store.View(ctx)
	if err == nil && view.Plan.Phase == cluster.Ended && !view.Plan.Failed {
		return false // its last event is on its way
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
	w.deserted = errors.New(text + "; --resume auto goes on from the newest checkpoint, if one " +
		"was kept")
	w.mu.Unlock()
	w.end()
	return true
}

// last shows a failure of which nobody has been told by an event.
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

// result is the job's end, or why there is none. The job's own reason goes before what followed
// from it.
func (w *watch) result(led, watched error) (telemetry.Done, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var outcome telemetry.Done
	if w.done != nil {
		outcome = *w.done
	}
	switch {
	case w.deserted != nil && w.done == nil && !w.failed:
		return outcome, w.deserted
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
