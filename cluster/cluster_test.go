package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"
	"unicode/utf8"
)

// obviousOwner finds a lane's rank by comparing it with each rank's share.
func obviousOwner(lane, lanes, workers int) Rank {
	for r := range workers {
		if lanes*r/workers <= lane && lane < lanes*(r+1)/workers {
			return Rank(r)
		}
	}
	return -1
}

func TestDealLanesAgainstTheRule(t *testing.T) {
	check := func(a, b uint8) bool {
		workers := 1 + int(a)%16
		lanes := workers + int(b)
		plan := Plan{LaneEnds: DealLanes(lanes, workers)}
		smallest, largest := lanes, 0
		for r := range workers {
			from, to := plan.Lanes(Rank(r))
			for lane := from; lane < to; lane++ {
				if obviousOwner(int(lane), lanes, workers) != Rank(r) {
					return false
				}
			}
			smallest, largest = min(smallest, int(to-from)), max(largest, int(to-from))
		}
		return plan.LaneEnds[workers-1] == Lane(lanes) && smallest > 0 && largest-smallest <= 1
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

// TestDealGroups: workers get whole groups, in numbers that differ by at most one.
func TestDealGroups(t *testing.T) {
	for groups := 1; groups <= 9; groups++ {
		const size = 3
		job := Job{Workers: 1, MinWorkers: 1, Lanes: size * groups, Groups: groups,
			JoinTimeout: 1, PauseTimeout: 1}
		for workers := 1; workers <= groups; workers++ {
			smallest, largest, from := groups, 0, Lane(0)
			for _, end := range job.deal(workers) {
				own := int(end-from) / size
				if end%size != 0 {
					t.Errorf("%d groups, %d workers: lanes end at %d", groups, workers, end)
				}
				smallest, largest, from = min(smallest, own), max(largest, own), end
			}
			if int(from) != job.Lanes || smallest < 1 || largest-smallest > 1 {
				t.Errorf("%d groups, %d workers: %d to %d each, up to lane %d", groups, workers,
					smallest, largest, from)
			}
		}
		if err := job.CheckScale(groups + 1); err == nil || job.Limit(Plan{Limit: 99}) != groups {
			t.Errorf("%d groups are enough for %d workers", groups, job.Limit(Plan{Limit: 99}))
		}
		job.Workers, job.MaxWorkers = groups+1, groups+1
		if err := job.Validate(); err == nil || !strings.Contains(err.Error(), "--lane-groups") {
			t.Errorf("%d workers of %d groups: %v", job.Workers, groups, err)
		}
	}
}

// TestRingOrder: the order is a permutation, independent of the order of joining, and enters each
// host once.
func TestRingOrder(t *testing.T) {
	check := func(hosts []uint8, rotate uint8) bool {
		members := make([]Member, len(hosts))
		for i, h := range hosts {
			members[i] = Member{ID: fmt.Sprintf("w%03d", i), Host: fmt.Sprint(h % 5)}
		}
		ring := RingOrder(members)
		entered := make(map[string]bool)
		for i, m := range ring {
			if !slices.Contains(members, m) {
				return false
			}
			if i > 0 && ring[i-1].Host == m.Host {
				if ring[i-1].ID >= m.ID {
					return false
				}
				continue
			}
			if entered[m.Host] {
				return false
			}
			entered[m.Host] = true
		}
		if len(members) == 0 {
			return len(ring) == 0
		}
		at := int(rotate) % len(members)
		rotated := append(slices.Clone(members[at:]), members[:at]...)
		return len(ring) == len(members) && slices.Equal(RingOrder(rotated), ring)
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

func TestPlanValidate(t *testing.T) {
	two := []Member{{ID: "w1"}, {ID: "w2"}}
	cases := []struct {
		name string
		plan Plan
		want string // in the error; empty: the plan is valid
	}{
		{"zero", Plan{}, ""},
		{"next run", Plan{Generation: 4}.Next(), ""},
		{"running", Plan{Generation: 1, Members: two, LaneEnds: []Lane{1, 2}, Phase: Running}, ""},
		{"negative", Plan{Generation: -1}, "negative"},
		{"unknown phase", Plan{Phase: 9}, "unknown phase 9"},
		{"no ring", Plan{Generation: 1, Phase: Running}, "running with 0 members"},
		{"no generation", Plan{Members: two, LaneEnds: []Lane{1, 2}, Phase: Stopping}, "stopping"},
		{"lanes missing", Plan{Generation: 1, Members: two, LaneEnds: []Lane{2}}, "1 lane ends"},
		{"no lane for w2", Plan{Generation: 1, Members: two, LaneEnds: []Lane{2, 2}},
			"not after 2"},
		{"same id", Plan{Generation: 1, Members: []Member{two[0], two[0]},
			LaneEnds: []Lane{1, 2}}, "empty or taken"},
		{"failed while running", Plan{Generation: 1, Members: two, LaneEnds: []Lane{1, 2},
			Phase: Running, Failed: true}, "failed true"},
		{"usage without failure", Plan{Phase: Ended, Usage: true}, "usage true"},
		{"paused", Plan{Generation: 2, Phase: Paused, Limit: 3, Rings: 1, Evicted: []Eviction{
			{ID: "w1", Remedy: Rejoin}, {ID: "w2", Remedy: Leave}}}, ""},
		{"paused in a ring", Plan{Generation: 2, Phase: Paused, Members: two,
			LaneEnds: []Lane{1, 2}}, "paused with 2 members"},
		{"negative limit", Plan{Limit: -1}, "limit -1"},
		{"paused after a ring", Plan{Generation: 2, Phase: Paused, Rings: 1, Last: two}, ""},
		{"a ring with newcomers", Plan{Generation: 2, Members: two, Phase: Running,
			LaneEnds: []Lane{1, 2}, Rings: 2, Last: two[:1]}, ""},
		{"a last ring and none before", Plan{Generation: 2, Phase: Paused, Last: two},
			"none was formed"},
		{"evicted member", Plan{Generation: 1, Members: two, LaneEnds: []Lane{1, 2},
			Phase: Running, Evicted: []Eviction{{ID: "w2", Remedy: Wait}}}, "an id that is taken"},
		{"evicted twice", Plan{Evicted: []Eviction{{ID: "w", Remedy: Wait},
			{ID: "w", Remedy: Wait}}}, "an id that is taken"},
		{"no remedy", Plan{Evicted: []Eviction{{ID: "w"}}}, "no valid remedy"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := c.plan.Validate()
			if c.want == "" && err != nil || c.want != "" && err == nil ||
				err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestPlanFits(t *testing.T) {
	job := Job{Workers: 2, Lanes: 8}
	if err := (Plan{LaneEnds: DealLanes(8, 2)}).Fits(job); err != nil {
		t.Error(err)
	}
	if err := (Plan{}).Fits(job); err != nil {
		t.Error(err)
	}
	err := (Plan{LaneEnds: DealLanes(6, 2)}).Fits(job)
	if err == nil || !strings.Contains(err.Error(), "deals 6 lanes, the job has 8") {
		t.Errorf("got %v", err)
	}
}

func TestDecideBeforeElectedPanics(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "before Elected") {
			t.Errorf("recovered %v", r)
		}
	}()
	Decide(NewState(Job{Workers: 1, Lanes: 1}), Tick{}, time.Unix(0, 0))
}

// TestStatesShareNoMemory applies two events to each state, and checks that the second does not
// change the first one's result.
func TestStatesShareNoMemory(t *testing.T) {
	const workers = 9
	now := time.Unix(0, 0)
	state := NewState(Job{Workers: workers, MinWorkers: 1, Lanes: workers,
		JoinTimeout: time.Minute})
	state, _ = Decide(state, Elected{}, now)
	id := func(i int) string { return fmt.Sprint("w", i%workers) }
	for i := range 2 * workers {
		one, two := Event(Joined{[]Member{{ID: id(i)}}}), Event(Joined{[]Member{{ID: "other"}}})
		if i >= workers {
			one, two = Done{ID: id(i)}, Done{ID: id(i + 1)}
		}
		next, _ := Decide(state, one, now)
		want := fmt.Sprintf("%+v", next)
		Decide(state, two, now)
		Decide(state, Left{[]string{id(0)}}, now)
		if got := fmt.Sprintf("%+v", next); got != want {
			t.Fatalf("after %#v, and %#v from the same state: %s became %s", one, two, want, got)
		}
		state = next
	}
	if state.Plan().Phase != Ended {
		t.Errorf("in the end: %+v", state.Plan())
	}
}

// TestResult: the plan of the end has the result of the lowest rank that reported one of a bearable
// length, in whatever order they come, and none of an earlier ring.
func TestResult(t *testing.T) {
	now := time.Unix(0, 0)
	for _, c := range []struct {
		done []Done
		want string
	}{
		{[]Done{{ID: "a", Result: "A"}, {ID: "b", Result: "B"}, {ID: "c", Result: "C"}}, "A"},
		{[]Done{{ID: "c", Result: "C"}, {ID: "a"}, {ID: "b", Result: "B"}}, "B"},
		{[]Done{{ID: "b"}, {ID: "a"}, {ID: "c"}}, ""},
		{[]Done{{ID: "a", Result: strings.Repeat("A", ResultLimit+1)}, {ID: "c", Result: "C"},
			{ID: "b"}}, "C"},
		{[]Done{{ID: "a", Result: "old", Generation: 9}, {ID: "a", Result: "A"}, {ID: "b"},
			{ID: "c"}}, "A"},
	} {
		s := NewState(Job{Workers: 3, MinWorkers: 1, Lanes: 3, JoinTimeout: time.Minute})
		events := []Event{Elected{}}
		for _, id := range []string{"a", "b", "c"} {
			events = append(events, Joined{[]Member{{ID: id}}})
		}
		for _, d := range c.done {
			events = append(events, d)
		}
		for _, e := range events {
			s, _ = Decide(s, e, now)
		}
		if p := s.Plan(); p.Phase != Ended || p.Result != c.want {
			t.Errorf("%v: %v with the result %q, want %q", c.done, p.Phase, p.Result, c.want)
		}
	}
}

func TestWake(t *testing.T) {
	now := time.Unix(100, 0)
	state := NewState(Job{Workers: 1, MinWorkers: 1, Lanes: 1, JoinTimeout: time.Minute,
		PauseTimeout: time.Hour})
	if !state.Wake().IsZero() {
		t.Error("a state that nobody leads waits for nothing")
	}
	state, _ = Decide(state, Elected{}, now)
	if want := now.Add(time.Minute); !state.Wake().Equal(want) {
		t.Errorf("while forming: %v, want %v", state.Wake(), want)
	}
	state, _ = Decide(state, Joined{[]Member{{ID: "w", Process: "p"}}}, now)
	if state.Plan().Phase != Running || !state.Wake().IsZero() {
		t.Errorf("in phase %v: %v", state.Plan().Phase, state.Wake())
	}
	state, _ = Decide(state, Left{[]string{"w"}}, now)
	if want := now.Add(time.Hour); !state.Wake().Equal(want) {
		t.Errorf("while paused: %v, want %v", state.Wake(), want)
	}
	state, _ = Decide(state, ScaleRequested{1}, now)
	state, _ = Decide(state, Joined{[]Member{{ID: "w2", PID: 1}}}, now)
	if want := now.Add(returnTime); !state.Wake().Equal(want) {
		t.Errorf("with a newcomer: %v, want %v", state.Wake(), want)
	}
	state, _ = Decide(state, Joined{[]Member{{ID: "w.2", Process: "p"}}}, now)
	if state.Plan().Phase != Running || !state.Wake().IsZero() {
		t.Errorf("in phase %v again: %v", state.Plan().Phase, state.Wake())
	}
}

// TestTextsAreClipped: long texts by workers and people do not make the plan too large to store.
func TestTextsAreClipped(t *testing.T) {
	long := strings.Repeat("\u00e9", 1<<20)
	now := time.Unix(0, 0)
	state := NewState(Job{Workers: 9, MinWorkers: 1, Lanes: 9, JoinTimeout: 1, PauseTimeout: 1})
	state, _ = Decide(state, Elected{}, now)
	for i := range 9 {
		state, _ = Decide(state, Joined{[]Member{{ID: fmt.Sprint("w", i)}}}, now)
	}
	state, _ = Decide(state, Suspected{ID: "w0", Generation: 1, Rank: 1, Text: long}, now)
	state, _ = Decide(state, StopRequested{long}, now)
	for i := 2; i < 9; i++ {
		state, _ = Decide(state, Failed{ID: fmt.Sprint("w", i), Text: long}, now)
		plan := state.Plan()
		if plan.Phase != Stopping || len(plan.Members) != 9-i || len(plan.Reason) > 4*textLimit ||
			!utf8.ValidString(plan.Reason) {
			t.Fatalf("after failure %d: %v with %d members, a reason of %d bytes", i, plan.Phase,
				len(plan.Members), len(plan.Reason))
		}
		for _, e := range plan.Evicted {
			if len(e.Reason) > 2*textLimit {
				t.Errorf("%s is evicted for a reason of %d bytes", e.ID, len(e.Reason))
			}
		}
	}
}
