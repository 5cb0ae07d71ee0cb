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
	seedCount = flag.Uint64("seeds", 300, "how many simulations to run")
)

// TestSimulation plays random histories. Workers join, finish, fail, die, are accused and return
// under other ids; people scale and stop the job; leaders die between actions. It checks every
// stored plan, and that the job ends after the last fault.
func TestSimulation(t *testing.T) {
	seeds := []uint64{501, 712} // in these two a process is distrusted
	for seed := range *seedCount {
		seeds = append(seeds, seed+1)
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	seen := make(map[string]int)
	for _, seed := range seeds {
		sim := newSimulation(seed, seen)
		if err := sim.run(); err != nil {
			for _, line := range sim.log {
				t.Logf(line.format, line.args...)
			}
			t.Fatalf("seed %d (replay with -seed %d): %v", seed, seed, err)
		}
		seen[fmt.Sprintf("ended: failed %t, in a ring %t", sim.stored.Failed,
			len(sim.stored.Members) > 0)]++
	}
	t.Log(seen)
	if *seedFlag != 0 || *seedCount < 200 {
		return
	}
	// A simulation that never covers one of these cases proves nothing about it.
	for _, what := range []string{
		"ended: failed false, in a ring false", "ended: failed false, in a ring true",
		"ended: failed true, in a ring false", "ended: failed true, in a ring true",
		"ring grew", "ring shrank", "several lost at once", "paused", "went on after a pause",
		"stopped while paused", "lost while stopping", "evicted: rejoin", "evicted: resync",
		"evicted: wait", "evicted: leave", "slow one taken back", "stale word",
		"late accusation",
		"rank 0 replaced", "began anew", "taken over while paused",
		"veteran chosen before a newcomer", "kept out: corrupt again and again",
		"several left as asked",
		"spread: no neighbours of one host", "spread: not possible", "adjacent",
	} {
		if seen[what] == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
}

// simulation is one job: its store, its workers, and its leader if it has one.
type simulation struct {
	random  *rand.Rand
	log     []logLine
	seen    map[string]int
	now     time.Time
	job     Job
	stored  Plan
	rings   map[Generation][]Member
	last    []Member           // the last ring, without members whose state may be wrong
	members []Member           // registered
	away    []Member           // cut off from the store; they return
	since   time.Time          // when the leader was elected or the pause began, whichever is later
	lost    time.Time          // the same, or when the leader last heard that a veteran left
	said    map[string][]Event // each worker's reports; every new leader hears them
	spawned int
	faulty  bool // the first process has bad memory, and the leader lives long enough to see it

	leader *State
	known  []Member // members registered as far as the leader knows
	heard  map[string]int
}

func newSimulation(seed uint64, seen map[string]int) *simulation {
	random := rand.New(rand.NewPCG(seed, 0))
	workers := 1 + random.IntN(5)
	limit := workers + random.IntN(3)
	job := Job{
		Workers: workers, MinWorkers: 1 + random.IntN(workers), MaxWorkers: limit,
		Lanes: limit + random.IntN(9), Version: "2",
		JoinTimeout:  time.Duration(1+random.IntN(60)) * time.Second,
		PauseTimeout: time.Duration(2+random.IntN(60)) * time.Second,
		Spread:       seed%2 == 0,
	}
	return &simulation{
		random: random, seen: seen, now: time.Unix(0, 0), job: job,
		faulty: random.IntN(6) == 0,
		said:   make(map[string][]Event), rings: make(map[Generation][]Member),
		stored: Plan{Generation: Generation(random.IntN(3))},
	}
}

func (s *simulation) run() error {
	for range 400 {
		if err := s.step(); err != nil {
			return err
		}
	}
	return s.quiet()
}

// quiet runs the job without further faults until it ends.
func (s *simulation) quiet() error {
	s.note("from here on nothing goes wrong")
	for len(s.away) > 0 {
		s.comeBackFromAway()
	}
	if err := s.elect(); err != nil {
		return err
	}
	for range 200 {
		if s.stored.Phase == Ended {
			return nil
		}
		for _, m := range slices.Clone(s.members) {
			s.obey(m)
		}
		for s.leader != nil && s.unheard() != nil {
			if err := s.deliver(false); err != nil {
				return err
			}
		}
		s.now = s.now.Add(time.Second)
		if err := s.decide(Tick{}, false); err != nil {
			return err
		}
	}
	return fmt.Errorf("the job has not ended: %+v, leaving %v", s.stored, s.leader.leaving)
}

func (s *simulation) obey(m Member) {
	_, inRing := s.stored.Rank(m.ID)
	e, evicted := s.stored.Eviction(m.ID)
	switch {
	case evicted && e.Remedy == Leave:
		s.unregister(m.ID)
	case evicted && e.Remedy != Wait:
		s.unregister(m.ID)
		s.comeBack(m)
	case inRing:
		s.say(m.ID, Done{ID: m.ID, Generation: s.stored.Generation})
	case slices.Contains(s.said[m.ID], Event(Leaving{ID: m.ID})):
		s.unregister(m.ID)
	}
}

func (s *simulation) spawn(version, identity string) {
	s.spawned++
	s.register(Member{Host: fmt.Sprint(s.random.IntN(3)), PID: 1, Version: version,
		Process: fmt.Sprint("p", s.spawned), Identity: identity})
}

func (s *simulation) comeBack(m Member) {
	s.spawned++
	s.register(m)
}

// outage ends the leases of the whole ring and of some spares at once. Most of them return.
func (s *simulation) outage() {
	for _, m := range slices.Clone(s.members) {
		if _, inRing := s.stored.Rank(m.ID); !inRing && s.random.IntN(2) == 0 {
			continue
		}
		s.unregister(m.ID)
		if s.random.IntN(4) > 0 {
			s.away = append(s.away, m)
		}
	}
}

// spoil makes the first process find its own state wrong: it reports that, leaves and returns.
func (s *simulation) spoil() {
	for _, m := range slices.Clone(s.members) {
		if _, inRing := s.stored.Rank(m.ID); inRing && m.Process == "p1" {
			s.say(m.ID, Failed{ID: m.ID, Generation: s.stored.Generation, Text: "wrong",
				Resync: true})
			s.unregister(m.ID)
			s.away = append(s.away, m)
		}
	}
}

func (s *simulation) comeBackFromAway() {
	i := s.random.IntN(len(s.away))
	m := s.away[i]
	s.away = slices.Delete(s.away, i, i+1)
	s.comeBack(m)
}

func (s *simulation) register(m Member) {
	m.ID = fmt.Sprintf("w%02d", s.random.IntN(10)*100+s.spawned)
	s.note("join %v", m)
	s.members = append(s.members, m)
}

func (s *simulation) unregister(id string) {
	s.note("%s is gone", id)
	s.members = without(s.members, id)
}

// step makes one random thing happen.
func (s *simulation) step() error {
	var m Member
	if len(s.members) > 0 {
		m = s.members[s.random.IntN(len(s.members))]
	}
	switch n := s.random.IntN(200); {
	case n < 14 && len(s.members) < 7:
		s.spawn("2", "opticks")
	case n == 14 && len(s.members) < 7 && s.stored.Rings > 0:
		if s.random.IntN(2) == 0 {
			s.spawn("1", "opticks")
		} else {
			s.spawn("2", "optics")
		}
	case n >= 44 && n < 54 && len(s.away) > 0:
		s.comeBackFromAway()
	case m.ID == "":
	case n >= 54 && n < 74 && s.faulty:
		s.spoil()
	case n == 43:
		s.outage()
	case n < 20:
		s.unregister(m.ID)
		if s.random.IntN(3) == 0 && len(s.members) > 0 {
			s.unregister(s.members[s.random.IntN(len(s.members))].ID)
		}
	case n < 26:
		s.obey(m)
	case n < 40:
		s.report(m)
	case n < 42 && s.leader != nil:
		return s.decide(ScaleRequested{s.random.IntN(s.job.Lanes + 2)}, s.random.IntN(5) == 0)
	case n == 42 && s.leader != nil && s.random.IntN(3) == 0:
		return s.decide(StopRequested{"a person"}, s.random.IntN(5) == 0)
	}
	return s.leaderStep()
}

// report makes a worker send a random report, possibly about an earlier ring.
func (s *simulation) report(m Member) {
	generation := max(1, s.stored.Generation-Generation(max(0, s.random.IntN(6)-3)))
	switch n := s.random.IntN(14); {
	case n > 11:
		if _, inRing := s.stored.Rank(m.ID); inRing {
			s.say(m.ID, Seated{m.ID, s.stored.Generation})
		}
	case n < 3:
		s.say(m.ID, Done{ID: m.ID, Generation: generation})
	case n < 6:
		s.say(m.ID, Failed{ID: m.ID, Generation: generation, Text: "cannot", Resync: n == 3})
	case n == 6 && s.random.IntN(8) == 0:
		s.say(m.ID, Failed{ID: m.ID, Generation: generation, Text: "cannot",
			Usage: s.random.IntN(2) == 0, Fatal: true})
	case n < 11:
		s.say(m.ID, Suspected{ID: m.ID, Generation: generation, Rank: Rank(s.random.IntN(7) - 1),
			Text: "gone", Slow: s.random.IntN(2) == 0, Resync: n == 10})
	default:
		s.say(m.ID, Leaving{ID: m.ID})
	}
}

func (s *simulation) leaderStep() error {
	switch n := s.random.IntN(60); {
	case n < 2 && !s.faulty:
		s.note("the leader is gone")
		s.leader = nil
	case s.leader == nil:
		if n < 20 {
			return s.elect()
		}
	case n < 14:
		s.now = s.now.Add(time.Duration(s.random.IntN(2000)) * time.Millisecond)
		return s.decide(Tick{}, s.random.IntN(20) == 0)
	case n < 50:
		return s.deliver(s.random.IntN(20) == 0)
	}
	return nil
}

func (s *simulation) elect() error {
	s.note("elect")
	state := NewState(s.job)
	s.leader, s.heard, s.known = &state, make(map[string]int), slices.Clone(s.members)
	s.since, s.lost = s.now, s.now
	if s.stored.Phase == Paused {
		s.seen["taken over while paused"]++
	}
	return s.decide(Elected{Plan: s.stored, Members: slices.Clone(s.members)}, false)
}

// say stores a report. Like a real worker's reports it reaches every leader, in order.
func (s *simulation) say(id string, e Event) {
	s.note("%s says %#v", id, e)
	s.said[id] = append(s.said[id], e)
}

// unheard returns the next event of each source that the leader has not heard.
func (s *simulation) unheard() []Event {
	var unheard []Event
	var joined []Member
	var gone []string
	for _, m := range s.members {
		if !slices.Contains(s.known, m) {
			joined = append(joined, m)
		}
	}
	if len(joined) > 0 {
		unheard = append(unheard, Joined{joined})
	}
	for _, m := range s.known {
		if !slices.Contains(s.members, m) {
			gone = append(gone, m.ID)
		}
	}
	if len(gone) > 0 {
		unheard = append(unheard, Left{gone})
	}
	var ids []string
	for id := range s.said {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if said := s.said[id]; s.heard[id] < len(said) {
			unheard = append(unheard, said[s.heard[id]])
		}
	}
	return unheard
}

// deliver gives the leader one event that it has not heard.
func (s *simulation) deliver(crash bool) error {
	unheard := s.unheard()
	if s.leader == nil || len(unheard) == 0 {
		return nil
	}
	event := unheard[s.random.IntN(len(unheard))]
	switch e := event.(type) {
	case Joined:
		s.known = append(s.known, e.Members...)
	case Left:
		if slices.ContainsFunc(s.known, func(m Member) bool {
			_, evicted := s.stored.Eviction(m.ID)
			return slices.Contains(e.IDs, m.ID) && s.veteran(m) && !evicted &&
				!s.leader.evictions.distrusts(m) && !slices.Contains(s.leader.leaving, m.ID)
		}) {
			s.lost = s.now
		}
		s.known = without(s.known, e.IDs...)
	case Done:
		s.heard[e.ID]++
	case Failed:
		s.heard[e.ID]++
	case Suspected:
		s.heard[e.ID]++
	case Leaving:
		s.heard[e.ID]++
	case Seated:
		s.heard[e.ID]++
	}
	return s.decide(event, crash)
}

// decide runs the leader. With crash it dies before its first action.
func (s *simulation) decide(e Event, crash bool) error {
	if s.leader == nil {
		return nil
	}
	s.note("%#v", e)
	look := s.random.IntN(16) == 0 // it takes longer than everything else
	before := ""
	if look {
		before = fmt.Sprintf("%+v", *s.leader)
	}
	next, actions := Decide(*s.leader, e, s.now)
	if look && fmt.Sprintf("%+v", *s.leader) != before {
		return fmt.Errorf("Decide changed its state from %s to %+v", before, *s.leader)
	}
	if crash && len(actions) > 0 {
		s.note("the leader dies before %#v", actions[0])
		s.leader = nil
		return nil
	}
	s.leader = &next
	holds := invariants{s}
	if err := holds.checkWord(e, actions); err != nil {
		return err
	}
	plans := 0
	for _, action := range actions {
		switch a := action.(type) {
		case WritePlan:
			s.note("plan %+v", a.Plan)
			if plans++; plans > 1 {
				return fmt.Errorf("%#v makes more than one plan", e)
			}
			if err := holds.check(e, a.Plan); err != nil {
				return err
			}
			s.keep(a.Plan)
			if err := holds.checkHeirs(); err != nil {
				return err
			}
		case End:
			if s.stored.Phase != Ended {
				return fmt.Errorf("an End without an ended plan: %+v", s.stored)
			}
		}
	}
	return nil
}

func (s *simulation) keep(p Plan) {
	if p.Phase == Paused && s.stored.Phase != Paused {
		s.since, s.lost = s.now, s.now
	}
	begun := p.Generation == s.stored.Generation && len(p.Last) == 0 // of the stored ring
	newcomer := func(m Member) bool { return !s.veteran(m) }
	if len(p.Members) > 0 && (begun || !slices.ContainsFunc(p.Members, newcomer) ||
		!slices.ContainsFunc(p.Members, s.veteran)) {
		s.last = p.Members
	}
	anew := p.Generation > s.stored.Generation
	s.stored = p
	s.rings[p.Generation] = p.Members
	for _, e := range p.Evicted {
		if e.Remedy == Resync {
			s.last = without(s.last, e.ID)
		}
	}
	if anew { // a later write of the same ring must not change it
		s.last = slices.DeleteFunc(slices.Clone(s.last), s.leader.evictions.distrusts)
	}
}

// logLine is formatted only if it is needed.
type logLine struct {
	format string
	args   []any
}

func (s *simulation) note(format string, args ...any) {
	s.log = append(s.log, logLine{format, args})
}
