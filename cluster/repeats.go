package cluster

import (
	"fmt"
	"slices"
	"time"
)

const (
	// corruptLimit is the number of wrong states after which a process stays out. Its memory or
	// device is then more likely at fault than chance.
	corruptLimit = 3
	// forgetTime is how long a process must be gone until its evictions are forgotten. A worker
	// returns within half a minute.
	forgetTime = 2 * time.Minute
)

// evictionCount counts the evictions of one process, as far as this leader knows.
type evictionCount struct {
	process string
	out     int       // evictions that allow a return
	corrupt int       // members of this process whose state was wrong
	last    string    // id of the last such member
	seen    time.Time // when the process was last registered
	// troubles counts the evictions because of accusations. trouble is when the last one was. The
	// process is not taken into a ring before until.
	troubles       int
	trouble, until time.Time
}

func (r evictionCount) of(m Member) bool { return r.process == m.process() }

// evictionCounts holds a count for each process that was evicted. It is a value, as State is.
type evictionCounts []evictionCount

func (c evictionCounts) of(m Member) evictionCount {
	if i := slices.IndexFunc(c, func(r evictionCount) bool { return r.of(m) }); i >= 0 {
		return c[i]
	}
	return evictionCount{process: m.process()}
}

// forget drops the counts of processes that have been gone for forgetTime.
func (c evictionCounts) forget(registered []Member, now time.Time) (kept evictionCounts) {
	for _, r := range c {
		if slices.ContainsFunc(registered, r.of) {
			r.seen = now
		}
		if now.Sub(r.seen) < forgetTime {
			kept = append(kept, r)
		}
	}
	return kept
}

// count records an eviction (out), or a wrong state (corrupt), which may be reported after the
// eviction.
func (s State) count(id string, out, corrupt bool, now time.Time) State {
	known := slices.Concat(s.members, s.plan.veterans(), s.lastMembers)
	at := find(known, id)
	if at < 0 {
		return s
	}
	r := s.evictions.of(known[at])
	if out {
		r.out++
	}
	if corrupt && r.last != id {
		r.corrupt, r.last = r.corrupt+1, id
	}
	r.seen = now
	others := slices.DeleteFunc(slices.Clone(s.evictions), func(o evictionCount) bool {
		return o.of(known[at])
	})
	s.evictions = slices.Concat(others, evictionCounts{r})
	return s
}

// distrusts reports whether a member's process must stay out of every ring.
func (c evictionCounts) distrusts(m Member) bool { return c.of(m).corrupt >= corruptLimit }

// history returns a note on a process's earlier evictions; empty if there is nothing to note.
func (c evictionCounts) history(m Member) string {
	r := c.of(m)
	switch {
	case r.corrupt >= corruptLimit:
		return fmt.Sprintf("; its state or its gradients were wrong %d times: it stays out; "+
			"restart it, or look at its machine", r.corrupt)
	case r.out > 1:
		return fmt.Sprintf("; it was put out %d times by now", r.out)
	}
	return ""
}
