package worker

import (
	"context"
	"fmt"
	"time"
)

// wait is the time that a worker spends without a ring. Whoever leads has deadlines of its own, so
// it is the time without a leader that counts; a worker that was asked to go does not wait for
// long, whoever leads.
type wait struct {
	worker *worker
	look   *time.Ticker
	ended  time.Time // the last ring; zero: there was none
	since  time.Time // a leader was seen last, or a ring ended
	warned bool
	done   bool      // nothing is left to do but to hear of the job's end
	until  time.Time // the end for one that was asked to go; zero: none
}

func (w *worker) newWait() *wait {
	return &wait{worker: w, since: time.Now(),
		look: time.NewTicker(w.spec.RegroupTimeout.AsDuration() / leaderLooks)}
}

// begin says that a ring has ended.
func (t *wait) begin(done bool) {
	t.ended = time.Now()
	t.since, t.warned, t.done = t.ended, false, done
}

// forgotten reports whether the ring that this worker was in has ended for it, and for nobody
// else, so that no other one is planned.
func (t *wait) forgotten() bool {
	return !t.done && !t.ended.IsZero() &&
		time.Since(t.ended) > t.worker.spec.RegroupTimeout.AsDuration()
}

// leave says that the worker was asked to go.
func (t *wait) leave() { t.until = time.Now().Add(t.worker.spec.RegroupTimeout.AsDuration()) }

// passed looks for a leader, and returns an error when this worker need not wait any more.
func (t *wait) passed(ctx context.Context) error {
	now, w := time.Now(), t.worker
	if !t.until.IsZero() && now.After(t.until) {
		return fmt.Errorf("this worker was asked to go, and nobody has planned a ring without it "+
			"for %v (--regroup-timeout)", w.spec.RegroupTimeout.AsDuration())
	}
	if _, err := w.registry.Leader(ctx); err == nil {
		t.since, t.warned = now, false
		return nil
	}
	alone, regroup := now.Sub(t.since), w.spec.RegroupTimeout.AsDuration()
	switch {
	case t.done && alone >= regroup:
		return fmt.Errorf("this worker is done, but the job has not ended, and nobody has led it "+
			"for %v (--regroup-timeout): start a coordinator", regroup)
	case alone >= w.spec.PauseTimeout.AsDuration():
		return fmt.Errorf("nobody has led the job for %v (--pause-timeout): start a coordinator",
			w.spec.PauseTimeout.AsDuration())
	case alone >= regroup && !t.warned:
		t.warned = true
		w.log.Warn("waiting: nobody leads the job; start a coordinator, or look after etcd",
			"for", alone.Round(time.Second), "at most", w.spec.PauseTimeout.AsDuration())
	}
	return nil
}
