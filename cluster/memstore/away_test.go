package memstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"rondo/cluster"
	"rondo/cluster/memstore"
)

const ttl = 10 * time.Second

// world is a store with a leader and a worker, each with a client of its own.
type world struct {
	store  *memstore.Store
	leader cluster.Leadership
	worker cluster.Registration
}

func inWorld(t *testing.T, test func(*testing.T, world)) {
	synctest.Test(t, func(t *testing.T) {
		w := world{store: memstore.New()}
		var err error
		w.leader, err = w.store.As("c1").Campaign(t.Context(), cluster.Leader{ID: "c1"}, ttl)
		if err != nil {
			t.Fatal(err)
		}
		w.worker, err = w.store.As("w1").Register(t.Context(), cluster.Member{ID: "w1"}, ttl)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.store.PutSpec(t.Context(), []byte("spec")); err != nil {
			t.Fatal(err)
		}
		test(t, w)
	})
}

func (w world) members(t *testing.T) int {
	t.Helper()
	view, err := w.store.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(view.Members)
}

// lostAfter returns the time until Lost was closed.
func lostAfter(t *testing.T, lost <-chan struct{}) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case <-lost:
	case <-time.After(time.Hour):
		t.Error("not lost after an hour")
	}
	return time.Since(began)
}

func isOpen(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		return true
	}
}

func TestLeasesAreKeptWhileTheStoreIsThere(t *testing.T) {
	inWorld(t, func(t *testing.T, w world) {
		for range 5 {
			w.store.Cut("w1", true)
			time.Sleep(ttl - time.Second)
			w.store.Cut("w1", false)
			w.store.Outage(true)
			time.Sleep(ttl - time.Second)
			w.store.Outage(false)
		}
		time.Sleep(10 * ttl)
		if !isOpen(w.worker.Lost()) || !isOpen(w.leader.Lost()) || w.members(t) != 1 {
			t.Error("a lease was lost that was renewed in time")
		}
	})
}

// TestCutClient: a disconnected client sees its loss before others may replace it.
func TestCutClient(t *testing.T) {
	inWorld(t, func(t *testing.T, w world) {
		w.store.Cut("w1", true)
		if took := lostAfter(t, w.worker.Lost()); took != ttl {
			t.Errorf("lost after %v, want %v", took, ttl)
		}
		if w.members(t) != 1 {
			t.Error("the store ended the lease no later than its holder")
		}
		time.Sleep(ttl / 2)
		if w.members(t) != 0 || !isOpen(w.leader.Lost()) {
			t.Error("the store has not ended the lease, or another one too")
		}
		cut := w.store.As("w1")
		began := time.Now()
		if _, err := cut.Spec(t.Context()); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("Spec: %v after %v", err, time.Since(began))
		}
		limited, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := cut.Register(limited, cluster.Member{ID: "w2"}, ttl)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Register while cut off: %v", err)
		}
		time.AfterFunc(time.Minute, func() { w.store.Cut("w1", false) })
		began = time.Now()
		again, err := cut.Register(t.Context(), cluster.Member{ID: "w2"}, ttl)
		if err != nil || time.Since(began) != time.Minute {
			t.Errorf("Register: %v after %v", err, time.Since(began))
		}
		if err := again.Leave(t.Context()); err != nil || w.members(t) != 0 {
			t.Errorf("Leave: %v, %d members", err, w.members(t))
		}
	})
}

// TestOutage: an unavailable store ends no lease, but the holders count them as lost. When it
// returns, leases without renewals end, and watches go on.
func TestOutage(t *testing.T) {
	inWorld(t, func(t *testing.T, w world) {
		plans := make(chan cluster.Plan, 8)
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan error, 1)
		go func() {
			watched <- w.store.As("w1").WatchPlan(ctx, func(p cluster.Plan) error {
				plans <- p
				return nil
			})
		}()
		<-plans
		w.store.Outage(true)
		put := make(chan error, 1)
		go func() { put <- w.leader.PutPlan(t.Context(), cluster.Plan{Generation: 1}) }()
		if took := lostAfter(t, w.worker.Lost()); took != ttl {
			t.Errorf("lost after %v, want %v", took, ttl)
		}
		if err := <-put; !errors.Is(err, cluster.ErrDeposed) {
			t.Errorf("PutPlan while the store was away: %v", err)
		}
		time.Sleep(time.Hour)
		w.store.Outage(false)
		if w.members(t) != 1 {
			t.Error("a lease ended while the store was away")
		}
		next, err := w.store.As("c2").Campaign(t.Context(), cluster.Leader{ID: "c2"}, ttl)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the worker's lease ended at the same moment as the first leader's
		if w.members(t) != 0 {
			t.Error("a lease that nobody renews has not ended")
		}
		if err := next.PutPlan(t.Context(), cluster.Plan{Generation: 2}); err != nil {
			t.Fatal(err)
		}
		if p := <-plans; p.Generation != 2 {
			t.Errorf("the watch went on with %+v", p)
		}
		cancel()
		if err := <-watched; !errors.Is(err, context.Canceled) {
			t.Errorf("WatchPlan: %v", err)
		}
	})
}

// TestDepose: a leader whose lease the store has ended learns of it when it writes or renews.
func TestDepose(t *testing.T) {
	inWorld(t, func(t *testing.T, w world) {
		w.store.Depose("c1")
		if !isOpen(w.leader.Lost()) {
			t.Error("it knows at once")
		}
		err := w.leader.PutPlan(t.Context(), cluster.Plan{Generation: 1})
		if !errors.Is(err, cluster.ErrDeposed) {
			t.Errorf("PutPlan: %v", err)
		}
		if took := lostAfter(t, w.leader.Lost()); took > ttl/2 {
			t.Errorf("it knew only after %v", took)
		}
	})
}

// TestLeaveWhileCutOff: a registration whose Leave does not reach the store ends with its lease.
func TestLeaveWhileCutOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w world) {
		w.store.Cut("w1", true)
		if err := w.worker.Leave(t.Context()); err == nil {
			t.Error("Leave reached a store that was away")
		}
		w.store.Cut("w1", false)
		time.Sleep(2 * ttl)
		if w.members(t) != 0 || !isOpen(w.worker.Lost()) {
			t.Error("the entry is still there, or counts as lost")
		}
	})
}
