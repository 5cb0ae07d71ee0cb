package cluster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "replay this one simulation")
	seedCount = flag.Uint64("seeds", 150, "how many simulations to run")
)

// TestSimulation plays random histories: workers come, finish, fail and die, people stop the job,
// leaders die in the middle of what they do. It checks every plan that is stored.
func TestSimulation(t *testing.T) {
	first, last := uint64(1), *seedCount
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	endings := make(map[string]int)
	for seed := first; seed <= last; seed++ {
		sim := newSimulation(seed)
		if err := sim.run(); err != nil {
			for _, line := range sim.log {
				t.Log(line)
			}
			t.Fatalf("seed %d (replay with -seed %d): %v", seed, seed, err)
		}
		endings[fmt.Sprintf("failed %t, in a ring %t", sim.stored.Failed,
			len(sim.stored.Members) > 0)]++
	}
	// A simulation that never sees one of the ways to end proves nothing about it.
	if *seedFlag == 0 && *seedCount >= 100 && len(endings) != 4 {
		t.Errorf("only these ways to end were seen: %v", endings)
	}
}

// simulation is one job: its store, its workers, and its leader if there is one.
type simulation struct {
	random  *rand.Rand
	log     []string
	now     time.Time
	job     Job
	stored  Plan
	members []Member           // registered
	said    map[string][]Event // what each worker has reported, to be told to every new leader
	spawned int

	leader *State
	seen   []Member // what the leader knows to be registered
	heard  map[string]int
}

func newSimulation(seed uint64) *simulation {
	random := rand.New(rand.NewPCG(seed, 0))
	workers := 1 + random.IntN(5)
	job := Job{
		Workers: workers, Lanes: workers + random.IntN(9),
		JoinTimeout: time.Duration(1+random.IntN(60)) * time.Second,
	}
	return &simulation{
		random: random, now: time.Unix(0, 0), job: job, said: make(map[string][]Event),
		stored: Plan{Generation: Generation(random.IntN(3))},
	}
}

func (s *simulation) run() error {
	for range 200 {
		if err := s.step(); err != nil {
			return err
		}
	}
	// From here on nothing goes wrong any more: the job must come to its end.
	if err := s.elect(); err != nil {
		return err
	}
	s.now = s.now.Add(s.job.JoinTimeout)
	if err := s.decide(Tick{}, false); err != nil {
		return err
	}
	for _, m := range s.stored.Members {
		s.say(m.ID, Done{m.ID})
	}
	for range 3 * len(s.said) * (1 + s.spawned) {
		if err := s.deliver(false); err != nil {
			return err
		}
	}
	if s.stored.Phase != Ended {
		return fmt.Errorf("the job has not ended: %+v", s.stored)
	}
	return nil
}

func (s *simulation) step() error {
	switch n := s.random.IntN(100); {
	case n < 12 && s.spawned < 8:
		s.spawned++
		m := Member{ID: fmt.Sprintf("w%d", s.spawned), Host: fmt.Sprint(s.random.IntN(3))}
		s.note("join %v", m)
		s.members = append(s.members, m)
	case n < 14 && len(s.members) > 0:
		i := s.random.IntN(len(s.members))
		s.note("kill %s", s.members[i].ID)
		s.members = slices.Delete(slices.Clone(s.members), i, i+1)
	case n < 30 && len(s.members) > 0:
		m := s.members[s.random.IntN(len(s.members))]
		if _, inRing := s.stored.Rank(m.ID); inRing {
			s.say(m.ID, Done{m.ID})
		}
	case n == 30 && len(s.members) > 0:
		m := s.members[s.random.IntN(len(s.members))]
		if s.random.IntN(2) == 0 {
			s.say(m.ID, Failed{ID: m.ID, Text: "cannot", Usage: s.random.IntN(2) == 0})
		} else {
			s.say(m.ID, PeerLost{ID: m.ID, Rank: Rank(s.random.IntN(7) - 1), Text: "gone"})
		}
	case n == 31 && s.leader != nil:
		return s.decide(StopRequested{"a person"}, s.random.IntN(5) == 0)
	case n < 35:
		s.note("the leader is gone")
		s.leader = nil
	case n < 45 && s.leader == nil:
		return s.elect()
	case n < 55:
		s.now = s.now.Add(time.Duration(s.random.IntN(5)) * time.Second)
		if s.leader != nil {
			return s.decide(Tick{}, false)
		}
	case s.leader != nil:
		return s.deliver(s.random.IntN(20) == 0)
	}
	return nil
}

func (s *simulation) elect() error {
	s.note("elect")
	state := NewState(s.job)
	s.leader, s.heard, s.seen = &state, make(map[string]int), slices.Clone(s.members)
	return s.decide(Elected{Plan: s.stored, Members: slices.Clone(s.members)}, false)
}

// say keeps a report. Like the reports of a real worker it reaches every leader, in order.
func (s *simulation) say(id string, e Event) {
	s.note("%s says %#v", id, e)
	s.said[id] = append(s.said[id], e)
}

// deliver tells the leader one thing that it does not know yet.
func (s *simulation) deliver(crash bool) error {
	var unheard []Event
	for _, m := range s.members {
		if !slices.Contains(s.seen, m) {
			unheard = append(unheard, Joined{m})
		}
	}
	for _, m := range s.seen {
		if !slices.Contains(s.members, m) {
			unheard = append(unheard, Left{m.ID})
		}
	}
	for i := 1; i <= s.spawned; i++ {
		id := fmt.Sprintf("w%d", i)
		if said := s.said[id]; s.heard[id] < len(said) {
			unheard = append(unheard, said[s.heard[id]])
		}
	}
	if s.leader == nil || len(unheard) == 0 {
		return nil
	}
	event := unheard[s.random.IntN(len(unheard))]
	switch e := event.(type) {
	case Joined:
		s.seen = append(s.seen, e.Member)
	case Left:
		s.seen = without(s.seen, e.ID)
	case Done:
		s.heard[e.ID]++
	case Failed:
		s.heard[e.ID]++
	case PeerLost:
		s.heard[e.ID]++
	}
	return s.decide(event, crash)
}

// decide runs the leader; with crash it dies before the first thing that it would do.
func (s *simulation) decide(e Event, crash bool) error {
	if s.leader == nil {
		return nil
	}
	s.note("%#v", e)
	before := fmt.Sprintf("%+v", *s.leader)
	next, actions := Decide(*s.leader, e, s.now)
	if after := fmt.Sprintf("%+v", *s.leader); after != before {
		return fmt.Errorf("Decide changed its state from %s to %s", before, after)
	}
	if crash && len(actions) > 0 {
		s.note("the leader dies before %#v", actions[0])
		s.leader = nil
		return nil
	}
	s.leader = &next
	for _, action := range actions {
		switch a := action.(type) {
		case WritePlan:
			s.note("plan %+v", a.Plan)
			if err := s.check(a.Plan); err != nil {
				return err
			}
			s.stored = a.Plan
		case End:
			if s.stored.Phase != Ended {
				return fmt.Errorf("an End without an ended plan: %+v", s.stored)
			}
		}
	}
	return nil
}

// check holds a new plan against the one before it.
func (s *simulation) check(p Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := p.Fits(s.job); err != nil {
		return err
	}
	sameRing := slices.Equal(p.Members, s.stored.Members) &&
		slices.Equal(p.LaneEnds, s.stored.LaneEnds)
	switch {
	case s.stored.Phase == Ended:
		return fmt.Errorf("a plan after the end: %+v", p)
	case p.Generation < s.stored.Generation:
		return fmt.Errorf("generation %d after %d", p.Generation, s.stored.Generation)
	case p.Generation == s.stored.Generation && !sameRing:
		return fmt.Errorf("generation %d has two rings: %+v and %+v", p.Generation, s.stored, p)
	case p.Generation == s.stored.Generation && p.Phase <= s.stored.Phase:
		return fmt.Errorf("generation %d goes from %v to %v", p.Generation, s.stored.Phase, p.Phase)
	case p.Reason == "":
		return fmt.Errorf("a plan without a reason: %+v", p)
	}
	if len(p.Members) == 0 {
		return nil
	}
	for lane := range Lane(s.job.Lanes) {
		owners := 0
		for r := range p.Members {
			if from, to := p.Lanes(Rank(r)); from <= lane && lane < to {
				owners++
			}
		}
		if owners != 1 {
			return fmt.Errorf("lane %d has %d owners in %+v", lane, owners, p)
		}
	}
	return nil
}

func (s *simulation) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}
