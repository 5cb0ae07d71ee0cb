package cluster

import (
	"fmt"
	"slices"
	"time"
)

const (
	// A process whose state was not to be trusted so often stays out: its memory or its device is
	// likelier to be at fault than chance.
	corruptLimit = 3
	// What a process did is forgotten when it has been gone for so long. Coming back takes a worker
	// half a minute at most.
	forgetTime = 2 * time.Minute
)

// repeats is how often one process was put out of a ring, as far as this leader knows.
type repeats struct {
	host    string
	pid     int
	out     int       // times evicted to come back
	corrupt int       // members of this process whose state was not to be trusted
	last    string    // the id of the last one of these
	seen    time.Time // when it was last registered
}

func (r repeats) of(m Member) bool { return r.host == m.Host && r.pid == m.PID }

func (s State) repeats(m Member) repeats {
	if i := slices.IndexFunc(s.evictions, func(r repeats) bool { return r.of(m) }); i >= 0 {
		return s.evictions[i]
	}
	return repeats{host: m.Host, pid: m.PID}
}

// forget drops what was counted of processes that have been gone for long.
func (s State) forget(now time.Time) State {
	var kept []repeats
	for _, r := range s.evictions {
		if slices.ContainsFunc(s.members, r.of) {
			r.seen = now
		}
		if now.Sub(r.seen) < forgetTime {
			kept = append(kept, r)
		}
	}
	s.evictions = kept
	return s
}

// count notes that a member is put out, or, with corrupt, that its state is not to be trusted,
// which it may say when it is out already.
func (s State) count(id string, out, corrupt bool, now time.Time) State {
	known := slices.Concat(s.members, s.plan.veterans(), s.before)
	at := find(known, id)
	if at < 0 {
		return s
	}
	r := s.repeats(known[at])
	if out {
		r.out++
	}
	if corrupt && r.last != id {
		r.corrupt, r.last = r.corrupt+1, id
	}
	r.seen = now
	others := slices.DeleteFunc(slices.Clone(s.evictions), func(o repeats) bool {
		return o.of(known[at])
	})
	s.evictions = slices.Concat(others, []repeats{r})
	return s
}

// distrusted reports whether a member's process stays out of every ring.
func (s State) distrusted(m Member) bool { return s.repeats(m).corrupt >= corruptLimit }

// history says of a member that is put out how often its process was, if that is worth a word.
func (s State) history(m Member) string {
	r := s.repeats(m)
	switch {
	case r.corrupt >= corruptLimit:
		return fmt.Sprintf("; its state was wrong %d times: it stays out; restart it, or look at "+
			"its machine", r.corrupt)
	case r.out > 1:
		return fmt.Sprintf("; it was put out %d times by now", r.out)
	}
	return ""
}
