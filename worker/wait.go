package worker

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// wait limits the time that a worker spends without a ring. The leader has its own deadlines, so
// only the time without a leader counts. A worker that was asked to leave has a short limit in any
// case.
type wait struct {
	worker  *worker
	look    *time.Ticker
	led     chan bool // result of the last look: whether there is a leader
	looking sync.WaitGroup
	ended   time.Time // end of the last ring; zero: there was none
	since   time.Time // when a leader was last seen, or a ring ended
	warned  bool
	done    bool      // nothing is left but the job's end
	until   time.Time // limit of a worker that was asked to leave; zero: none
}

func (w *worker) newWait() *wait {
	return &wait{worker: w, since: time.Now(), led: make(chan bool, 1),
		look: time.NewTicker(w.spec.RegroupTimeout.AsDuration() / leaderLooks)}
}

func (t *wait) interval() time.Duration {
	return t.worker.spec.RegroupTimeout.AsDuration() / leaderLooks
}

// stop waits for a look in progress, which ends with its context.
func (t *wait) stop() {
	t.look.Stop()
	t.looking.Wait()
}

// lookForLeader asks etcd for the leader in the background. The result goes to led.
func (t *wait) lookForLeader(ctx context.Context) {
	t.looking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, t.interval())
		defer cancel()
		_, err := t.worker.registry.Leader(ctx)
		select {
		case t.led <- err == nil:
		default: // the last result was not read yet
		}
	})
}

// begin starts the wait after a ring.
func (t *wait) begin(done bool) {
	t.ended = time.Now()
	t.look.Reset(t.interval())
	t.since, t.warned, t.done = t.ended, false, done
}

// forgotten reports whether this worker's ring has probably ended for this worker only, so that no
// other ring is planned.
func (t *wait) forgotten() bool {
	return !t.done && !t.ended.IsZero() &&
		time.Since(t.ended) > t.worker.spec.RegroupTimeout.AsDuration()
}

// leave sets the limit of a worker that was asked to leave.
func (t *wait) leave() { t.until = time.Now().Add(t.worker.spec.RegroupTimeout.AsDuration()) }

// passed returns an error when this worker should wait no longer.
func (t *wait) passed(led bool) error {
	now, w := time.Now(), t.worker
	if !t.until.IsZero() && now.After(t.until) {
		return fmt.Errorf("this worker was asked to leave, and no ring without it was planned "+
			"for %v (--regroup-timeout)", w.spec.RegroupTimeout.AsDuration())
	}
	if led {
		t.since, t.warned = now, false
		return nil
	}
	alone, regroup := now.Sub(t.since), w.spec.RegroupTimeout.AsDuration()
	switch {
	case t.done && alone >= regroup:
		return fmt.Errorf("this worker is done, but the job has not ended, and it has had no "+
			"leader for %v (--regroup-timeout): start a coordinator", regroup)
	case alone >= w.spec.PauseTimeout.AsDuration():
		return fmt.Errorf("the job has had no leader for %v (--pause-timeout): start a coordinator",
			w.spec.PauseTimeout.AsDuration())
	case alone >= regroup && !t.warned:
		t.warned = true
		w.log.Warn("waiting: the job has no leader; start a coordinator, or check etcd",
			"for", alone.Round(time.Second), "at most", w.spec.PauseTimeout.AsDuration())
	}
	return nil
}
