// Package storetest is the conformance suite of a job's membership store. Each implementation of
// cluster's interfaces runs it. It may import cluster.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"rondo/cluster"
)

// Limits of the suite.
const (
	ttl      = 6 * time.Second  // of leases; they are renewed, so none ends by itself
	patience = 20 * time.Second // for expected events
)

// Store is all interfaces of a store.
type Store interface {
	cluster.Submissions
	cluster.Registry
	cluster.Election
	cluster.Viewer
	// Claim returns true once per run of the job for each name.
	Claim(ctx context.Context, name string) (bool, error)
}

// Job is a job that has not been submitted.
type Job struct {
	// Open returns a store of this job as another process sees it.
	Open func(*testing.T) Store
	// Await returns when a member or coordinator has its entry; a candidate's counts too.
	Await func(t *testing.T, id string)
	// Expire ends the lease of a member or coordinator at the server, without telling its holder.
	Expire func(t *testing.T, id string)
}

// Run runs the suite. It calls newJob for each test.
func Run(t *testing.T, newJob func(*testing.T) Job) {
	tests := []struct {
		name string
		run  func(context.Context, *testing.T, Job)
	}{
		{"SpecIsPutOnce", specIsPutOnce},
		{"SpecOverAnEndedRun", specOverAnEndedRun},
		{"RunIsPutOnce", runIsPutOnce},
		{"NamesAreClaimedOnce", namesAreClaimedOnce},
		{"TipOnlyGrows", tipOnlyGrows},
		{"JobIsViewed", jobIsViewed},
		{"MembersComeAndGo", membersComeAndGo},
		{"MemberExpires", memberExpires},
		{"PlanIsWatched", planIsWatched},
		{"WatchEndsWithItsCallback", watchEndsWithItsCallback},
		{"LeadersFollowEachOther", leadersFollowEachOther},
		{"CandidateGivesUp", candidateGivesUp},
		{"CandidateExpires", candidateExpires},
		{"DeposedLeaderCannotWrite", deposedLeaderCannotWrite},
		{"NoTwoLeadersAtOnce", noTwoLeadersAtOnce},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			test.run(ctx, t, newJob(t))
		})
	}
}

func specIsPutOnce(ctx context.Context, t *testing.T, job Job) {
	one, two := job.Open(t), job.Open(t)
	if _, err := one.Spec(ctx); !errors.Is(err, cluster.ErrNoSpec) {
		t.Errorf("Spec before PutSpec: %v, want %v", err, cluster.ErrNoSpec)
	}
	stored, created, err := one.PutSpec(ctx, []byte("first"))
	if err != nil || !created || string(stored) != "first" {
		t.Fatalf("first PutSpec: %q, %t, %v", stored, created, err)
	}
	stored, created, err = two.PutSpec(ctx, []byte("second"))
	if err != nil || created || string(stored) != "first" {
		t.Errorf("second PutSpec: %q, %t, %v", stored, created, err)
	}
	if spec, err := two.Spec(ctx); err != nil || string(spec) != "first" {
		t.Errorf("Spec: %q, %v", spec, err)
	}
}

func specOverAnEndedRun(ctx context.Context, t *testing.T, job Job) {
	store := job.Open(t)
	put := func(spec string, wantCreated bool) {
		t.Helper()
		_, created, err := store.PutSpec(ctx, []byte(spec))
		if err != nil || created != wantCreated {
			t.Fatalf("PutSpec(%s): created %t, %v", spec, created, err)
		}
	}
	put("first", true)
	leader := elect(ctx, t, job, "c1")
	putPlan(ctx, t, leader, plan(3, cluster.Running))
	put("too early", false)
	putPlan(ctx, t, leader, plan(3, cluster.Ended))
	put("second", true)
	if spec, err := store.Spec(ctx); err != nil || string(spec) != "second" {
		t.Errorf("Spec: %q, %v", spec, err)
	}
	// A leader of the old run must not overwrite the new one.
	if err := leader.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	next := elect(ctx, t, job, "c2")
	got, err := next.LoadPlan(ctx)
	if want := plan(3, cluster.Ended).Next(); err != nil || !got.Equal(want) {
		t.Errorf("the plan of the new run is %+v, %v; want %+v", got, err, want)
	}
	put("third", false)
}

// runIsPutOnce: of many processes that submit a run, one stores it, however early the run ends.
func runIsPutOnce(ctx context.Context, t *testing.T, job Job) {
	newer := func(spec string) func([]byte) bool {
		return func(stored []byte) bool { return string(stored) < spec }
	}
	submit := func(spec string) (made int) {
		t.Helper()
		results := make(chan bool, submitters)
		for range submitters {
			store := job.Open(t)
			go func() {
				_, created, err := store.PutRun(ctx, []byte(spec), newer(spec))
				if err != nil {
					t.Errorf("PutRun(%s): %v", spec, err)
				}
				results <- created
			}()
		}
		for range submitters {
			if <-results {
				made++
			}
		}
		return made
	}
	hold := func(spec string, wantMade int, wantStored string) {
		t.Helper()
		if made := submit(spec); made != wantMade {
			t.Errorf("run %s was put %d times, want %d", spec, made, wantMade)
		}
		stored, created, err := job.Open(t).PutRun(ctx, []byte(spec), newer(spec))
		if err != nil || created || string(stored) != wantStored {
			t.Errorf("run %s once more: %q, %t, %v; want %q", spec, stored, created, err,
				wantStored)
		}
	}
	hold("run 1", 1, "run 1")
	hold("run 2", 0, "run 1") // run 1 has not ended
	leader := elect(ctx, t, job, "c1")
	putPlan(ctx, t, leader, plan(3, cluster.Ended))
	hold("run 1", 0, "run 1") // run 1 has ended, and is not stored again
	hold("run 2", 1, "run 2")
	if err := leader.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	next := elect(ctx, t, job, "c2")
	if _, err := next.LoadPlan(ctx); err != nil {
		t.Fatal(err)
	}
	putPlan(ctx, t, next, plan(5, cluster.Ended))
	hold("run 1", 0, "run 2")
}

// submitters is the number of processes that submit a run at once.
const submitters = 4

func namesAreClaimedOnce(ctx context.Context, t *testing.T, job Job) {
	one, two := job.Open(t), job.Open(t)
	claim := func(s Store, name string, want bool) {
		t.Helper()
		if first, err := s.Claim(ctx, name); err != nil || first != want {
			t.Errorf("Claim(%s): %t, %v; want %t", name, first, err, want)
		}
	}
	if _, _, err := one.PutSpec(ctx, []byte("first")); err != nil {
		t.Fatal(err)
	}
	claim(one, "a", true)
	claim(two, "a", false)
	claim(two, "b", true)
	putPlan(ctx, t, elect(ctx, t, job, "c1"), plan(1, cluster.Ended))
	if _, created, err := two.PutSpec(ctx, []byte("second")); err != nil || !created {
		t.Fatalf("the next run: created %t, %v", created, err)
	}
	claim(one, "a", true)
}

// tipOnlyGrows: a tip gives way to a later one alone, and the next run has none.
func tipOnlyGrows(ctx context.Context, t *testing.T, job Job) {
	store := job.Open(t)
	if _, _, err := store.PutSpec(ctx, []byte("first")); err != nil {
		t.Fatal(err)
	}
	leader := elect(ctx, t, job, "c1")
	kept := cluster.Tip{}
	for _, next := range []struct {
		cluster.Tip
		kept bool
	}{
		{cluster.Tip{Run: 1, Generation: 2, Step: 8, Digest: 1 << 63}, true},
		{cluster.Tip{Run: 1, Generation: 2, Step: 7}, false},
		{cluster.Tip{Run: 1, Generation: 2, Step: 8, Saved: 5}, true},
		{cluster.Tip{Run: 1, Generation: 1, Step: 9}, false},
		{cluster.Tip{Run: 1, Generation: 3, Step: 6}, true}, // the ring went back
		{cluster.Tip{Run: 1, Generation: 3, Step: 9, Final: true, Result: "r"}, true},
		{cluster.Tip{Run: 1, Generation: 4, Step: 7}, false}, // nobody takes that back
		{cluster.Tip{Run: 2, Generation: 1, Step: 1}, true},
	} {
		if err := store.PutTip(ctx, next.Tip); err != nil {
			t.Fatal(err)
		}
		if next.kept {
			kept = next.Tip
		}
		got, err := job.Open(t).Tip(ctx)
		loaded, lerr := leader.LoadTip(ctx)
		if err != nil || lerr != nil || got != kept || loaded != kept {
			t.Errorf("after %+v: %+v, %v; the leader has %+v, %v; want %+v", next.Tip, got, err,
				loaded, lerr, kept)
		}
	}
	putPlan(ctx, t, leader, plan(3, cluster.Ended))
	if _, created, err := store.PutSpec(ctx, []byte("second")); err != nil || !created {
		t.Fatalf("the next run: created %t, %v", created, err)
	}
	if got, err := store.Tip(ctx); err != nil || got != (cluster.Tip{}) {
		t.Errorf("the next run has %+v, %v", got, err)
	}
}

func jobIsViewed(ctx context.Context, t *testing.T, job Job) {
	store := job.Open(t)
	if _, err := store.View(ctx); !errors.Is(err, cluster.ErrNoSpec) {
		t.Errorf("View before PutSpec: %v, want %v", err, cluster.ErrNoSpec)
	}
	if _, _, err := store.PutSpec(ctx, []byte("spec")); err != nil {
		t.Fatal(err)
	}
	first, err := store.View(ctx)
	if err != nil || string(first.Spec) != "spec" || !first.Plan.Equal(cluster.Plan{}) ||
		len(first.Members) != 0 || first.Leader != (cluster.Leader{}) {
		t.Errorf("View of a job that was submitted: %+v, %v", first, err)
	}
	one := cluster.Member{ID: "w1", Host: "b", Version: "2", Identity: "text"}
	two := cluster.Member{ID: "w2", Host: "a"}
	register(ctx, t, job.Open(t), one)
	register(ctx, t, job.Open(t), two)
	want := elasticPlan()
	putPlan(ctx, t, elect(ctx, t, job, "c1"), want)
	campaign(ctx, t, job, "c2")
	view, err := store.View(ctx)
	if err != nil || !view.Plan.Equal(want) || view.Leader != leaderOf("c1") ||
		!slices.Equal(view.Members, []cluster.Member{two, one}) {
		t.Errorf("View: %+v, %v", view, err)
	}
}

func membersComeAndGo(ctx context.Context, t *testing.T, job Job) {
	leader := elect(ctx, t, job, "c1")
	seen := watchMembers(ctx, t, leader)
	seen.wait(t, "nobody", func(m []cluster.Member) bool { return len(m) == 0 })

	one := cluster.Member{ID: "w1", Address: "127.0.0.1:1", Host: "a", PID: 7, Device: "cpu"}
	two := cluster.Member{ID: "w2", Address: "127.0.0.1:2", Host: "b", PID: 8, Device: "cuda"}
	registered := register(ctx, t, job.Open(t), one)
	register(ctx, t, job.Open(t), two)
	seen.wait(t, "both", func(m []cluster.Member) bool {
		return len(m) == 2 && slices.Contains(m, one) && slices.Contains(m, two)
	})
	for range 2 {
		if err := registered.Leave(ctx); err != nil {
			t.Errorf("Leave: %v", err)
		}
	}
	seen.wait(t, "only w2", func(m []cluster.Member) bool {
		return slices.Equal(m, []cluster.Member{two})
	})
	select {
	case <-registered.Lost():
		t.Error("a registration that was given back counts as lost")
	default:
	}
}

func memberExpires(ctx context.Context, t *testing.T, job Job) {
	leader := elect(ctx, t, job, "c1")
	seen := watchMembers(ctx, t, leader)
	registered := register(ctx, t, job.Open(t), cluster.Member{ID: "w1"})
	seen.wait(t, "w1", func(m []cluster.Member) bool { return len(m) == 1 })
	job.Expire(t, "w1")
	seen.wait(t, "nobody", func(m []cluster.Member) bool { return len(m) == 0 })
	closes(t, "Registration.Lost", registered.Lost())
	if err := registered.Leave(ctx); err != nil {
		t.Errorf("Leave after the loss: %v", err)
	}
}

func planIsWatched(ctx context.Context, t *testing.T, job Job) {
	seen := newSeen[cluster.Plan]()
	watcher := job.Open(t)
	watch(ctx, t, func(ctx context.Context) error { return watcher.WatchPlan(ctx, seen.add) })
	seen.wait(t, "no plan", func(p cluster.Plan) bool { return p.Equal(cluster.Plan{}) })

	leader := elect(ctx, t, job, "c1")
	if p, err := leader.LoadPlan(ctx); err != nil || !p.Equal(cluster.Plan{}) {
		t.Fatalf("LoadPlan: %+v, %v", p, err)
	}
	for _, phase := range []cluster.Phase{cluster.Running, cluster.Stopping, cluster.Ended} {
		want := plan(1, phase)
		want.Failed = phase == cluster.Ended
		want.Usage = want.Failed
		if err := leader.PutPlan(ctx, want); err != nil {
			t.Fatal(err)
		}
		seen.wait(t, phase.String(), want.Equal)
	}
	paused := elasticPlan()
	paused.Phase, paused.Last = cluster.Paused, paused.Members
	paused.Members, paused.LaneEnds = nil, nil
	for _, want := range []cluster.Plan{elasticPlan(), paused, plan(1, cluster.Ended)} {
		if err := leader.PutPlan(ctx, want); err != nil {
			t.Fatal(err)
		}
		seen.wait(t, want.Phase.String(), want.Equal)
	}
	// A late watcher gets only the newest plan, at once.
	late := newSeen[cluster.Plan]()
	watch(ctx, t, func(ctx context.Context) error { return watcher.WatchPlan(ctx, late.add) })
	late.wait(t, "the end", func(p cluster.Plan) bool { return p.Phase == cluster.Ended })
	if all := late.all(); len(all) != 1 {
		t.Errorf("a late watcher was told %d plans: %+v", len(all), all)
	}
}

func watchEndsWithItsCallback(ctx context.Context, t *testing.T, job Job) {
	store := job.Open(t)
	enough := errors.New("enough")
	err := store.WatchPlan(ctx, func(cluster.Plan) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("WatchPlan: %v, want %v", err, enough)
	}
	leader := elect(ctx, t, job, "c1")
	err = leader.WatchMembers(ctx, func([]cluster.Member) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("WatchMembers: %v, want %v", err, enough)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err = store.WatchPlan(ended, func(cluster.Plan) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("WatchPlan: %v, want %v", err, context.Canceled)
	}
}

func leadersFollowEachOther(ctx context.Context, t *testing.T, job Job) {
	lookup := job.Open(t)
	if _, err := lookup.Leader(ctx); !errors.Is(err, cluster.ErrNoLeader) {
		t.Errorf("Leader before the election: %v, want %v", err, cluster.ErrNoLeader)
	}
	first := elect(ctx, t, job, "c1")
	second := campaign(ctx, t, job, "c2")
	if l, err := lookup.Leader(ctx); err != nil || l != leaderOf("c1") {
		t.Errorf("Leader: %+v, %v", l, err)
	}
	putPlan(ctx, t, first, plan(1, cluster.Running))
	for range 2 {
		if err := first.Resign(ctx); err != nil {
			t.Errorf("Resign: %v", err)
		}
	}
	next := second.wait(t)
	if l, err := lookup.Leader(ctx); err != nil || l != leaderOf("c2") {
		t.Errorf("Leader after the first resigned: %+v, %v", l, err)
	}
	if p, err := next.LoadPlan(ctx); err != nil || !p.Equal(plan(1, cluster.Running)) {
		t.Errorf("the second leader loads %+v, %v", p, err)
	}
	if err := first.PutPlan(ctx, plan(9, cluster.Running)); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("PutPlan after Resign: %v, want %v", err, cluster.ErrDeposed)
	}
}

func candidateGivesUp(ctx context.Context, t *testing.T, job Job) {
	first := elect(ctx, t, job, "c1")
	impatient, cancel := context.WithCancel(ctx)
	second := campaign(impatient, t, job, "c2")
	third := campaign(ctx, t, job, "c3")
	cancel()
	if err := second.fails(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Campaign: %v, want %v", err, context.Canceled)
	}
	if err := first.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	third.wait(t)
}

func candidateExpires(ctx context.Context, t *testing.T, job Job) {
	first := elect(ctx, t, job, "c1")
	second := campaign(ctx, t, job, "c2")
	job.Expire(t, "c2")
	if err := first.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	putPlan(ctx, t, second.wait(t), plan(1, cluster.Running))
}

func deposedLeaderCannotWrite(ctx context.Context, t *testing.T, job Job) {
	first := elect(ctx, t, job, "c1")
	putPlan(ctx, t, first, plan(1, cluster.Running))
	job.Expire(t, "c1")
	// The first leader does not know of its loss yet: its lease lasts by its own clock.
	if err := first.PutPlan(ctx, plan(1, cluster.Stopping)); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("PutPlan before the new leader: %v, want %v", err, cluster.ErrDeposed)
	}
	second := elect(ctx, t, job, "c2")
	putPlan(ctx, t, second, plan(2, cluster.Running))
	if err := first.PutPlan(ctx, plan(3, cluster.Running)); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("PutPlan after the new leader's: %v, want %v", err, cluster.ErrDeposed)
	}
	if _, err := first.LoadPlan(ctx); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("LoadPlan: %v, want %v", err, cluster.ErrDeposed)
	}
	if p, err := second.LoadPlan(ctx); err != nil || !p.Equal(plan(2, cluster.Running)) {
		t.Errorf("the plan is %+v, %v", p, err)
	}
	closes(t, "Leadership.Lost", first.Lost())
}

func noTwoLeadersAtOnce(ctx context.Context, t *testing.T, job Job) {
	const candidates = 5
	var mu sync.Mutex
	leading, errs := 0, make(chan error, candidates)
	count := func(by int) int {
		mu.Lock()
		defer mu.Unlock()
		leading += by
		return leading
	}
	for i := range candidates {
		store := job.Open(t)
		go func() {
			errs <- func() error {
				l, err := store.Campaign(ctx, leaderOf(fmt.Sprint("c", i)), ttl)
				if err != nil {
					return err
				}
				if n := count(1); n != 1 {
					return fmt.Errorf("%d lead at once", n)
				}
				p, err := l.LoadPlan(ctx)
				if err != nil {
					return err
				}
				if err := l.PutPlan(ctx, plan(p.Generation+1, cluster.Running)); err != nil {
					return err
				}
				count(-1)
				return l.Resign(ctx)
			}()
		}()
	}
	for range candidates {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	p, err := elect(ctx, t, job, "last").LoadPlan(ctx)
	if err != nil || p.Generation != candidates {
		t.Errorf("after %d leaders: generation %d, %v", candidates, p.Generation, err)
	}
}
