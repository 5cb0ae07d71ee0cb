package cluster

import (
	"fmt"
	"slices"
	"time"
)

const (
	// suspectTime is how long an accusation counts against both sides. A process without a new one
	// for this long starts again with no evictions.
	suspectTime = 30 * time.Minute
	// leastTroubles: an accuser that has had trouble with this many other workers is evicted in the
	// place of the accused.
	leastTroubles = 2
	// firstAway is how long a process stays out of the ring after its second eviction for trouble.
	// It doubles with each further one, up to mostAway.
	firstAway = 15 * time.Second
	mostAway  = 10 * time.Minute
	// answerTime is how long a living worker takes at most to leave after it was put out. A lost
	// worker leaves only when its lease ends.
	answerTime = time.Second
	// mostSuspicions is how many links are under suspicion at most. The oldest are dropped.
	mostSuspicions = 256
)

// suspicion is an accusation over a link of the ring. Either end may be at fault, or what lies
// between them.
type suspicion struct {
	from, to string // processes; the link goes from the first to the second
	at       time.Time
	out      Member // accused or accuser, whichever was put out
	answered bool   // it left within answerTime, so it lives
}

// suspicions are the links that were in an accusation, the newest last. It is a value, as State is.
type suspicions []suspicion

// add returns the suspicions with an accusation in a ring.
func (c suspicions) add(ring []Member, by, accused Rank, now time.Time) suspicions {
	next := suspicion{from: ring[accused].process(), to: ring[by].process(), at: now}
	if int(by+1)%len(ring) == int(accused) && len(ring) > 2 { // the accuser sends to the accused
		next.from, next.to = next.to, next.from
	}
	kept := slices.DeleteFunc(slices.Clone(c), func(o suspicion) bool {
		return now.Sub(o.at) > suspectTime || o.from == next.from && o.to == next.to
	})
	return append(kept[max(0, len(kept)+1-mostSuspicions):], next)
}

// left returns the suspicions after members have left.
func (c suspicions) left(ids []string, now time.Time) suspicions {
	c = slices.Clone(c)
	for i, x := range c {
		c[i].answered = x.answered ||
			slices.Contains(ids, x.out.ID) && now.Sub(x.at) <= answerTime
	}
	return c
}

// troubles counts the living processes, except besides, that share an accusation with a member. A
// process that was put out counts if it answered and has registered again. If it was lost, the
// accusation was right.
func (c suspicions) troubles(m, besides Member, registered []Member) int {
	living := map[string]bool{}
	for _, x := range c {
		other := x.to
		switch m.process() {
		case x.from:
		case x.to:
			other = x.from
		default:
			continue
		}
		lost := x.out.process() == other && !x.answered
		if !lost && slices.ContainsFunc(registered, func(o Member) bool {
			return o.process() == other && o.ID != x.out.ID
		}) {
			living[other] = true
		}
	}
	delete(living, besides.process())
	return len(living)
}

// has reports whether the link from one member to the next is under suspicion.
func (c suspicions) has(from, to Member) bool {
	return slices.ContainsFunc(c, func(x suspicion) bool {
		return x.from == from.process() && x.to == to.process()
	})
}

// in counts the links of a ring that are under suspicion.
func (c suspicions) in(ring []Member) (n int) {
	for i, m := range ring {
		if len(ring) > 1 && c.has(m, ring[(i+1)%len(ring)]) {
			n++
		}
	}
	return n
}

// mostReordered is the largest ring that is reordered around links under suspicion. In a larger one
// the search would keep the leader from its work; there the waits of sendAway must do.
const mostReordered = 64

// around returns the ring with fewer links under suspicion, if exchanges of a member at their ends
// with another avoid some. Rank 0 stays where it is.
func (c suspicions) around(ring []Member) []Member {
	bad := c.in(ring)
	for i := 0; bad > 0 && i < len(ring) && len(ring) <= mostReordered; i++ {
		behind := (i + 1) % len(ring)
		if !c.has(ring[i], ring[behind]) {
			continue
		}
		moved := behind
		if behind == 0 {
			moved = i
		}
		for j := 1; j < len(ring); j++ {
			other := slices.Clone(ring)
			other[moved], other[j] = other[j], other[moved]
			if n := c.in(other); n < bad {
				ring, bad = other, n
			}
		}
	}
	return ring
}

// isAway reports whether a member's process has to stay out for a while.
func (c evictionCounts) isAway(m Member, now time.Time) bool { return now.Before(c.of(m).until) }

// returns is when the next of the members may come back; the zero time: none is away.
func (c evictionCounts) returns(members []Member, now time.Time) (at time.Time) {
	for _, m := range members {
		until := c.of(m).until
		if now.Before(until) && (at.IsZero() || until.Before(at)) {
			at = until
		}
	}
	return at
}

// sendAway has the process of a member that was just counted as evicted wait longer each time.
func (c evictionCounts) sendAway(m Member, now time.Time) evictionCounts {
	c = slices.Clone(c)
	r := &c[slices.IndexFunc(c, func(r evictionCount) bool { return r.of(m) })]
	if now.Sub(r.trouble) > suspectTime {
		r.troubles = 0
	}
	r.troubles, r.trouble = r.troubles+1, now
	if r.troubles > 1 {
		shift := min(r.troubles-2, 16)
		r.until = now.Add(min(firstAway<<shift, mostAway))
	}
	return c
}

// putOut evicts the accused, or the accuser if that has had trouble with more of the processes that
// live: it may hear nobody.
func putOut(s State, by, accused Rank, text string, now time.Time) (State, []Action) {
	s.suspicions = s.suspicions.add(s.plan.Members, by, accused, now)
	out, accuser := s.plan.Members[accused], s.plan.Members[by]
	n := s.suspicions.troubles(accuser, out, s.members)
	if n >= leastTroubles && n > s.suspicions.troubles(out, accuser, s.members) {
		text = fmt.Sprintf("%s; but it has had trouble with %d other workers that live", text, n)
		out = accuser
	}
	s.suspicions[len(s.suspicions)-1].out = out
	s = s.count(out.ID, true, false, now)
	s.evictions = s.evictions.sendAway(out, now)
	text += s.evictions.history(out)
	if until := s.evictions.of(out).until; until.After(now) {
		text += fmt.Sprintf(", and is taken back after %v", until.Sub(now))
	}
	s = s.evict(Eviction{ID: out.ID, Reason: text, Remedy: Rejoin})
	return regroup(s, s.describe(out.ID)+": "+text, now)
}

// earlier returns the earlier of two times; the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
