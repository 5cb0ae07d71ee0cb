package worker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"rondo/cluster"
	"rondo/internal/app"
	"rondo/job/jobspec"
)

// The pause before a worker registers again. It grows, so that a worker that is evicted repeatedly
// does not take up the others' time.
const (
	firstReturn = time.Second
	lastReturn  = 30 * time.Second
)

// leaderLooks is how often, within --regroup-timeout, a worker without a ring looks for a leader.
const leaderLooks = 12

// endedError says that the job has ended, with the last plan.
type endedError struct{ plan cluster.Plan }

func (e *endedError) Error() string { return "the job has ended: " + e.plan.Reason }

// expelledError says why a worker is not a member any more although it could go on: its lease has
// ended, or the coordinator has evicted it. It may register as a new member.
type expelledError struct {
	reason string
	forget bool // its state must be discarded
	alone  bool // it is cut off from etcd, so no other worker may have the state
	atOnce bool // it registers again without a pause
	probe  bool // others broke a ring because of it: it looks first whether it reaches them
}

func (e *expelledError) Error() string { return e.reason }

// errLeaseLost says that a worker must stop by itself, because others may take over its lanes.
var errLeaseLost = errors.New("this worker's lease in etcd has passed: it was cut off from etcd " +
	"or stuck for longer than --lease-ttl")

// live runs one membership after another until the job has ended.
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
		var out *expelledError
		if !errors.As(err, &out) {
			return err
		}
		if out.forget && w.engine != nil {
			w.engine.trainer.Forget()
			w.member.Served = 0
		}
		if w.stable {
			pause, w.stable = firstReturn, false
		}
		if out.atOnce {
			pause = 0
		}
		if out.probe {
			w.probe(ctx)
		}
		wait := jittered(pause, w.member.ID)
		w.log.Warn("this worker is no longer a member, and registers again", "reason", out.reason,
			"in", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if out.alone {
				return w.saveState(ctx)
			}
			return nil // it is in no ring
		}
		pause = min(max(2*pause, firstReturn), lastReturn)
	}
}

// jittered returns three to five quarters of a pause. It depends on the member: workers that were
// put out together do not all return at the same moment.
func jittered(pause time.Duration, id string) time.Duration {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(id)) // it never fails
	const parts = 1 << 10
	return pause*3/4 + pause/2*time.Duration(hash.Sum32()%parts)/parts
}

// join runs one membership: the worker registers and follows the plans. It returns when the job has
// ended, the worker leaves, or it loses its membership.
func (w *worker) join(ctx context.Context, number int) (err error) {
	if number > 1 {
		w.farewell(ctx, nil)
		w.member.ID = fmt.Sprintf("%s.%d", w.name, number)
		if err := w.beginReports(w.member.ID); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(ctx, w.spec.PauseTimeout.AsDuration())
	defer cancel()
	registration, err := w.registry.Register(limited, w.member, w.spec.LeaseTtl.AsDuration())
	switch {
	case err != nil && ctx.Err() != nil: // it was asked to leave
		return w.saveState(ctx)
	case err != nil: // no other worker may have the state
		return errors.Join(err, w.saveState(ctx))
	}
	w.ready.Set(true)
	defer func() {
		w.ready.Set(false)
		var out *expelledError
		if !errors.As(err, &out) {
			w.reportFailure(ctx, err) // before the registration ends without a reason
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
			end(&expelledError{reason: errLeaseLost.Error(), alone: true})
		case <-life.Done():
		}
	})
	defer func() {
		end(nil)
		watching.Wait()
		w.member.Seen = max(w.member.Seen, plans.highest)
	}()
	return w.follow(life, ctx.Done(), plans)
}

// watch stores the newest plan, and ends life when the job ends.
func (w *worker) watch(life context.Context, end context.CancelCauseFunc, plans *plans) {
	err := w.registry.WatchPlan(life, func(p cluster.Plan) error {
		switch newer := w.newerRun(life); {
		case newer != 0: // this worker's own run has ended, and its last plans were missed
			end(superseded(w.spec.Job, w.spec.Submitted, newer))
		case p.Phase == cluster.Ended:
			end(&endedError{plan: p})
		case plans.isOlder(p):
			end(&expelledError{reason: fmt.Sprintf("etcd has gone back to the plan of "+
				"generation %d: it was restored from a backup, or emptied", p.Generation),
				atOnce: true})
		}
		plans.set(p)
		return nil
	})
	if life.Err() == nil {
		end(fmt.Errorf("watching the plan: %w", err))
	}
}

// newerRun returns the number of a run that was submitted after this worker's. It returns 0 if
// there is none or etcd does not answer; the next plan causes another look.
func (w *worker) newerRun(ctx context.Context) int64 {
	stored, err := w.registry.Spec(ctx)
	if run := jobspec.RunOf(stored); err == nil && run > w.spec.Submitted {
		return run
	}
	return 0
}

// plans holds the newest plan.
type plans struct {
	mu      sync.Mutex
	plan    cluster.Plan
	highest cluster.Generation // of all plans
	changed chan struct{}
}

func newPlans() *plans { return &plans{changed: make(chan struct{})} }

func (p *plans) set(plan cluster.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.highest = plan, max(p.highest, plan.Generation)
	close(p.changed)
	p.changed = make(chan struct{})
}

// isOlder reports whether a plan that the store has now is older than the newest one, or was made
// in its place.
func (p *plans) isOlder(now cluster.Plan) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest := p.plan
	return now.Generation < newest.Generation ||
		now.Generation == newest.Generation && now.Nonce != newest.Nonce
}

// newest returns the newest plan, and a channel that is closed when it is replaced.
func (p *plans) newest() (cluster.Plan, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan, p.changed
}

// follow joins the ring of each plan that includes this member.
func (w *worker) follow(life context.Context, leave <-chan struct{}, plans *plans) error {
	wait := w.newWait()
	looks, cancel := context.WithCancel(life)
	defer func() {
		cancel()
		wait.stop()
	}()
	served, leaving := cluster.Generation(0), false // the last ring; the worker was asked to leave
	asked := leave                                  // each ring reads leave itself
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
		case leaving && (!inRing || plan.Rings <= 1 && !w.hasTrained):
			if plan.Phase == cluster.Paused {
				return w.saveState(life)
			}
			return nil
		}
		select {
		case <-life.Done():
		case <-changed:
		case <-asked:
			if leaving = true; inRing {
				wait.leave() // its next ring reports that it leaves
			}
			asked = nil
		case <-wait.look.C:
			if inRing && wait.forgotten() {
				return &expelledError{reason: fmt.Sprintf("its ring of generation %d has ended, "+
					"and no other was planned within --regroup-timeout", served)}
			}
			wait.lookForLeader(looks)
		case found := <-wait.found:
			if done, err := wait.passed(found); done || err != nil {
				return err
			}
		}
	}
}

// saveState saves this worker's state when it leaves a job in which no other worker may have it.
func (w *worker) saveState(ctx context.Context) error {
	if w.engine == nil {
		return nil
	}
	err := w.engine.saveState(ctx)
	w.kept = err == nil && jobspec.KeepsModel(w.spec)
	return err
}

// evicted returns why this member gets no rank, or nil.
func (w *worker) evicted(plan cluster.Plan) error {
	for _, e := range plan.Evicted {
		if e.ID != w.member.ID {
			continue
		}
		switch e.Remedy {
		case cluster.Leave:
			return errors.New(e.Reason) // because of this machine; another may do
		case cluster.Rejoin, cluster.Resync:
			return &expelledError{reason: "evicted: " + e.Reason,
				forget: e.Remedy == cluster.Resync, probe: e.Remedy == cluster.Rejoin}
		case cluster.Wait:
		}
	}
	return nil
}

// explain turns the cause of life's end into the worker's result.
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
