package local

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/events"
	"rondo/cmd/internal/meet"
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
// the job ends.
func (w *watch) guard(life context.Context) {
	for restarts := 0; ; {
		select {
		case <-life.Done():
			return
		case exit := <-w.workers.Exits():
			var status *exec.ExitError
			refused := errors.As(exit.Err, &status) && status.ExitCode() == app.ExitUsage
			if exit.Err != nil && !refused {
				w.unregister(life, exit)
			}
			if exit.Err != nil && !refused && restarts < w.run.Restarts {
				restarts++
				w.run.Log(fmt.Sprintf("worker %d (process %d) ended: %v; it is started again "+
					"(%d of %d, --restarts)", exit.Worker, exit.PID, exit.Err, restarts,
					w.run.Restarts))
				if err := w.workers.Start(exit.Worker); err != nil {
					w.run.Log(err.Error())
				}
			}
			if w.workers.Running() == 0 && len(w.run.Etcd) == 0 {
				w.giveUp(life, exit)
			}
		}
	}
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

// giveUp ends a job of this machine alone, on which nobody works any more. Why the job has come to
// that is in its plan.
func (w *watch) giveUp(life context.Context, exit Exit) {
	ctx, cancel := context.WithTimeout(life, reportTimeout)
	defer cancel()
	how := "with exit code 0"
	if exit.Err != nil {
		how = fmt.Sprintf("with %v", exit.Err)
	}
	text := fmt.Sprintf("every worker process has ended, the last one (process %d) %s, and "+
		"--restarts %d are used up", exit.PID, how, w.run.Restarts)
	if view, err := w.store.View(ctx); err == nil && view.Plan.Reason != "" {
		reason, _, _ := strings.Cut(view.Plan.Reason, "; paused: ")
		text += "; the last of it: " + reason
	}
	w.mu.Lock()
	w.deserted = errors.New(text + "; --resume auto goes on from the newest checkpoint, if one " +
		"was kept")
	w.mu.Unlock()
	w.end()
}

// last shows a failure of which nobody has been told by an event.
func (w *watch) last(ctx context.Context, failure error) {
	w.mu.Lock()
	told := w.failed || w.showErr != nil
	w.mu.Unlock()
	if failure == nil || told {
		return
	}
	if err := w.run.Show(ctx, telemetry.Failed{Reason: failure.Error()}); err != nil {
		w.run.Log(fmt.Sprintf("showing the job's end: %v", err))
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
	return outcome, waited
}
