package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"rondo/cluster"
	"rondo/cluster/coordinator"
)

// deaf is an audience that ignores all calls.
type deaf struct{}

func (deaf) Lead()                 {}
func (deaf) Follow()               {}
func (deaf) Planned(cluster.Plan)  {}
func (deaf) Notify(string, string) {}

// TestJobOverEtcd runs a whole job's membership over etcd, and loses the leader in the middle.
func TestJobOverEtcd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := open(t)
	events := make(chan cluster.Event)
	type result struct {
		plan cluster.Plan
		err  error
	}
	results := make(chan result, 2)
	for _, id := range []string{"c1", "c2"} {
		store := open(t)
		go func() {
			plan, err := coordinator.Run(ctx, coordinator.Config{
				Job: cluster.Job{Workers: 2, MinWorkers: 1, Lanes: 5,
					JoinTimeout: time.Minute, PauseTimeout: time.Minute},
				Self:     cluster.Leader{ID: id, Address: id + ":1"},
				LeaseTTL: 3 * time.Second, Election: store, Events: events, Audience: deaf{},
			})
			results <- result{plan, err}
		}()
	}
	for _, id := range []string{"w1", "w2"} {
		r, err := open(t).Register(ctx, cluster.Member{ID: id, Host: "h", PID: 1}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Leave(context.Background())
	}
	await := func(wanted cluster.Phase) (plan cluster.Plan) {
		t.Helper()
		enough := errors.New("enough")
		err := admin.WatchPlan(ctx, func(p cluster.Plan) error {
			if plan = p; p.Phase == wanted {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Fatalf("waiting for %v: %v; the plan is %+v", wanted, err, plan)
		}
		return plan
	}
	running := await(cluster.Running)
	if len(running.Members) != 2 || running.Generation != 1 {
		t.Errorf("running with %+v", running)
	}
	first, err := admin.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The other one is a candidate from here on, so that the first's next candidacy comes second.
	leaseOf(t, admin, map[string]string{"c1": "c2", "c2": "c1"}[first.ID])
	revoked := leaseOf(t, admin, first.ID)
	if _, err := admin.client.Revoke(ctx, revoked); err != nil {
		t.Fatal(err)
	}
	send := func(e cluster.Event) {
		t.Helper()
		select {
		case events <- e:
		case <-ctx.Done():
			t.Fatalf("nobody takes %#v", e)
		}
	}
	// The event may reach the deposed coordinator, where it has no effect.
	send(cluster.StopRequested{Reason: "the test is over"})
	for {
		leader, err := admin.Leader(ctx)
		// On a machine that stands still for longer than a lease, the first may lead again.
		if err == nil && (leader.ID != first.ID || leaseOf(t, admin, first.ID) != revoked) {
			break
		}
		if ctx.Err() != nil || err != nil && !errors.Is(err, cluster.ErrNoLeader) {
			t.Fatalf("after the loss of %s the leader is %+v, %v", first.ID, leader, err)
		}
		time.Sleep(time.Millisecond)
	}
	for stopping := false; !stopping; {
		send(cluster.StopRequested{Reason: "the test is over"})
		p := running
		_ = admin.WatchPlan(ctx, func(now cluster.Plan) error {
			p = now
			return context.Canceled
		})
		stopping = p.Phase == cluster.Stopping
	}
	for _, id := range []string{"w1", "w2"} {
		send(cluster.Done{ID: id})
	}
	ended := await(cluster.Ended)
	for range 2 {
		r := <-results
		if r.err != nil || !r.plan.Equal(ended) || ended.Failed {
			t.Errorf("ended with %+v, %v; the store has %+v", r.plan, r.err, ended)
		}
	}
}
