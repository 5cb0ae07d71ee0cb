package cluster

import (
	"fmt"
	"maps"
	"slices"
)

// invariants checks a simulation's promises after each decision of its leader.
type invariants struct{ *simulation }

func (s invariants) checkWord(e Event, actions []Action) error {
	var about Generation
	switch e := e.(type) {
	case Suspected:
		about = e.Generation
	case Failed:
		about = e.Generation
	case Done:
		about = e.Generation
	default:
		return nil
	}
	if accusation, is := e.(Suspected); is && len(actions) > 0 && about < s.stored.Generation {
		// It may be about a member that is still in the ring, which has not begun.
		if _, goesOn := s.stored.Rank(accusation.ID); goesOn && !accusation.Slow {
			s.seen["late accusation"]++
			return nil
		}
	}
	if about != s.stored.Generation {
		s.seen["stale word"]++
		if len(actions) > 0 {
			return fmt.Errorf("%#v is about another ring than %d's, and causes %#v", e,
				s.stored.Generation, actions)
		}
	}
	return nil
}

func (s invariants) check(e Event, p Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := p.Fits(s.job); err != nil {
		return err
	}
	sameRing := slices.Equal(p.Members, s.stored.Members) &&
		slices.Equal(p.LaneEnds, s.stored.LaneEnds) && p.Rings == s.stored.Rings
	switch {
	case s.stored.Phase == Ended:
		return fmt.Errorf("a plan after the end: %+v", p)
	case p.Generation < s.stored.Generation || p.Generation > s.stored.Generation+1:
		return fmt.Errorf("generation %d after %d", p.Generation, s.stored.Generation)
	case p.Generation == s.stored.Generation && !sameRing:
		return fmt.Errorf("generation %d has two rings: %+v and %+v", p.Generation, s.stored, p)
	case p.Generation == s.stored.Generation && p.Phase < s.stored.Phase:
		return fmt.Errorf("generation %d goes from %v to %v", p.Generation, s.stored.Phase, p.Phase)
	case p.Equal(s.stored):
		return fmt.Errorf("a plan that says nothing new: %+v", p)
	case p.Reason == "":
		return fmt.Errorf("a plan without a reason: %+v", p)
	case s.stored.Phase == Stopping && p.Phase != Stopping && p.Phase != Ended:
		return fmt.Errorf("a job that stops goes to %v", p.Phase)
	}
	if _, is := e.(Tick); is && p.Failed && s.stored.Phase == Paused &&
		s.fit() >= s.job.MinWorkers {
		return fmt.Errorf("the job fails, and %d workers are there: %+v", s.fit(), p)
	}
	if err := s.checkEvictions(e, p); err != nil {
		return err
	}
	if p.Generation == s.stored.Generation {
		return nil
	}
	if p.Phase == Paused {
		s.seen["paused"]++
		if p.Rings != s.stored.Rings {
			return fmt.Errorf("a pause counts as a ring: %+v", p)
		}
		return nil
	}
	return s.checkRing(e, p)
}

// fit returns the number of workers that could be in a ring, as far as the leader knows.
func (s invariants) fit() (fit int) {
	for _, m := range s.known {
		e, evicted := s.stored.Eviction(m.ID)
		if !slices.Contains(s.leader.leaving, m.ID) && !s.leader.evictions.distrusts(m) &&
			(!evicted || e.Remedy == Wait) {
			fit++
		}
	}
	return fit
}

// checkEvictions: a worker is evicted only after a report against it or because it does not fit.
// Evicted workers are registered. Only a slow one may return, when it is needed.
func (s invariants) checkEvictions(e Event, p Plan) error {
	for _, x := range p.Evicted {
		if find(s.known, x.ID) < 0 {
			return fmt.Errorf("%s is evicted, and not registered: %+v", x.ID, p)
		}
		if _, before := s.stored.Eviction(x.ID); before {
			continue
		}
		s.seen["evicted: "+x.Remedy.String()]++
		accused := ""
		switch e := e.(type) {
		case Suspected:
			accused = s.rings[e.Generation][e.Rank].ID
		case Failed:
			accused = e.ID
		}
		j, _ := e.(Joined)
		at := find(j.Members, x.ID)
		if at >= 0 && x.Remedy == Wait && s.leader.evictions.distrusts(j.Members[at]) {
			s.seen["kept out: corrupt again and again"]++
			continue
		}
		if x.Remedy != Leave && x.ID != accused {
			return fmt.Errorf("%#v evicts %s", e, x.ID)
		}
	}
	for _, x := range s.stored.Evicted {
		_, still := p.Eviction(x.ID)
		if still || find(s.known, x.ID) < 0 || p.Phase == Ended {
			continue
		}
		if _, inRing := p.Rank(x.ID); !inRing || x.Remedy != Wait {
			return fmt.Errorf("the eviction %+v was dropped by %#v", x, e)
		}
		s.seen["slow one taken back"]++
	}
	return nil
}

func (s invariants) checkRing(e Event, p Plan) error {
	limit := s.job.MaxWorkers
	if p.Limit > 0 {
		limit = p.Limit
	}
	if _, is := e.(Leaving); is { // it hands over to another worker
		limit = max(limit, 2)
	}
	switch {
	case p.Rings != s.stored.Rings+1:
		return fmt.Errorf("ring %d after %d", p.Rings, s.stored.Rings)
	case p.Phase != Running && p.Phase != Stopping:
		return fmt.Errorf("a new ring in phase %v", p.Phase)
	case len(p.Members) < s.job.MinWorkers && p.Phase != Stopping:
		return fmt.Errorf("%d workers go on, of at least %d: %+v", len(p.Members),
			s.job.MinWorkers, p)
	case len(p.Members) > limit:
		return fmt.Errorf("%d workers are more than the limit: %+v", len(p.Members), p)
	}
	for _, m := range p.Members {
		if !slices.Contains(s.known, m) {
			return fmt.Errorf("%s is in the ring, and not registered: %+v", m.ID, p)
		}
		if e, is := e.(Leaving); s.leader.evictions.distrusts(m) && (!is || e.ID != m.ID) {
			return fmt.Errorf("%s was corrupt again and again, and is in the ring: %+v", m.ID, p)
		}
		if m.Version != "2" || m.Identity != "opticks" {
			return fmt.Errorf("%s does not fit the job, and is in the ring: %+v", m.ID, p)
		}
	}
	if err := s.checkVeterans(p); err != nil {
		return err
	}
	if err := s.checkOrder(p); err != nil {
		return err
	}
	if err := s.checkLanes(p); err != nil {
		return err
	}
	s.count(e, p)
	return nil
}

// veteran reports whether a member's process was in the last ring, and may have its state.
func (s *simulation) veteran(m Member) bool {
	return slices.ContainsFunc(s.last, func(v Member) bool {
		return v.Process == m.Process
	})
}

// checkVeterans: the job's state is kept. Members that may have it are chosen before newcomers, and
// lead. A ring without any of them is formed only after they had time to return.
func (s invariants) checkVeterans(p Plan) error {
	if s.stored.Rings == 0 {
		return nil
	}
	newcomer := func(m Member) bool { return !s.veteran(m) }
	for _, m := range s.known {
		_, inRing := p.Rank(m.ID)
		_, evicted := p.Eviction(m.ID)
		switch {
		case newcomer(m) && !inRing:
			s.seen["veteran chosen before a newcomer"]++
		case newcomer(m) || inRing || evicted || slices.Contains(s.leader.leaving, m.ID) ||
			s.leader.evictions.distrusts(m):
		case slices.ContainsFunc(p.Members, newcomer):
			return fmt.Errorf("%s of the last ring %+v is there, and a newcomer is in the ring: "+
				"%+v", m.ID, s.last, p)
		}
	}
	switch {
	case !newcomer(p.Members[0]) || p.Phase == Stopping:
	case slices.ContainsFunc(p.Members, s.veteran):
		return fmt.Errorf("rank 0 is the newcomer %s: %+v after %+v", p.Members[0].ID, p, s.last)
	case s.stored.Phase != Paused || s.now.Sub(s.lost) < returnTime &&
		s.now.Sub(s.since) < s.job.PauseTimeout:
		return fmt.Errorf("newcomers begin anew, %v after the others have gone: %+v after %+v",
			s.now.Sub(s.lost), p, s.last)
	default:
		s.seen["began anew"]++
	}
	return nil
}

// checkHeirs: the stored plan alone tells a new leader which members may have the job's state.
func (s invariants) checkHeirs() error {
	next := State{plan: s.stored}
	for _, m := range s.members {
		if next.plan.ranking().isVeteran(m) != s.veteran(m) {
			return fmt.Errorf("the next leader takes %+v for one with the job's state: %t, after "+
				"the ring %+v: %+v", m, next.plan.ranking().isVeteran(m), s.last, s.stored)
		}
	}
	return nil
}

// checkOrder: each host is entered once, or as few neighbours as possible share a host, unless the
// ring goes around a link under suspicion.
func (s invariants) checkOrder(p Plan) error {
	equal, hosts := 0, make(map[string]int)
	for i, m := range p.Members {
		if len(p.Members) > 1 && m.Host == p.Members[(i+1)%len(p.Members)].Host {
			equal++
		}
		hosts[m.Host]++
	}
	want, what := len(p.Members)-len(hosts), "adjacent"
	switch {
	case len(p.Members) < 2:
		return nil
	case len(hosts) == 1:
		want = len(p.Members)
	case s.job.Spread:
		fullest := slices.Max(slices.Collect(maps.Values(hosts)))
		want, what = max(0, 2*fullest-len(p.Members)), "spread: no neighbours of one host"
		if want > 0 {
			what = "spread: not possible"
		}
	}
	plain := RingOrder(p.Members)
	if s.job.Spread {
		plain = SpreadOrder(p.Members)
	}
	if bad := s.leader.suspicions; equal != want && bad.in(p.Members) < bad.in(plain) {
		s.seen["around a link"]++
		return nil
	}
	if equal != want {
		return fmt.Errorf("%s: %d neighbours share a host, not %d: %+v", what, equal, want,
			p.Members)
	}
	s.seen[what]++
	return nil
}

func (s invariants) checkLanes(p Plan) error {
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

// count counts the cases that the simulation has covered.
func (s invariants) count(e Event, p Plan) {
	left, several := e.(Left)
	before := s.stored
	released := 0
	for _, m := range before.Members {
		if slices.Contains(s.leader.leaving, m.ID) {
			released++
		}
	}
	for what, is := range map[string]bool{
		"ring grew":             before.Phase == Running && len(p.Members) > len(before.Members),
		"ring shrank":           before.Phase == Running && len(p.Members) < len(before.Members),
		"several left as asked": before.Phase == Running && released > 1,
		"several lost at once":  several && len(left.IDs) > 1,
		"went on after a pause": s.stored.Phase == Paused && p.Phase == Running,
		"stopped while paused":  before.Phase == Paused && p.Phase == Stopping,
		"lost while stopping":   before.Phase == Stopping,
		"rank 0 replaced":       before.Phase == Running && p.Members[0] != before.Members[0],
	} {
		if is {
			s.seen[what]++
		}
	}
}
