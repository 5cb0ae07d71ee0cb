package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/job/jobspec"
)

// A worker that is out comes back after a pause that grows, so that one that is put out again and
// again does not take the others' time.
const (
	firstReturn = time.Second
	lastReturn  = 30 * time.Second
)

// leaderLooks is how often a worker without a ring looks for a leader within --regroup-timeout.
const leaderLooks = 12

// endedError is the job's end, as the plan has it.
type endedError struct{ plan cluster.Plan }

func (e *endedError) Error() string { return "the job has ended: " + e.plan.Reason }

// outError is why a worker that could go on is not a member any more: its lease has passed, or the
// coordinator has evicted it. It may come back as a new member.
type outError struct {
	reason string
	forget bool // its state is not to be trusted
	alone  bool // it is cut off from etcd, and nobody may be left who has the state
}

func (e *outError) Error() string { return e.reason }

// errLeaseLost is why a worker stops by itself: others may take over its lanes.
var errLeaseLost = errors.New("this worker's lease in etcd has passed: it was cut off from etcd " +
	"or stuck for longer than --lease-ttl")

// live is a worker's life: one membership after another, until the job has ended.
func (w *worker) live(ctx context.Context) (err error) {
	defer func() {
		if w.engine != nil {
			err = errors.Join(err, w.engine.close())
		}
		err = errors.Join(err, w.closeDevice())
	}()
	pause := firstReturn
	for number := 1; ; number++ {
		err := w.join(ctx, number)
		var out *outError
		if !errors.As(err, &out) {
			return err
		}
		if out.forget && w.engine != nil {
			w.engine.trainer.Forget()
		}
		if w.well {
			pause, w.well = firstReturn, false
		}
		w.log.Warn("this worker is out, and comes back", "reason", out.reason, "in", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if out.alone {
				return w.keep(ctx)
			}
			return nil // it is in no ring
		}
		pause = min(2*pause, lastReturn)
	}
}

// join is one membership: the worker registers, and does what the plans say until the job has
// ended, it leaves, or it is out.
func (w *worker) join(ctx context.Context, number int) (err error) {
	if number > 1 {
		w.farewell(ctx, nil)
		w.member.ID = fmt.Sprintf("%s.%d", w.name, number)
		if err := w.openVoice(); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, w.spec.PauseTimeout.AsDuration())
	defer cancel()
	registration, err := w.registry.Register(limited, w.member, w.spec.LeaseTtl.AsDuration())
	switch {
	case err != nil && ctx.Err() != nil: // it was asked to go
		return w.keep(ctx)
	case err != nil:
		return err
	}
	w.ready.Set(true)
	defer func() {
		w.ready.Set(false)
		var out *outError
		if !errors.As(err, &out) {
			w.tell(ctx, err) // so that the coordinator hears the reason before it misses us
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if err := registration.Leave(limited); err != nil {
			w.log.Debug("leaving; the lease ends by itself", "error", err)
		}
	}()
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	plans := newPlans()
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(life, end, plans) })
	watching.Go(func() {
		select {
		case <-registration.Lost():
			end(&outError{reason: errLeaseLost.Error(), alone: true})
		case <-life.Done():
		}
	})
	defer func() {
		end(nil)
		watching.Wait()
	}()
	return w.follow(life, ctx.Done(), plans)
}

// watch keeps the newest plan, and ends life with the job.
func (w *worker) watch(life context.Context, end context.CancelCauseFunc, plans *plans) {
	err := w.registry.WatchPlan(life, func(p cluster.Plan) error {
		switch newer := w.newerRun(life); {
		case newer != 0: // the end of this worker's own run, and all of its plans, went unseen
			end(superseded(w.spec.Job, w.spec.Submitted, newer))
		case p.Phase == cluster.Ended:
			end(&endedError{plan: p})
		}
		plans.set(p)
		return nil
	})
	if life.Err() == nil {
		end(fmt.Errorf("watching the plan: %w", err))
	}
}

// newerRun returns the number of a run that was submitted after this worker's; 0 if there is none,
// or etcd does not answer at the moment: each plan is another occasion.
func (w *worker) newerRun(ctx context.Context) int64 {
	stored, err := w.registry.Spec(ctx)
	if run := meet.RunOf(stored); err == nil && run > w.spec.Submitted {
		return run
	}
	return 0
}

// plans is the newest plan.
type plans struct {
	mu      sync.Mutex
	plan    cluster.Plan
	changed chan struct{}
}

func newPlans() *plans { return &plans{changed: make(chan struct{})} }

func (p *plans) set(plan cluster.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
	close(p.changed)
	p.changed = make(chan struct{})
}

// newest returns the newest plan, and what is closed when there is another one.
func (p *plans) newest() (cluster.Plan, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan, p.changed
}

// follow is in the ring of each plan that has one for this member.
func (w *worker) follow(life context.Context, leave <-chan struct{}, plans *plans) error {
	wait := w.newWait()
	looks, cancel := context.WithCancel(life)
	defer func() {
		cancel()
		wait.stop()
	}()
	served, leaving := cluster.Generation(0), false // the last ring's; it was asked to go
	asked := leave                                  // each ring is told by leave itself
	for {
		plan, changed := plans.newest()
		_, inRing := plan.Rank(w.member.ID)
		if out := w.evicted(plan); out != nil && life.Err() == nil {
			return out
		}
		switch {
		case life.Err() != nil:
			if served == 0 {
				w.log.Warn("this worker was in no ring", "reason", context.Cause(life))
			}
			return w.explain(context.Cause(life))
		case inRing && plan.Generation > served:
			served = plan.Generation
			done, err := w.serveRing(life, leave, plan, plans)
			if err != nil {
				return err
			}
			wait.begin(done)
			continue
		case leaving && (!inRing || plan.Rings <= 1 && !w.hasSat):
			if plan.Phase == cluster.Paused {
				return w.keep(life)
			}
			return nil
		}
		select {
		case <-life.Done():
		case <-changed:
		case <-asked:
			if leaving = true; inRing {
				wait.leave() // it says so in its next ring
			}
			asked = nil
		case <-wait.look.C:
			if inRing && wait.forgotten() {
				return &outError{reason: fmt.Sprintf("its ring of generation %d has ended, and no "+
					"other was planned within --regroup-timeout", served)}
			}
			wait.lookForLeader(looks)
		case led := <-wait.led:
			if err := wait.passed(led); err != nil {
				return err
			}
		}
	}
}

// keep saves what this worker holds, when it leaves a job that may have nobody else.
func (w *worker) keep(ctx context.Context) error {
	if w.engine == nil {
		return nil
	}
	err := w.engine.keep(ctx)
	w.kept = err == nil && jobspec.KeepsModel(w.spec)
	return err
}

// evicted returns why this member gets no rank; nil if it may.
func (w *worker) evicted(plan cluster.Plan) error {
	for _, e := range plan.Evicted {
		if e.ID != w.member.ID {
			continue
		}
		switch e.Remedy {
		case cluster.Leave:
			return errors.New(e.Reason) // of this machine alone: another may do
		case cluster.Rejoin, cluster.Resync:
			return &outError{reason: "evicted: " + e.Reason, forget: e.Remedy == cluster.Resync}
		case cluster.Wait:
		}
	}
	return nil
}

// explain turns the reason of life's end into the worker's result.
func (w *worker) explain(cause error) error {
	var ended *endedError
	if !errors.As(cause, &ended) {
		return cause
	}
	if ended.plan.Failed {
		return &app.JobError{Err: cause}
	}
	w.end = &ended.plan
	return nil
}
