package cluster

import (
	"fmt"
	"slices"
	"time"
)

func lose(s State, ids []string, text string, now time.Time) (State, []Action) {
	return regroup(s, s.describe(ids...)+": "+text, now)
}

// failed handles a worker's failure. It ends the job if every worker would fail in the same way. A
// worker's report against the input proves it only until the first ring has trained on that input.
// A report about an earlier ring is stale.
func failed(s State, e Failed, now time.Time) (State, []Action) {
	_, evicted := s.plan.Eviction(e.ID) // it fails because it was evicted
	stale := e.Generation != 0 && e.Generation != s.plan.Generation
	if stale || evicted || slices.Contains(s.done, e.ID) {
		return s.count(e.ID, false, e.Resync, now), nil
	}
	rank, inRing := s.plan.Rank(e.ID)
	e.Text = clip(e.Text)
	reason := s.describe(e.ID) + ": " + e.Text
	switch {
	case s.plan.Phase == Forming && !e.Usage && !e.Fatal:
		if s.plan.Reason == reason {
			return s, nil // a repeated report, to a new leader
		}
		s.plan.Reason = reason
		s, actions := s.write()
		return s, append(actions, Notify{ID: e.ID, Text: reason + "; another is waited for"})
	case s.plan.Phase == Forming:
		return fail(s, reason, e.Usage)
	case !inRing:
		return s, []Action{Notify{ID: e.ID, Text: "a worker that is in no ring failed: " + e.Text}}
	case e.Usage && s.plan.Rings <= 1:
		return fail(s, reason, true)
	case e.Fatal:
		return fail(s, reason+resumeHint, false)
	}
	s = s.count(e.ID, true, e.Resync, now)
	m, remedy := s.plan.Members[rank], Rejoin
	switch {
	case s.evictions.distrusts(m):
		remedy = Wait
	case e.Resync:
		remedy = Resync
	}
	s = s.evict(Eviction{ID: e.ID, Reason: e.Text + s.evictions.history(m), Remedy: remedy})
	return regroup(s, reason+s.evictions.history(m), now)
}

// suspected evicts the accused, or its accuser, if the report comes from the present ring. A slow
// worker is evicted only if enough others are there; it waits as a spare.
func suspected(s State, e Suspected, now time.Time) (State, []Action) {
	e = renewed(s, e)
	by, inRing := s.plan.Rank(e.ID)
	if e.Generation != s.plan.Generation || !inRing || e.Rank == by ||
		e.Rank < 0 || int(e.Rank) >= len(s.plan.Members) {
		return s, nil
	}
	if e.Slow && s.plan.Phase == Stopping {
		return s, nil // a new ring would cost more time than it saves
	}
	m := s.plan.Members[e.Rank]
	accused := m.ID
	text := fmt.Sprintf("rank %d (%s) says: %s", by, e.ID, clip(e.Text))
	why := s.describe(accused) + ": " + text
	switch {
	case e.Resync:
		s = s.count(accused, true, true, now)
		s = s.evict(Eviction{ID: accused, Reason: text + s.evictions.history(m), Remedy: Resync})
		return regroup(s, why+s.evictions.history(m), now)
	case !e.Slow:
		return putOut(s, by, e.Rank, text, now)
	}
	without := s.evict(Eviction{ID: accused, Reason: text, Remedy: Wait})
	if len(without.choose(1)) < s.job.MinWorkers {
		return s, []Action{Notify{ID: accused, Text: fmt.Sprintf("%s; it stays, because without "+
			"it fewer than %d workers (--min-workers) are left", why, s.job.MinWorkers)}}
	}
	return regroup(without, why, now)
}

// renewed translates an accusation from the broken ring to the present ring, until the present ring
// has begun. Workers that are lost together are accused at the same moment, each by its neighbours.
// The first accusation leads to a new ring that still contains the others. Accuser and accused must
// both be in the present ring. An unreachable worker counts from a ring that never began, too.
func renewed(s State, e Suspected) Suspected {
	if rank, is := s.plan.Rank(e.Unreachable); is && !s.begun && e.Generation > s.known {
		e.Generation, e.Rank = s.plan.Generation, rank
		return e
	}
	if s.begun || e.Slow || e.Generation != s.broken.Generation ||
		e.Rank < 0 || int(e.Rank) >= len(s.broken.Members) {
		return e
	}
	if rank, is := s.plan.Rank(s.broken.Members[e.Rank].ID); is {
		e.Generation, e.Rank = s.plan.Generation, rank
	}
	return e
}
