package worker

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// wait is the time that a worker spends without a ring. Whoever leads has deadlines of its own, so
// it is the time without a leader that counts; a worker that was asked to go does not wait for
// long, whoever leads.
type wait struct {
	worker  *worker
	look    *time.Ticker
	led     chan bool // whether there is a leader, as the last look found
	looking sync.WaitGroup
	ended   time.Time // the last ring; zero: there was none
	since   time.Time // a leader was seen last, or a ring ended
	warned  bool
	done    bool      // nothing is left to do but to hear of the job's end
	until   time.Time // the end for one that was asked to go; zero: none
}

func (w *worker) newWait() *wait {
	return &wait{worker: w, since: time.Now(), led: make(chan bool, 1),
		look: time.NewTicker(w.spec.RegroupTimeout.AsDuration() / leaderLooks)}
}

func (t *wait) interval() time.Duration {
	return t.worker.spec.RegroupTimeout.AsDuration() / leaderLooks
}

// stop waits for a look in progress, which ends with its context at the latest.
func (t *wait) stop() {
	t.look.Stop()
	t.looking.Wait()
}

// lookForLeader asks etcd who leads, beside whatever else the worker has to heed; the answer goes
// to led.
func (t *wait) lookForLeader(ctx context.Context) {
	t.looking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, t.interval())
		defer cancel()
		_, err := t.worker.registry.Leader(ctx)
		select {
		case t.led <- err == nil:
		default: // an earlier answer has not been heard yet
		}
	})
}

// begin says that a ring has ended.
func (t *wait) begin(done bool) {
	t.ended = time.Now()
	t.look.Reset(t.interval())
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

// passed returns an error when this worker need not wait any more.
func (t *wait) passed(led bool) error {
	now, w := time.Now(), t.worker
	if !t.until.IsZero() && now.After(t.until) {
		return fmt.Errorf("this worker was asked to go, and nobody has planned a ring without it "+
			"for %v (--regroup-timeout)", w.spec.RegroupTimeout.AsDuration())
	}
	if led {
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
