package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"rondo/cluster"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/job"
)

// endedError is the job's end, as the plan has it.
type endedError struct{ plan cluster.Plan }

func (e *endedError) Error() string { return "the job has ended: " + e.plan.Reason }

// errLeaseLost is why a worker stops by itself: others may take over its lanes.
var errLeaseLost = errors.New("this worker's lease in etcd has passed: it was cut off from etcd " +
	"or stuck for longer than --lease-ttl")

// orders is what the plan and signals ask of a worker.
type orders struct {
	assigned chan cluster.Plan // the first plan with this worker in its ring
	stop     atomic.Bool       // stop at the next step's end
	hear     atomic.Pointer[func()]
}

// requestStop asks for a stop, now or when training begins.
func (o *orders) requestStop() {
	o.stop.Store(true)
	if hear := o.hear.Load(); hear != nil {
		(*hear)()
	}
}

// onStop calls fn at a request to stop, also at one that has come before.
func (o *orders) onStop(fn func()) {
	o.hear.Store(&fn)
	if o.stop.Load() {
		fn()
	}
}

// follow does what the plans say until the job has ended.
func (w *worker) follow(ctx context.Context, data *job.Data) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	o := &orders{assigned: make(chan cluster.Plan, 1)}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.watch(life, end, o)
	}()
	go func() {
		select {
		case <-w.registration.Lost():
			end(errLeaseLost)
		case <-life.Done():
		}
	}()
	defer func() {
		end(nil)
		<-watched
	}()
	select {
	case plan := <-o.assigned:
		unhook := context.AfterFunc(ctx, o.requestStop)
		defer unhook()
		if err := w.train(life, plan, data, o); err != nil {
			if cause := context.Cause(life); cause != nil {
				return explain(cause)
			}
			return err
		}
		return w.awaitEnd(life)
	case <-life.Done():
		return explain(context.Cause(life))
	case <-ctx.Done():
		return fmt.Errorf("asked to leave before the ring had formed: %w", ctx.Err())
	}
}

// watch turns plans into orders, and ends life with the job.
func (w *worker) watch(life context.Context, end context.CancelCauseFunc, o *orders) {
	err := w.store.WatchPlan(life, func(p cluster.Plan) error {
		_, mine := p.Rank(w.id)
		switch p.Phase {
		case cluster.Running, cluster.Stopping:
			if mine {
				select {
				case o.assigned <- p:
				default: // it is training already
				}
			}
			if p.Phase == cluster.Stopping {
				o.requestStop()
			}
		case cluster.Ended:
			end(&endedError{plan: p})
		case cluster.Forming:
		}
		return nil
	})
	if life.Err() == nil {
		end(fmt.Errorf("watching the plan: %w", err))
	}
}

// awaitEnd waits for the other workers to be done, however long they take, as long as somebody
// leads the job.
func (w *worker) awaitEnd(life context.Context) error {
	look := time.NewTicker(endTimeout / leaderLooks)
	defer look.Stop()
	for missed := 0; missed < leaderLooks; {
		select {
		case <-life.Done():
			return explain(context.Cause(life))
		case <-look.C:
		}
		if _, err := w.store.Leader(life); err == nil {
			missed = 0
		} else {
			missed++
		}
	}
	return fmt.Errorf("this worker is done, but the job has not ended, and nobody has led it for "+
		"%v: start a coordinator", endTimeout)
}

// explain turns the reason of life's end into the worker's result.
func explain(cause error) error {
	var ended *endedError
	if !errors.As(cause, &ended) {
		return cause
	}
	switch {
	case ended.plan.Usage:
		return app.Usage(cause)
	case ended.plan.Failed:
		return cause
	}
	return nil
}
