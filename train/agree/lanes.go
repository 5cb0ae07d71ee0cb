package agree

import (
	"math"
	"slices"
)

// LaneStates holds the lanes' states that this rank knows, after each of the last two committed
// steps. While a rank computes a step or a round, the states before it stay, so that another ring
// can go on from them. A rank knows the states of its own lanes and of its predecessor's, which
// arrive ahead of each gradient.
type LaneStates struct{ entries [2]Entry }

// Entry is the lanes' states after a step. Its ring is the one that the step was computed in. No
// rank completes the step before all ranks hold their predecessor's states, so the entry counts if
// some rank completed the step in that ring.
type Entry struct {
	Version
	Known  []bool    // [G]
	States []float32 // [G, size], host memory
	size   int       // floats that a lane carries
	zeroed bool      // by Zero, which every rank has called
}

// NewLaneStates allocates the states of all lanes, each of size floats.
func NewLaneStates(lanes, size int) LaneStates {
	var s LaneStates
	for i := range s.entries {
		s.entries[i] = Entry{Version: Version{Step: -1}, Known: make([]bool, lanes),
			States: make([]float32, lanes*size), size: size}
	}
	return s
}

// Open returns the entry of a step that is to be computed, or of a round's last step, with no lane
// known. The entry of step from, which it is computed from, stays.
func (s *LaneStates) Open(v Version, from int64) *Entry {
	e := s.find(v.Step)
	if e == nil {
		if e = &s.entries[0]; e.Step == from {
			e = &s.entries[1]
		}
	}
	e.Version, e.zeroed = v, false
	clear(e.Known)
	return e
}

// At returns the entry of a completed step. If there is none, it opens one with no lane known.
func (s *LaneStates) At(v Version) *Entry {
	if e := s.find(v.Step); e != nil && e.Ring == v.Ring {
		return e
	}
	return s.Open(v, v.Step)
}

// find returns a step's entry of any ring; nil: there is none.
func (s *LaneStates) find(step int64) *Entry {
	for i := range s.entries {
		if s.entries[i].Step == step {
			return &s.entries[i]
		}
	}
	return nil
}

// Forget drops both entries.
func (s *LaneStates) Forget() {
	for i := range s.entries {
		s.entries[i].Step = -1
	}
}

// Lanes returns the states of some lanes, to be read or written.
func (e *Entry) Lanes(l Lanes) []float32 { return e.States[l.First*e.size : l.End()*e.size] }

// Know notes that the states of some lanes were written.
func (e *Entry) Know(l Lanes) {
	for lane := l.First; lane < l.End(); lane++ {
		e.Known[lane] = true
	}
}

// Zero sets all states to zero. The ranks call it together, so that none needs another's states.
func (e *Entry) Zero() {
	clear(e.States)
	e.Know(Lanes{0, len(e.Known)})
	e.zeroed = true
}

// Lost returns the lanes whose states are not known.
func (e *Entry) Lost() []int {
	var lost []int
	for lane, known := range e.Known {
		if !known {
			lost = append(lost, lane)
		}
	}
	return lost
}

// Heal zeroes the state of every known lane that is not finite, and reports whether one of own was
// not. It judges each lane by itself, so all ranks that know a lane heal it in the same way.
func (e *Entry) Heal(own Lanes) (healed bool) {
	for lane, known := range e.Known {
		if state := e.Lanes(Lanes{lane, 1}); known && slices.ContainsFunc(state, infinite) {
			clear(state)
			healed = healed || own.First <= lane && lane < own.End()
		}
	}
	return healed
}

// infinite reports whether v is infinite or NaN: all bits of its exponent are set.
func infinite(v float32) bool { return math.Float32bits(v)&0x7f800000 == 0x7f800000 }
