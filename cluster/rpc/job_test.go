package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/cluster"
	"rondo/cluster/coordinator"
	"rondo/cluster/memstore"
)

// runCoordinator runs the coordinator's loop with a server of the network until the job ends.
func (n *network) runCoordinator(store *memstore.Store, id string) <-chan cluster.Plan {
	s := n.server(id)
	ended := make(chan cluster.Plan, 1)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		plan, err := coordinator.Run(ctx, coordinator.Config{
			Job:      testJob,
			Self:     cluster.Leader{ID: id, Address: id},
			LeaseTTL: 10 * time.Second, Election: store, Events: s.Events(), Audience: s,
		})
		if err == nil {
			ended <- plan
		} else if !errors.Is(err, context.Canceled) {
			n.t.Errorf("%s: %v", id, err)
		}
	}()
	n.t.Cleanup(func() {
		cancel()
		<-stopped
	})
	return ended
}

// runWorker registers a worker. It reports a checkpoint when it has a rank, and its end after pace
// or when asked to stop. It leaves with the job.
func (n *network) runWorker(store *memstore.Store, id string, pace time.Duration) {
	r := n.reporter(id)
	ctx, cancel := context.WithCancel(context.Background())
	plans := make(chan cluster.Plan)
	stopped := make(chan struct{}, 2)
	go func() {
		defer func() { stopped <- struct{}{} }()
		_ = store.WatchPlan(ctx, func(p cluster.Plan) error {
			select {
			case plans <- p:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	m := cluster.Member{ID: id, Address: id, Host: "h"}
	registered, err := store.Register(ctx, m, time.Hour)
	if err != nil {
		n.t.Fatal(err)
	}
	go func() {
		defer func() { stopped <- struct{}{} }()
		defer registered.Leave(context.Background())
		var end <-chan time.Time
		reported := false
		finish := func(stopped bool) {
			if !reported {
				e := done(9)
				e.GetDone().Stopped = stopped
				report(n.t, r, e)
			}
			reported, end = true, nil
		}
		for {
			select {
			case p := <-plans:
				switch {
				case p.Phase == cluster.Ended:
					return
				case p.Phase == cluster.Running && end == nil && !reported:
					report(n.t, r, checkpoint(int64(len(id))))
					end = time.After(pace)
				case p.Phase == cluster.Stopping:
					finish(true)
				}
			case <-end:
				finish(false)
			case <-ctx.Done():
				return
			}
		}
	}()
	n.t.Cleanup(func() {
		cancel()
		<-stopped
		<-stopped
	})
}

// TestWholeJob runs a job with two workers, two coordinators and a watcher. The leader is lost
// again and again, and the job ends as if it had not been.
func TestWholeJob(t *testing.T) {
	for _, losses := range []int{0, 1, 5} {
		t.Run(fmt.Sprintf("losses=%d", losses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				n := newNetwork(t)
				n.store = store
				one, two := n.runCoordinator(store, "c1"), n.runCoordinator(store, "c2")
				w := n.watch()
				n.runWorker(store, "w1", 20*time.Second)
				n.runWorker(store, "w22", 5*time.Second)
				for i := range losses {
					time.Sleep(4 * time.Second)
					l, err := store.Leader(t.Context())
					if err != nil {
						t.Fatalf("before loss %d: %v", i, err)
					}
					store.Expire(l.ID)
				}
				if err := <-w.ended; err != nil {
					t.Errorf("Watch: %v", err)
				}
				for _, plan := range []cluster.Plan{<-one, <-two} {
					if plan.Phase != cluster.Ended || plan.Failed || plan.Generation != 1 {
						t.Errorf("ended with %+v", plan)
					}
				}
				counts := make(map[string]int)
				for _, e := range w.all() {
					if !strings.HasPrefix(e, "notice") {
						counts[e]++
					}
				}
				if len(counts) != 3 || counts["checkpoint 2"] != 1 ||
					counts["checkpoint 3"] != 1 || counts["done 9 stopped false"] != 1 {
					t.Errorf("watched %v", w.all())
				}
			})
		})
	}
}

func TestWholeJobIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		n := newNetwork(t)
		n.store = store
		ended := n.runCoordinator(store, "c1")
		w := n.watch()
		n.runWorker(store, "w1", time.Hour)
		n.runWorker(store, "w2", time.Hour)
		time.Sleep(time.Second)
		if err := n.client().Stop(t.Context(), "interrupted"); err != nil {
			t.Fatal(err)
		}
		if plan := <-ended; plan.Failed || plan.Reason != "stopped: interrupted" {
			t.Errorf("ended with %+v", plan)
		}
		<-w.ended
		all := w.all()
		if last := all[len(all)-1]; last != "done 9 stopped true, stopped: interrupted" {
			t.Errorf("the last event is %q", last)
		}
		err := n.client().Stop(t.Context(), "again")
		if err == nil || !strings.Contains(err.Error(), cluster.ErrNoLeader.Error()) {
			t.Errorf("Stop after the end: %v", err)
		}
	})
}

var _ coordinator.Audience = (*Server)(nil)
