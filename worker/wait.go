package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"rondo/cluster"
)

// wait limits the time that a worker spends without a ring. The leader has its own deadlines, so
// only the time without a leader counts. A worker that was asked to leave has a short limit in any
// case.
type wait struct {
	worker  *worker
	look    *time.Ticker
	found   chan found // result of the last look
	looking sync.WaitGroup
	ended   time.Time // end of the last ring; zero: there was none
	since   time.Time // when a leader was last seen, or a ring ended
	warned  bool
	done    bool      // nothing is left but the job's end
	until   time.Time // limit of a worker that was asked to leave; zero: none
}

// found is what a look at the store has found.
type found struct {
	led   bool // there is a leader
	final bool // the job's last step and its checkpoint are on record
}

func (w *worker) newWait() *wait {
	return &wait{worker: w, since: time.Now(), found: make(chan found, 1),
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

// lookForLeader asks etcd for the leader, and for the tip, in the background. The result goes to
// found.
func (t *wait) lookForLeader(ctx context.Context) {
	t.looking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, t.interval())
		defer cancel()
		_, err := t.worker.registry.Leader(ctx)
		tip, _ := t.worker.registry.Tip(ctx) // after an error the next look asks again
		select {
		case t.found <- found{err == nil, tip.Final && tip.Run == t.worker.spec.Submitted}:
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

// passed returns an error, or that the job is done, when this worker should wait no longer. A
// worker that is done waits until that is on record.
func (t *wait) passed(found found) (done bool, err error) {
	now, w := time.Now(), t.worker
	if !t.until.IsZero() && now.After(t.until) {
		return false, fmt.Errorf("this worker was asked to leave, and no ring without it was "+
			"planned for %v (--regroup-timeout)", w.spec.RegroupTimeout.AsDuration())
	}
	if found.led {
		t.since, t.warned = now, false
		return false, nil
	}
	alone, regroup := now.Sub(t.since), w.spec.RegroupTimeout.AsDuration()
	switch {
	case t.done && found.final && alone >= regroup:
		w.end = &cluster.Plan{Phase: cluster.Ended,
			Reason: "all workers are done; the next coordinator will end the job"}
		return true, nil
	case alone >= w.spec.PauseTimeout.AsDuration():
		return false, fmt.Errorf("the job has had no leader for %v (--pause-timeout): start a "+
			"coordinator", w.spec.PauseTimeout.AsDuration())
	case alone >= regroup && !t.warned:
		t.warned = true
		w.log.Warn("waiting: the job has no leader; start a coordinator, or check etcd",
			"for", alone.Round(time.Second), "at most", w.spec.PauseTimeout.AsDuration())
	}
	return false, nil
}
