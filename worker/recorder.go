package worker

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train/agree"
)

// recordInterval is the least time between two writes of the tip, and the pause after one that
// failed.
const recordInterval = time.Second

// recorder puts the job's tip on record while this worker is rank 0: see cluster.Tip. Training does
// not wait for the store. The newest tip goes there, and the ones before it may be left out.
type recorder struct {
	worker *worker

	mu     sync.Mutex
	tip    cluster.Tip
	stored cluster.Tip

	changed chan struct{} // has a token after the tip has changed
	ended   chan struct{} // closed when the last write is over
	end     context.CancelFunc
}

func newRecorder(w *worker) *recorder {
	ctx, end := context.WithCancel(context.Background())
	r := &recorder{worker: w, changed: make(chan struct{}, 1), ended: make(chan struct{}), end: end}
	go r.run(ctx)
	return r
}

// close ends the recorder. A final tip that is not on record stays so.
func (r *recorder) close() {
	r.end()
	<-r.ended
}

// record implements train.Config.Record.
func (r *recorder) record(v agree.Record) {
	r.change(func(t *cluster.Tip) {
		*t = cluster.Tip{Run: r.worker.spec.Submitted, Generation: cluster.Generation(v.Ring),
			Step: v.Step, Digest: v.Digest, Saved: t.Saved}
	})
}

// saved notes the newest checkpoint on storage.
func (r *recorder) saved(step int64) {
	r.change(func(t *cluster.Tip) { t.Saved = max(t.Saved, step) })
}

// final notes that nothing is left to train.
func (r *recorder) final(done *rondov1.DoneEvent) {
	result, err := proto.MarshalOptions{Deterministic: true}.Marshal(done)
	if err != nil || len(result) > cluster.ResultLimit {
		result = nil // the job ends without its figures
	}
	r.change(func(t *cluster.Tip) {
		if run := r.worker.spec.Submitted; t.Run != run || t.Step != done.Step { // nothing was left
			*t = cluster.Tip{Run: run, Generation: cluster.Generation(done.Generation),
				Step: done.Step, Saved: t.Saved}
		}
		t.Final, t.Result = true, string(result)
	})
}

func (r *recorder) change(change func(*cluster.Tip)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.tip)
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *recorder) run(ctx context.Context) {
	defer close(r.ended)
	for {
		select {
		case <-r.changed:
		case <-ctx.Done():
			return
		}
		for !r.put(ctx) {
			if !pause(ctx, recordInterval) {
				return
			}
		}
		if !pause(ctx, recordInterval) {
			return
		}
	}
}

// put stores the present tip. It returns false if that must be tried again.
func (r *recorder) put(ctx context.Context) bool {
	r.mu.Lock()
	tip := r.tip
	r.mu.Unlock()
	if tip.Run != r.worker.spec.Submitted || tip == r.stored {
		return true // no step yet
	}
	if err := r.worker.registry.PutTip(ctx, tip); err != nil {
		r.worker.log.Debug("the tip is not on record", "step", tip.Step, "error", err)
		return false
	}
	r.stored = tip
	return true
}

// onRecord returns what the store has of the furthest state, on rank 0, for the ranks to compare
// theirs with. If the store does not answer, they do without.
func (s *session) onRecord(ctx context.Context) agree.Record {
	if s.rank != 0 {
		return agree.Record{}
	}
	limited, cancel := context.WithTimeout(ctx, s.engine.patience()) // the others wait in the ring
	defer cancel()
	tip, err := s.registry.Tip(limited)
	if err != nil {
		s.log.Debug("the tip is not known", "error", err)
	}
	if err != nil || tip.Run != s.spec.Submitted {
		return agree.Record{}
	}
	return agree.Record{Version: agree.Version{Step: tip.Step, Ring: int64(tip.Generation)},
		Digest: tip.Digest}
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
