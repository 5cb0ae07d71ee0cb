package cluster

import (
	"cmp"
	"slices"
	"time"
)

const (
	// suspectTime is how long an accusation counts against both sides, and how long a process must
	// be in no trouble until its evictions for trouble are forgotten.
	suspectTime = 30 * time.Minute
	// leastTroubles is with how many workers an accuser must have had trouble before it is put out
	// in the place of the accused. One of them may be at fault.
	leastTroubles = 2
	// firstAway is how long a process stays out of the ring after its second eviction for trouble.
	// It doubles with each further one, up to mostAway.
	firstAway = 15 * time.Second
	mostAway  = 10 * time.Minute
	// mostSuspicions is how many links are under suspicion at most. The oldest are dropped.
	mostSuspicions = 256
)

// suspicion is an accusation over a link of the ring. Either end may be at fault, or the way between
// them.
type suspicion struct {
	from, to string // processes; the link goes from the first to the second
	at       time.Time
}

// suspect records an accusation in the present ring.
func (s State) suspect(by, accused Rank, now time.Time) State {
	of := func(r Rank) string { return s.plan.Members[r].process() }
	next := suspicion{of(accused), of(by), now} // the accused is silent towards its successor
	if int(by+1)%len(s.plan.Members) == int(accused) && len(s.plan.Members) > 2 {
		next.from, next.to = next.to, next.from
	}
	kept := slices.DeleteFunc(slices.Clone(s.suspicions), func(o suspicion) bool {
		return now.Sub(o.at) > suspectTime || o.from == next.from && o.to == next.to
	})
	s.suspicions = append(kept[max(0, len(kept)+1-mostSuspicions):], next)
	return s
}

// troubles returns with how many other registered processes than one a member has been in an
// accusation. A process that has died does not count: the accusation was right.
func (s State) troubles(m, but Member) int {
	others := map[string]bool{}
	for _, x := range s.suspicions {
		switch m.process() {
		case x.from:
			others[x.to] = true
		case x.to:
			others[x.from] = true
		}
	}
	delete(others, but.process()) // it may have died
	n := 0
	for process := range others {
		if slices.ContainsFunc(s.members, func(o Member) bool { return o.process() == process }) {
			n++
		}
	}
	return n
}

// isBad reports whether the link from one member to the next is under suspicion.
func (s State) isBad(from, to Member) bool {
	return slices.ContainsFunc(s.suspicions, func(x suspicion) bool {
		return x.from == from.process() && x.to == to.process()
	})
}

// badLinks counts the links of a ring that are under suspicion.
func (s State) badLinks(ring []Member) (n int) {
	for i, m := range ring {
		if len(ring) > 1 && s.isBad(m, ring[(i+1)%len(ring)]) {
			n++
		}
	}
	return n
}

// mostReordered is the largest ring that is reordered around links under suspicion. In a larger one
// the search would keep the leader from its work; there the waits of sendAway must do.
const mostReordered = 256

// around returns the ring with fewer links under suspicion, if exchanges of a member at their ends
// with another avoid some. Rank 0 stays where it is.
func (s State) around(ring []Member) []Member {
	bad := s.badLinks(ring)
	for i := 0; bad > 0 && i < len(ring) && len(ring) <= mostReordered; i++ {
		behind := (i + 1) % len(ring)
		if !s.isBad(ring[i], ring[behind]) {
			continue
		}
		moved := behind
		if behind == 0 {
			moved = i
		}
		for j := 1; j < len(ring); j++ {
			other := slices.Clone(ring)
			other[moved], other[j] = other[j], other[moved]
			if n := s.badLinks(other); n < bad {
				ring, bad = other, n
			}
		}
	}
	return ring
}

// isAway reports whether a member's process has to stay out for a while.
func (s State) isAway(m Member) bool { return s.now.Before(s.evictions.of(m).until) }

// returns is when the next registered member may come back; the zero time: none is away.
func (s State) returns() (at time.Time) {
	for _, m := range s.members {
		if until := s.evictions.of(m).until; s.now.Before(until) && (at.IsZero() || until.Before(at)) {
			at = until
		}
	}
	return at
}

// sendAway puts the process of a member that has just been counted as evicted under a longer wait
// each time.
func (s State) sendAway(m Member, now time.Time) State {
	s.evictions = slices.Clone(s.evictions)
	i := slices.IndexFunc(s.evictions, func(r evictionCount) bool { return r.of(m) })
	r := &s.evictions[i]
	if now.Sub(r.trouble) > suspectTime {
		r.troubles = 0
	}
	r.troubles, r.trouble = r.troubles+1, now
	if r.troubles > 1 {
		shift := min(r.troubles-2, 16)
		r.until = now.Add(min(firstAway<<shift, mostAway))
	}
	return s
}

// earlier returns the earlier of two times; the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.IsZero() {
		return cmp.Or(a, b)
	}
	if b.Before(a) {
		return b
	}
	return a
}
