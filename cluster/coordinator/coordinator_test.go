package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"rondo/cluster"
	"rondo/cluster/coordinator"
	"rondo/cluster/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second

// audience records the calls.
type audience struct {
	mu   sync.Mutex
	told []string
}

func (a *audience) add(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, fmt.Sprintf(format, args...))
}

func (a *audience) Lead()                  { a.add("lead") }
func (a *audience) Follow()                { a.add("follow") }
func (a *audience) Notify(id, text string) { a.add("notify %s: %s", id, text) }
func (a *audience) Planned(p cluster.Plan) { a.add("plan %d %v", p.Generation, p.Phase) }

func (a *audience) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.told)
}

// process is a running coordinator.
type process struct {
	audience audience
	events   chan cluster.Event
	turns    chan bool
	cancel   context.CancelFunc
	ended    chan struct{}
	plan     cluster.Plan
	err      error
}

// start runs a coordinator of a job with two workers and eight lanes.
func start(t *testing.T, election cluster.Election, id string) *process {
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{events: make(chan cluster.Event), cancel: cancel, ended: make(chan struct{}),
		turns: make(chan bool, 1<<16)}
	cfg := coordinator.Config{
		Job: cluster.Job{Workers: 2, MinWorkers: 2, Lanes: 8, JoinTimeout: 5 * time.Minute,
			PauseTimeout: time.Hour},
		Self:     cluster.Leader{ID: id, Address: id + ":1"},
		LeaseTTL: ttl, Election: election, Events: p.events, Audience: &p.audience,
		Turned: func(leading bool) { p.turns <- leading },
	}
	go func() {
		defer close(p.ended)
		p.plan, p.err = coordinator.Run(ctx, cfg)
	}()
	synctest.Wait()
	return p
}

// running reports whether Run still runs, after all pending work is done.
func (p *process) running() bool {
	synctest.Wait()
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) send(t *testing.T, e cluster.Event) {
	t.Helper()
	select {
	case p.events <- e:
	case <-time.After(time.Minute):
		t.Fatalf("nobody takes %#v", e)
	}
	synctest.Wait()
}

func join(t *testing.T, s *memstore.Store, id string) cluster.Registration {
	t.Helper()
	process, _, _ := strings.Cut(id, ".")
	m := cluster.Member{ID: id, Address: id + ":1", Host: "host-" + process, PID: 7,
		Process: process}
	r, err := s.Register(t.Context(), m, ttl)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return r
}

func stored(t *testing.T, s *memstore.Store) (plan cluster.Plan) {
	t.Helper()
	enough := errors.New("enough")
	err := s.WatchPlan(t.Context(), func(p cluster.Plan) error {
		plan = p
		return enough
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return plan
}

func wantTold(t *testing.T, p *process, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := p.audience.all(); !slices.Equal(got, want) {
		t.Errorf("the audience was told\n  %s\nwant\n  %s",
			strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestFromJoinToDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := start(t, store, "c1")
		join(t, store, "w2")
		join(t, store, "w1")
		if plan := stored(t, store); plan.Phase != cluster.Running || len(plan.Members) != 2 {
			t.Fatalf("after both joined: %+v", plan)
		}
		join(t, store, "w3")
		p.send(t, cluster.Done{ID: "w1"})
		if !p.running() {
			t.Fatal("ended with one of two done")
		}
		p.send(t, cluster.Done{ID: "w2"})
		if p.running() || p.err != nil || p.plan.Failed || p.plan.Phase != cluster.Ended {
			t.Errorf("ended with %+v, %v", p.plan, p.err)
		}
		if plan := stored(t, store); !plan.Equal(p.plan) {
			t.Errorf("Run returned %+v, the store has %+v", p.plan, plan)
		}
		wantTold(t, p, "lead", "notify : 0 of 2 workers have joined",
			"notify : 1 of 2 workers have joined",
			"notify : 2 of 2 workers have joined", "plan 1 running",
			"notify w3: the ring is complete: the worker on host host-w3, pid 7 waits as a spare",
			"plan 1 ended")
		if _, err := store.Leader(t.Context()); !errors.Is(err, cluster.ErrNoLeader) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestALeaderTurnsThoughNothingHappens: an idle leader calls Turned, which shows that it is not
// stuck. A coordinator that does not lead does not.
func TestALeaderTurnsThoughNothingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, two := start(t, store.As("c1"), "c1"), start(t, store.As("c2"), "c2")
		drain := func(p *process) (turns int, leading bool) {
			for ; len(p.turns) > 0; turns++ {
				leading = <-p.turns
			}
			return turns, leading
		}
		drain(one)
		time.Sleep(10*coordinator.TurnInterval + 1)
		synctest.Wait()
		if n, leading := drain(one); n != 10 || !leading {
			t.Errorf("the leader has turned %d times, leads: %t", n, leading)
		}
		if n, _ := drain(two); n != 0 {
			t.Errorf("a coordinator that does not lead has turned %d times", n)
		}
		one.cancel()
		<-one.ended
		if n, leading := drain(one); n == 0 || leading {
			t.Error("the end of the leadership is not told")
		}
		two.cancel()
		<-two.ended
	})
}

func TestJoinTimeoutIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		began := time.Now()
		p := start(t, store, "c1")
		time.Sleep(2 * time.Minute)
		join(t, store, "w1")
		<-p.ended
		if took := time.Since(began); took != 5*time.Minute {
			t.Errorf("gave up after %v", took)
		}
		if !p.plan.Failed || !strings.Contains(p.plan.Reason, "1 of 2 workers") || p.err != nil {
			t.Errorf("ended with %+v, %v", p.plan, p.err)
		}
	})
}

// TestLostWorkerPausesTheJob: one of two workers is lost, and the job waits for the pause timeout.
func TestLostWorkerPausesTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := start(t, store, "c1")
		join(t, store, "w1")
		lost := join(t, store, "w2")
		began := time.Now()
		store.Expire("w2")
		<-lost.Lost()
		synctest.Wait()
		if plan := stored(t, store); plan.Phase != cluster.Paused || plan.Generation != 2 ||
			!strings.Contains(plan.Reason, "w2 (rank 1, host host-w2, pid 7)") {
			t.Errorf("after the loss: %+v", plan)
		}
		<-p.ended
		if took := time.Since(began); took != time.Hour {
			t.Errorf("gave up after %v", took)
		}
		if !p.plan.Failed || !strings.Contains(p.plan.Reason, "--pause-timeout") {
			t.Errorf("ended with %+v, %v", p.plan, p.err)
		}
	})
}

// TestNewcomersAndLossesAreTakenTogether: two workers that appear within the settle time cause one
// new ring; so do two that leave together.
func TestNewcomersAndLossesAreTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := start(t, store, "c1")
		join(t, store, "w1")
		join(t, store, "w2")
		p.send(t, cluster.ScaleRequested{Workers: 4})
		join(t, store, "w3")
		time.Sleep(100 * time.Millisecond)
		join(t, store, "w4")
		time.Sleep(time.Second)
		synctest.Wait()
		if plan := stored(t, store); plan.Generation != 2 || len(plan.Members) != 4 {
			t.Errorf("after two appeared: %+v", plan)
		}
		store.Expire("w1", "w3")
		synctest.Wait()
		if plan := stored(t, store); plan.Generation != 3 || len(plan.Members) != 2 ||
			plan.Members[0].ID != "w2" {
			t.Errorf("after two were lost: %+v", plan)
		}
		p.cancel()
		<-p.ended
	})
}

func TestStopThroughTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := start(t, store, "c1")
		join(t, store, "w1")
		join(t, store, "w2")
		p.send(t, cluster.StopRequested{Reason: "interrupted"})
		if plan := stored(t, store); plan.Phase != cluster.Stopping || plan.Generation != 1 {
			t.Errorf("after the request: %+v", plan)
		}
		p.send(t, cluster.Done{ID: "w2"})
		p.send(t, cluster.Done{ID: "w1"})
		<-p.ended
		if p.plan.Failed || p.plan.Reason != "stopped: interrupted" {
			t.Errorf("ended with %+v, %v", p.plan, p.err)
		}
	})
}

// TestTakeover: the leadership moves while workers train, moves back, and the job ends for both
// coordinators.
func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one := start(t, store, "c1")
		join(t, store, "w1")
		two := start(t, store, "c2")
		synctest.Wait()

		store.Expire("c1") // before the start: the second keeps the joined workers
		synctest.Wait()
		join(t, store, "w2")
		if l, err := store.Leader(t.Context()); err != nil || l.ID != "c2" {
			t.Fatalf("the leader is %+v, %v", l, err)
		}
		before := stored(t, store)
		if before.Phase != cluster.Running {
			t.Fatalf("under the second leader: %+v", before)
		}
		two.send(t, cluster.Done{ID: "w1"})
		store.Expire("c2") // while running: the plan stays, and w1's report is lost
		synctest.Wait()
		if after := stored(t, store); !after.Equal(before) {
			t.Errorf("the plan changed from %+v to %+v", before, after)
		}
		one.send(t, cluster.Done{ID: "w2"})
		if !one.running() {
			t.Fatal("ended without w1")
		}
		one.send(t, cluster.Done{ID: "w1"})
		<-one.ended
		<-two.ended
		for _, p := range []*process{one, two} {
			if p.err != nil || p.plan.Failed || p.plan.Phase != cluster.Ended {
				t.Errorf("ended with %+v, %v", p.plan, p.err)
			}
		}
		wantTold(t, one, "lead", "notify : 0 of 2 workers have joined",
			"notify : 1 of 2 workers have joined", "follow",
			"lead", "plan 1 running", "plan 1 ended")
		wantTold(t, two, "lead", "notify : 1 of 2 workers have joined",
			"notify : 2 of 2 workers have joined", "plan 1 running", "follow",
			"lead", "plan 1 ended")
	})
}

// TestWorkerLostWhileNobodyLed: the new leader finds the loss in the list of members.
func TestWorkerLostWhileNobodyLed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one := start(t, store, "c1")
		join(t, store, "w1")
		join(t, store, "w2")
		one.cancel()
		<-one.ended
		if !errors.Is(one.err, context.Canceled) {
			t.Errorf("the cancelled coordinator: %v", one.err)
		}
		store.Expire("w1")
		two := start(t, store, "c2")
		if plan := stored(t, store); plan.Phase != cluster.Paused ||
			!strings.Contains(plan.Reason, "worker w1 (rank 0") {
			t.Errorf("under the new leader: %+v", plan)
		}
		two.cancel()
		<-two.ended
	})
}

// TestStoreIsAwayForLongerThanTheLeases: no decision is made meanwhile. When the store is back, a
// leader pauses the job, because all leases have ended. The job goes on when the workers return.
func TestStoreIsAwayForLongerThanTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, two := start(t, store.As("c1"), "c1"), start(t, store.As("c2"), "c2")
		registrations := []cluster.Registration{join(t, store, "w1"), join(t, store, "w2")}
		before := stored(t, store)
		store.Outage(true)
		for _, r := range registrations {
			<-r.Lost()
		}
		time.Sleep(time.Hour)
		store.Outage(false)
		time.Sleep(2 * ttl)
		synctest.Wait()
		paused := stored(t, store)
		if paused.Phase != cluster.Paused || paused.Generation != before.Generation+1 {
			t.Errorf("after the outage: %+v", paused)
		}
		join(t, store, "w1.2")
		join(t, store, "w2.2")
		again := stored(t, store)
		if again.Phase != cluster.Running || len(again.Members) != 2 || again.Rings != 2 {
			t.Errorf("when the workers are back: %+v", again)
		}
		one.cancel()
		two.cancel()
		<-one.ended
		<-two.ended
	})
}

// TestLeaderIsCutOff: the other coordinator leads, and the first neither writes nor fails.
func TestLeaderIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one := start(t, store.As("c1"), "c1")
		join(t, store, "w1")
		two := start(t, store.As("c2"), "c2")
		store.Cut("c1", true)
		time.Sleep(2 * ttl)
		join(t, store, "w2")
		if l, err := store.Leader(t.Context()); err != nil || l.ID != "c2" {
			t.Errorf("the leader is %+v, %v", l, err)
		}
		two.send(t, cluster.Done{ID: "w1"})
		store.Cut("c1", false)
		two.send(t, cluster.Done{ID: "w2"})
		<-one.ended
		<-two.ended
		for _, p := range []*process{one, two} {
			if p.err != nil || p.plan.Failed || p.plan.Phase != cluster.Ended {
				t.Errorf("ended with %+v, %v", p.plan, p.err)
			}
		}
		wantTold(t, one, "lead", "notify : 0 of 2 workers have joined",
			"notify : 1 of 2 workers have joined", "follow", "lead", "plan 1 ended")
	})
}

func TestPlanOfAnotherRunIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, err := store.Campaign(t.Context(), cluster.Leader{ID: "c0"}, ttl)
		if err != nil {
			t.Fatal(err)
		}
		other := cluster.Plan{Generation: 1, Members: []cluster.Member{{ID: "w"}},
			LaneEnds: []cluster.Lane{64}, Phase: cluster.Running}
		if err := errors.Join(l.PutPlan(t.Context(), other), l.Resign(t.Context())); err != nil {
			t.Fatal(err)
		}
		p := start(t, store, "c1")
		<-p.ended
		if p.err == nil || !strings.Contains(p.err.Error(), "deals 64 lanes, the job has 8") {
			t.Errorf("ended with %+v, %v", p.plan, p.err)
		}
	})
}

// brokenElection returns leaderships that cannot store plans.
type brokenElection struct {
	cluster.Election
	err error
}

type brokenLeadership struct {
	cluster.Leadership
	err error
}

func (e brokenElection) Campaign(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	cluster.Leadership, error) {
	l, err := e.Election.Campaign(ctx, self, ttl)
	return brokenLeadership{l, e.err}, err
}

func (l brokenLeadership) PutPlan(context.Context, cluster.Plan) error { return l.err }

func TestStoreThatRefusesEndsTheCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, full := memstore.New(), errors.New("database space exceeded")
		p := start(t, brokenElection{store, full}, "c1")
		join(t, store, "w1")
		join(t, store, "w2")
		<-p.ended
		if !errors.Is(p.err, full) {
			t.Errorf("ended with %+v, %v", p.plan, p.err)
		}
		wantTold(t, p, "lead", "notify : 0 of 2 workers have joined",
			"notify : 1 of 2 workers have joined",
			"notify : 2 of 2 workers have joined", "follow")
	})
}

func TestConfigIsChecked(t *testing.T) {
	whole := coordinator.Config{
		Job:      cluster.Job{Workers: 1, MinWorkers: 1, Lanes: 1, JoinTimeout: 1, PauseTimeout: 1},
		Self:     cluster.Leader{ID: "c", Address: "h:1"},
		LeaseTTL: 1, Election: memstore.New(), Events: make(chan cluster.Event),
		Audience: &audience{},
	}
	if err := whole.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*coordinator.Config){
		"an election":  func(c *coordinator.Config) { c.Election = nil },
		"an address":   func(c *coordinator.Config) { c.Self.Address = "" },
		"--lease-ttl":  func(c *coordinator.Config) { c.LeaseTTL = 0 },
		"--workers":    func(c *coordinator.Config) { c.Job.Workers = 0 },
		"--pause-time": func(c *coordinator.Config) { c.Job.PauseTimeout = 0 },
		"--join-timeo": func(c *coordinator.Config) { c.Job.JoinTimeout = 0 },
	} {
		spoiled := whole
		spoil(&spoiled)
		if _, err := coordinator.Run(t.Context(), spoiled); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestNonces: each generation's plans have a nonce of their own, which the next leader keeps.
func TestNonces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := start(t, store, "c1")
		join(t, store, "w1")
		leaving := join(t, store, "w2")
		first := stored(t, store)
		p.cancel()
		p = start(t, store, "c2")
		p.send(t, cluster.ScaleRequested{Workers: 2})
		if scaled := stored(t, store); len(first.Nonce) < 26 || scaled.Nonce != first.Nonce ||
			scaled.Generation != first.Generation {
			t.Errorf("the first ring's plan %+v, then %+v", first, scaled)
		}
		join(t, store, "w3")
		if err := leaving.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		next := stored(t, store)
		if next.Generation <= first.Generation || len(next.Nonce) < 26 ||
			next.Nonce == first.Nonce {
			t.Errorf("the next ring's plan: %+v", next)
		}
		p.cancel()
		p.running()
	})
}
