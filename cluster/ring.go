package cluster

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// wanted returns the number of workers that a start waits for.
func (s State) wanted() int { return min(s.job.Workers, s.job.Limit(s.plan)) }

// ranking finds the members of a plan's last ring, without a search for each.
type ranking struct {
	plan           Plan
	ids, processes map[string]int // to their ranks
}

func (p Plan) ranking() ranking {
	ring := p.veterans()
	r := ranking{p, make(map[string]int, len(ring)), make(map[string]int, len(ring))}
	for rank, m := range ring {
		r.ids[m.ID] = rank
		if _, known := r.processes[m.process()]; !known {
			r.processes[m.process()] = rank
		}
	}
	return r
}

// seniority orders members by how much of the job's state they may have, lowest first: members of
// rings that the store has forgotten, the newest first; members of the last ring by rank; then
// processes that were in it under another id; then newcomers, which have none.
func (r ranking) seniority(m Member) int {
	if r.plan.forgot(m) {
		return -int(m.Served)
	}
	if rank, is := r.ids[m.ID]; is {
		return rank
	}
	if rank, is := r.processes[m.process()]; is {
		return len(r.ids) + rank
	}
	return math.MaxInt
}

// forgot reports whether a member has trained in a ring that the store has forgotten.
func (p Plan) forgot(m Member) bool { return p.Resume > 0 && m.Served >= p.Resume }

// isBefore reports whether a member knows a newer plan: the store has lost writes.
func (p Plan) isBefore(m Member) bool { return max(m.Seen, m.Served) > p.Generation }

// standing is seniority without the order within a class: 0 for members of the last ring, 1 for
// processes that were in it under another id, 2 for newcomers.
func (r ranking) standing(m Member) int {
	switch rank := r.seniority(m); {
	case rank < len(r.ids):
		return 0
	case rank < math.MaxInt:
		return 1
	}
	return 2
}

// generationAfter returns the next generation. It is above all that a member knows, also above
// those that the store has forgotten.
func (s State) generationAfter() Generation {
	last := s.plan.Generation
	for _, m := range s.members {
		last = max(last, m.Seen, m.Served)
	}
	return last + 1
}

// isNew reports whether a member has no part of the job's state, as far as this leader knows.
func (r ranking) isNew(m Member) bool { return r.seniority(m) == math.MaxInt }

func (r ranking) isVeteran(m Member) bool { return !r.isNew(m) }

// allNew reports whether none of the members has any of the job's state.
func (r ranking) allNew(members []Member) bool {
	return !slices.ContainsFunc(members, r.isVeteran)
}

// choose returns the members of a ring formed now, by seniority and then by host. If the ring is to
// be spread, members of equal standing take turns by host. Slow members, evicted with Wait, are
// chosen only to reach least members. So are those that have to stay out for a while, unless nobody
// else has a state.
func (s State) choose(least int) []Member {
	var chosen, slow, away []Member
	evictions, leaving, ranks := s.plan.evictions(), setOf(s.leaving), s.plan.ranking()
	for _, m := range s.members {
		e, evicted := evictions[m.ID]
		switch {
		case leaving[m.ID] || s.evictions.distrusts(m):
		case !evicted && s.evictions.isAway(m, s.now):
			away = append(away, m)
		case !evicted:
			chosen = append(chosen, m)
		case e.Remedy == Wait:
			slow = append(slow, m)
		}
	}
	if s.plan.Rings > 0 && ranks.allNew(chosen) { // those that are away may have a state
		chosen, away = append(chosen, away...), nil
	}
	slow = append(slow, away...)
	slices.SortStableFunc(chosen, func(a, b Member) int {
		return cmp.Compare(ranks.seniority(a), ranks.seniority(b))
	})
	if s.job.Spread {
		interleaveHosts(chosen, ranks.standing)
	}
	if short := least - len(chosen); short > 0 {
		chosen = append(chosen, slow[:min(short, len(slow))]...)
	}
	if s.plan.Phase == Stopping && len(chosen) > 0 && !ranks.isNew(chosen[0]) {
		chosen = slices.DeleteFunc(chosen, ranks.isNew) // they have nothing to save
	}
	return chosen[:min(len(chosen), s.job.Limit(s.plan))]
}

// ringWouldChange reports whether a ring formed now would have other members than the present one.
func (s State) ringWouldChange() bool {
	chosen, ring := s.choose(s.job.MinWorkers), idsOf(s.plan.Members)
	return len(chosen) != len(s.plan.Members) || slices.ContainsFunc(chosen, func(m Member) bool {
		return !ring[m.ID]
	})
}

// regroup plans a ring of all available members, or pauses the job if they are too few. why is the
// cause; the plan's reason adds the consequence.
func regroup(s State, why string, now time.Time) (State, []Action) {
	least := s.job.MinWorkers
	if s.plan.Phase == Stopping {
		why, least = clip(s.plan.Reason)+"; "+why, 1
	}
	chosen := s.choose(least)
	// The job's state left with the ring.
	lost := s.plan.Phase == Running && s.plan.ranking().allNew(chosen)
	switch {
	case len(chosen) < least && s.plan.Phase == Stopping:
		s.plan.Evicted = nil // so that its members remain those of the last ring
		return fail(s, why+"; nobody is left to save"+resumeHint, false)
	case len(chosen) < least:
		return pause(s, fmt.Sprintf("%s; paused: %d of at least %d workers left; waiting for %d "+
			"more, for %v at most (--pause-timeout)", why, len(chosen), least, least-len(chosen),
			s.job.PauseTimeout), time.Time{}, now)
	case lost:
		wait := min(returnTime, s.job.PauseTimeout)
		return pause(s, fmt.Sprintf("%s; paused: only workers without the job's state are left; "+
			"waiting for one that has it, for %v", why, wait), now.Add(wait), now)
	}
	return s.formRing(chosen, why)
}

// pause dissolves the ring. At settled the members that are there go on without others.
func pause(s State, reason string, settled, now time.Time) (State, []Action) {
	s.plan.Generation, s.plan.Last = s.generationAfter(), s.trusted()
	s.plan.Phase, s.plan.Members, s.plan.LaneEnds = Paused, nil, nil
	s.done, s.result, s.asked, s.giveUp = nil, "", nil, now.Add(s.job.PauseTimeout)
	s.begun = false
	s.settled, s.awaitsState = settled, !settled.IsZero()
	s.plan.Reason = reason
	s, actions := s.write()
	return s, append(actions, Notify{Text: reason})
}

// trusted returns the members that may have the job's state, without those whose state is known to
// be wrong: the veterans, and members of a ring that the store has forgotten.
func (s State) trusted() []Member {
	known := slices.Clone(s.plan.veterans())
	ids, evictions := idsOf(known), s.plan.evictions()
	for _, m := range s.members {
		if s.plan.forgot(m) && !ids[m.ID] {
			known = append(known, m)
		}
	}
	return slices.DeleteFunc(known, func(m Member) bool {
		return evictions[m.ID].Remedy == Resync || s.evictions.distrusts(m)
	})
}

// seated records that the present ring has begun, so all its members have the job's state.
func seated(s State, e Seated) (State, []Action) {
	if e.Generation != s.plan.Generation || len(s.plan.Members) == 0 {
		return s, nil
	}
	s.begun, s.known = true, s.plan.Generation
	if len(s.plan.Last) == 0 {
		return s, nil
	}
	s.plan.Last = nil
	return s.write()
}

const resumeHint = "; --resume auto goes on from the newest checkpoint, if one was kept"

// formRing plans a ring of the chosen members, in the plan's phase. It lifts the evictions of the
// chosen.
func (s State) formRing(chosen []Member, why string) (State, []Action) {
	var newcomers []string
	ranks := s.plan.ranking()
	for _, m := range chosen {
		if _, was := ranks.ids[m.ID]; s.plan.Rings > 0 && !was {
			newcomers = append(newcomers, m.ID)
		}
	}
	reason := fmt.Sprintf("%s; %s", why, count(len(chosen), "worker goes on", "workers go on"))
	if len(newcomers) > 0 {
		reason += ", with " + s.describe(newcomers...)
	}
	if s.plan.Rings == 0 {
		reason = why
	}
	if s.plan.Identity == "" {
		s.plan.Identity = chosen[0].Identity
		chosen = slices.DeleteFunc(chosen, func(m Member) bool {
			return m.Identity != s.plan.Identity // it stays a spare
		})
	}
	if s.plan.Phase != Stopping {
		s.plan.Phase = Running
	}
	s.lastMembers = s.plan.veterans()
	ring := idsOf(chosen)
	lost := slices.ContainsFunc(s.plan.Members, func(m Member) bool { return !ring[m.ID] })
	if s.begun || s.broken.Generation == 0 { // a new leader does not know whether it has begun
		s.broken = Plan{}
		if lost {
			s.broken = s.plan
		}
	}
	last := s.trusted()
	if !slices.ContainsFunc(chosen, ranks.isNew) || ranks.allNew(chosen) {
		last = nil // all members have the state, or it is given up
	}
	s.plan.Rings++
	s.plan.Members, s.plan.LaneEnds = s.order(chosen), s.job.deal(len(chosen))
	s.plan.Generation, s.plan.Resume, s.plan.Last = s.generationAfter(), 0, last
	s.begun = false
	s.plan.Reason = reason
	s.plan.Evicted = slices.DeleteFunc(slices.Clone(s.plan.Evicted), func(e Eviction) bool {
		return ring[e.ID]
	})
	s.done, s.result, s.asked, s.settled = nil, "", nil, time.Time{}
	s, actions := s.write()
	return s, append(actions, s.spares()...)
}

// order returns the chosen members in ring order, rotated so that the most senior has rank 0. So
// rank 0 is a newcomer only if all are.
func (s State) order(chosen []Member) []Member {
	ring, first, ranks := RingOrder(chosen), 0, s.plan.ranking()
	if s.job.Spread {
		ring = SpreadOrder(chosen)
	}
	for i, m := range ring {
		if ranks.seniority(m) < ranks.seniority(ring[first]) {
			first = i
		}
	}
	return s.suspicions.around(slices.Concat(ring[first:], ring[:first]))
}

// mostDescribed is how many workers a text describes. It is stored with the plan.
const mostDescribed = 16

func (s State) describe(ids ...string) string {
	rest := ""
	if more := len(ids) - mostDescribed; more > 1 {
		ids, rest = ids[:mostDescribed], fmt.Sprintf(" and %d more", more)
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = "worker " + id
		if r, ok := s.plan.Rank(id); ok {
			names[i] += fmt.Sprintf(" (rank %d, %s)", r, s.plan.Members[r].Place())
		} else if at := find(s.members, id); at >= 0 {
			names[i] += " (" + s.members[at].Place() + ")"
		}
	}
	return strings.Join(names, ", ") + rest
}

// counted returns how many of the workers that a start waits for are there, for people.
func (s State) counted() string {
	return fmt.Sprintf("%d of %d workers", min(len(s.choose(1)), s.wanted()), s.wanted())
}

// spares notifies each registered worker that is left over.
func (s State) spares() []Action {
	var actions []Action
	ring, evictions, leaving := idsOf(s.plan.Members), s.plan.evictions(), setOf(s.leaving)
	for _, m := range s.members {
		_, evicted := evictions[m.ID]
		if !ring[m.ID] && !evicted && !leaving[m.ID] &&
			!s.evictions.distrusts(m) && !s.evictions.isAway(m, s.now) {
			actions = append(actions, spare(m))
		}
	}
	return actions
}

func spare(m Member) Action {
	return Notify{ID: m.ID, Text: fmt.Sprintf(
		"the ring is complete: the worker on %s waits as a spare", m.Place())}
}

func (s State) registered(id string) bool { return find(s.members, id) >= 0 }

// find returns the index of a member; negative: not there.
func find(members []Member, id string) int {
	return slices.IndexFunc(members, func(m Member) bool { return m.ID == id })
}

// without returns a copy of members without ids.
func without(members []Member, ids ...string) []Member {
	out := setOf(ids)
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return out[m.ID] })
}

// idsOf returns the set of the members' ids.
func idsOf(members []Member) map[string]bool {
	ids := make(map[string]bool, len(members))
	for _, m := range members {
		ids[m.ID] = true
	}
	return ids
}

func setOf(ids []string) map[string]bool {
	set := make(map[string]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// textLimit is the longest text by others in a plan, in bytes. It is stored with the plan.
const textLimit = 1000

// ResultLimit is the longest result of a worker in a plan, in bytes. A longer one is left out.
const ResultLimit = 16 << 10

// clip cuts a text to textLimit.
func clip(text string) string {
	if len(text) <= textLimit {
		return text
	}
	return strings.ToValidUTF8(text[:textLimit], "") + " ..."
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
