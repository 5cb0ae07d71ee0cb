package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"rondo/cluster"
)

func plan(generation cluster.Generation, phase cluster.Phase) cluster.Plan {
	return cluster.Plan{
		Generation: generation, Phase: phase, Reason: "as the test has it",
		Members:  []cluster.Member{{ID: "w1", Address: "h:1", Host: "h", PID: 9, Device: "cpu"}},
		LaneEnds: []cluster.Lane{4},
	}
}

// elasticPlan returns a plan with all fields set.
func elasticPlan() cluster.Plan {
	p := plan(7, cluster.Running)
	p.Limit, p.Rings, p.Identity, p.Nonce = 5, 3, "text", "random"
	p.Members[0].Version, p.Members[0].Identity = "2", "text"
	for remedy := cluster.Rejoin; remedy <= cluster.Leave; remedy++ {
		p.Evicted = append(p.Evicted, cluster.Eviction{
			ID: "out-" + remedy.String(), Reason: "as the test has it", Remedy: remedy})
	}
	return p
}

func leaderOf(id string) cluster.Leader {
	return cluster.Leader{ID: id, Address: id + ":1"}
}

func putPlan(ctx context.Context, t *testing.T, l cluster.Leadership, p cluster.Plan) {
	t.Helper()
	if _, err := l.LoadPlan(ctx); err != nil {
		t.Fatalf("LoadPlan: %v", err)
	}
	if err := l.PutPlan(ctx, p); err != nil {
		t.Fatalf("PutPlan(%+v): %v", p, err)
	}
}

// register enters a member, and removes it when the test ends.
func register(ctx context.Context, t *testing.T, s Store, m cluster.Member) cluster.Registration {
	t.Helper()
	r, err := s.Register(ctx, m, ttl)
	if err != nil {
		t.Fatalf("Register(%+v): %v", m, err)
	}
	t.Cleanup(func() { _ = r.Leave(context.Background()) })
	return r
}

// candidacy is a running Campaign.
type candidacy struct {
	result chan cluster.Leadership
	failed chan error
}

// campaign starts a Campaign, and returns when its candidate has an entry.
func campaign(ctx context.Context, t *testing.T, job Job, id string) *candidacy {
	t.Helper()
	s := job.Open(t)
	c := &candidacy{make(chan cluster.Leadership, 1), make(chan error, 1)}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		l, err := s.Campaign(ctx, leaderOf(id), ttl)
		if err != nil {
			c.failed <- err
			return
		}
		c.result <- l
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		select {
		case l := <-c.result:
			_ = l.Resign(context.Background())
		default:
		}
	})
	job.Await(t, id)
	return c
}

func (c *candidacy) wait(t *testing.T) cluster.Leadership {
	t.Helper()
	select {
	case l := <-c.result:
		t.Cleanup(func() { _ = l.Resign(context.Background()) })
		return l
	case err := <-c.failed:
		t.Fatalf("Campaign: %v", err)
	case <-time.After(patience):
		t.Fatalf("Campaign: nothing for %v", patience)
	}
	return nil
}

func (c *candidacy) fails(t *testing.T) error {
	t.Helper()
	select {
	case <-c.result:
		t.Fatal("Campaign: elected")
	case err := <-c.failed:
		return err
	case <-time.After(patience):
		t.Fatalf("Campaign: nothing for %v", patience)
	}
	return nil
}

func elect(ctx context.Context, t *testing.T, job Job, id string) cluster.Leadership {
	t.Helper()
	return campaign(ctx, t, job, id).wait(t)
}

// seen collects the values of a watch.
type seen[T any] struct {
	mu     sync.Mutex
	values []T
	more   chan struct{}
}

func newSeen[T any]() *seen[T] { return &seen[T]{more: make(chan struct{}, 1)} }

func (s *seen[T]) add(v T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = append(s.values, v)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return nil
}

func (s *seen[T]) all() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.values)
}

// wait returns when the newest value satisfies wanted.
func (s *seen[T]) wait(t *testing.T, what string, wanted func(T) bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		if all := s.all(); len(all) > 0 && wanted(all[len(all)-1]) {
			return
		}
		select {
		case <-s.more:
		case <-timeout:
			t.Fatalf("the watch did not come to %s within %v: %+v", what, patience, s.all())
		}
	}
}

// watch runs a watch until the test ends. The watch must then end with its context's error.
func watch(ctx context.Context, t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v, want %v", err, context.Canceled)
		}
	})
}

func watchMembers(ctx context.Context, t *testing.T, l cluster.Leadership) *seen[[]cluster.Member] {
	s := newSeen[[]cluster.Member]()
	watch(ctx, t, func(ctx context.Context) error { return l.WatchMembers(ctx, s.add) })
	return s
}

func closes(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Errorf("%s was not closed within %v", what, patience)
	}
}
