package cluster

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// wanted is how many workers a start waits for.
func (s State) wanted() int { return min(s.job.Workers, s.job.Limit(s.plan)) }

// seniority orders members by what they may have of the job's state, the lowest first: members of
// the last ring by rank, then those that were in it under another id, which is told by host and
// process, then newcomers, which have nothing.
func (s State) seniority(m Member) int {
	ring := s.plan.veterans()
	if rank := find(ring, m.ID); rank >= 0 {
		return rank
	}
	same := func(r Member) bool { return r.Host == m.Host && r.PID == m.PID }
	if rank := slices.IndexFunc(ring, same); rank >= 0 {
		return len(ring) + rank
	}
	return math.MaxInt
}

// standing is seniority without the order among equals: 0 for members of the last ring, 1 for those
// that were in it under another id, 2 for newcomers.
func (s State) standing(m Member) int {
	switch rank := s.seniority(m); {
	case rank < len(s.plan.veterans()):
		return 0
	case rank < math.MaxInt:
		return 1
	}
	return 2
}

// isNew reports whether a member has nothing of the job's state, as far as this leader knows.
func (s State) isNew(m Member) bool { return s.seniority(m) == math.MaxInt }

// allNew reports whether a ring of these members would have nothing of the job's state.
func (s State) allNew(members []Member) bool {
	return !slices.ContainsFunc(members, func(m Member) bool { return !s.isNew(m) })
}

// choose returns who would be in a ring now, by seniority and then by host; where the ring is to be
// spread, those of equal standing by turns of their hosts. The slow ones, which wait, are taken
// only as far as fewer than least are there without them.
func (s State) choose(least int) []Member {
	var chosen, slow []Member
	for _, m := range s.members {
		e, evicted := s.plan.Eviction(m.ID)
		switch {
		case slices.Contains(s.leaving, m.ID) || s.distrusted(m):
		case !evicted:
			chosen = append(chosen, m)
		case e.Remedy == Wait:
			slow = append(slow, m)
		}
	}
	bySeniority := func(a, b Member) int { return cmp.Compare(s.seniority(a), s.seniority(b)) }
	slices.SortStableFunc(chosen, bySeniority)
	if s.job.Spread {
		mix(chosen, s.standing)
	}
	if short := least - len(chosen); short > 0 {
		chosen = append(chosen, slow[:min(short, len(slow))]...)
	}
	if s.plan.Phase == Stopping && len(chosen) > 0 && !s.isNew(chosen[0]) {
		chosen = slices.DeleteFunc(chosen, s.isNew) // which have nothing to save
	}
	return chosen[:min(len(chosen), s.job.Limit(s.plan))]
}

// ringWouldChange reports whether a ring that is formed now has other members than the present.
func (s State) ringWouldChange() bool {
	chosen := s.choose(s.job.MinWorkers)
	return len(chosen) != len(s.plan.Members) || slices.ContainsFunc(chosen, func(m Member) bool {
		return find(s.plan.Members, m.ID) < 0
	})
}

// regroup plans a ring of whoever can be in it, or pauses the job if those are too few. why is
// what has happened; what follows from it is added.
func regroup(s State, why string, now time.Time) (State, []Action) {
	least := s.job.MinWorkers
	if s.plan.Phase == Stopping {
		why, least = clip(s.plan.Reason)+"; "+why, 1
	}
	chosen := s.choose(least)
	lost := s.plan.Phase == Running && s.allNew(chosen) // with the ring went the job's state
	switch {
	case len(chosen) < least && s.plan.Phase == Stopping:
		s.plan.Evicted = nil // its members stay those of the last ring
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
	return s.with(chosen, why)
}

// pause dissolves the ring. Those who are there go on without others when the time has settled.
func pause(s State, reason string, settled, now time.Time) (State, []Action) {
	s.plan.Generation++
	s.plan.Last = s.trusted()
	s.plan.Phase, s.plan.Members, s.plan.LaneEnds = Paused, nil, nil
	s.done, s.asked, s.giveUp = nil, nil, now.Add(s.job.PauseTimeout)
	s.settled, s.anew = settled, !settled.IsZero()
	s.plan.Reason = reason
	s, actions := s.write()
	return s, append(actions, Notify{Text: reason})
}

// trusted returns the veterans, but for those whose state is known to be wrong.
func (s State) trusted() []Member {
	return slices.DeleteFunc(slices.Clone(s.plan.veterans()), func(m Member) bool {
		e, _ := s.plan.Eviction(m.ID)
		return e.Remedy == Resync || s.distrusted(m)
	})
}

// seated notes that the present ring has begun: all of it have the job's state.
func seated(s State, e Seated) (State, []Action) {
	if e.Generation != s.plan.Generation || len(s.plan.Members) == 0 || len(s.plan.Last) == 0 {
		return s, nil
	}
	s.plan.Last = nil
	return s.write()
}

const resumeHint = "; --resume auto goes on from the newest checkpoint, if one was kept"

// with plans a ring of the chosen, in the phase of the plan. A worker that waited, and is needed
// now, is evicted no more.
func (s State) with(chosen []Member, why string) (State, []Action) {
	var newcomers []string
	for _, m := range chosen {
		if s.plan.Rings > 0 && find(s.plan.veterans(), m.ID) < 0 {
			newcomers = append(newcomers, m.ID)
		}
	}
	reason := fmt.Sprintf("%s; %s", why, count(len(chosen), "worker goes on", "workers go on"))
	if len(newcomers) > 0 {
		reason += ", with " + s.describe(newcomers...)
	}
	if s.plan.Rings == 0 {
		reason, s.plan.Identity = why, chosen[0].Identity
	}
	if s.plan.Phase != Stopping {
		s.plan.Phase = Running
	}
	s.before = s.plan.veterans()
	last := s.trusted()
	if !slices.ContainsFunc(chosen, s.isNew) || s.allNew(chosen) {
		last = nil // all have the state, or it is given up
	}
	s.plan.Generation++
	s.plan.Rings++
	s.plan.Members, s.plan.LaneEnds = s.order(chosen), s.job.deal(len(chosen))
	s.plan.Last = last
	s.plan.Reason = reason
	s.plan.Evicted = slices.DeleteFunc(slices.Clone(s.plan.Evicted), func(e Eviction) bool {
		return find(chosen, e.ID) >= 0
	})
	s.done, s.asked, s.settled = nil, nil, time.Time{}
	s, actions := s.write()
	return s, append(actions, s.spares()...)
}

// order returns the ring of the chosen: ring order, turned so that the most senior leads. Rank 0 is
// thus never a newcomer while somebody of the last ring is there.
func (s State) order(chosen []Member) []Member {
	ring, first := RingOrder(chosen), 0
	if s.job.Spread {
		ring = SpreadOrder(chosen)
	}
	for i, m := range ring {
		if s.seniority(m) < s.seniority(ring[first]) {
			first = i
		}
	}
	return slices.Concat(ring[first:], ring[:first])
}

// describe names workers for people.
func (s State) describe(ids ...string) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = "worker " + id
		if r, ok := s.plan.Rank(id); ok {
			names[i] += fmt.Sprintf(" (rank %d, %s)", r, s.plan.Members[r].Place())
		} else if at := find(s.members, id); at >= 0 {
			names[i] += " (" + s.members[at].Place() + ")"
		}
	}
	return strings.Join(names, ", ")
}

// counted says how many of those that a start waits for are there.
func (s State) counted() string {
	return fmt.Sprintf("%d of %d workers", min(len(s.choose(1)), s.wanted()), s.wanted())
}

// spares tells each registered worker that has no rank.
func (s State) spares() []Action {
	var actions []Action
	for _, m := range s.members {
		_, inRing := s.plan.Rank(m.ID)
		_, evicted := s.plan.Eviction(m.ID)
		if !inRing && !evicted && !slices.Contains(s.leaving, m.ID) && !s.distrusted(m) {
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

// find returns where a member is; negative: nowhere.
func find(members []Member, id string) int {
	return slices.IndexFunc(members, func(m Member) bool { return m.ID == id })
}

// without returns a copy of members that lacks ids.
func without(members []Member, ids ...string) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool {
		return slices.Contains(ids, m.ID)
	})
}

// textLimit bounds what others say of a plan, in bytes: it is stored with it.
const textLimit = 1000

// clip cuts a text that is too long.
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
