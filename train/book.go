package train

// book holds the lanes' states after the last two steps that commit, as far as this rank knows
// them: while it does a step or a round, those before it stay as they are, so that another ring can
// go on from them. A rank knows its own lanes' states and, from the carry, those of its
// predecessor's lanes.
type book struct {
	laneSize int
	entries  [2]entry
}

// entry is the lanes' states after a step. It is of the ring that the step was computed in: it
// counts if some rank completed the step in that ring, which no rank can before all hold their
// predecessor's states.
type entry struct {
	step, ring int64
	known      []bool    // [G]
	states     []float32 // [G, laneSize], host memory
}

func newBook(lanes, laneSize int) book {
	b := book{laneSize: laneSize}
	for i := range b.entries {
		b.entries[i] = entry{step: -1, known: make([]bool, lanes),
			states: make([]float32, lanes*laneSize)}
	}
	return b
}

// open returns the entry of a step that is to be computed, or a round's last one; nothing is known
// of it yet. That of the step from which it is computed stays.
func (b *book) open(step, from, ring int64) *entry {
	e := b.find(step)
	if e == nil {
		if e = &b.entries[0]; e.step == from {
			e = &b.entries[1]
		}
	}
	e.step, e.ring = step, ring
	clear(e.known)
	return e
}

// at returns the entry of a step that was completed in a ring, with nothing known if the book has
// none.
func (b *book) at(step, ring int64) *entry {
	if e := b.find(step); e != nil && e.ring == ring {
		return e
	}
	return b.open(step, step, ring)
}

// find returns a step's entry, of whatever ring; nil: there is none.
func (b *book) find(step int64) *entry {
	for i := range b.entries {
		if b.entries[i].step == step {
			return &b.entries[i]
		}
	}
	return nil
}

// forget forgets everything.
func (b *book) forget() {
	for i := range b.entries {
		b.entries[i].step = -1
	}
}

// lanes returns the states of the lanes [first, end).
func (b *book) lanes(e *entry, first, end int) []float32 {
	return e.states[first*b.laneSize : end*b.laneSize]
}

// know notes that the states of the lanes [first, end) are in e.
func (e *entry) know(first, end int) {
	for lane := first; lane < end; lane++ {
		e.known[lane] = true
	}
}

// zero sets all states to zero.
func (e *entry) zero() {
	clear(e.states)
	e.know(0, len(e.known))
}

// lost returns the lanes whose states are not known.
func (e *entry) lost() []int {
	var lost []int
	for lane, known := range e.known {
		if !known {
			lost = append(lost, lane)
		}
	}
	return lost
}

// heal sets the state of every known lane that is not finite to zero, and says whether there was
// one in [first, end). Each lane is judged by itself, so that who holds it does not matter.
func (b *book) heal(e *entry, first, end int) (healed bool) {
	for lane, known := range e.known {
		if state := b.lanes(e, lane, lane+1); known && !allFinite(state) {
			clear(state)
			healed = healed || first <= lane && lane < end
		}
	}
	return healed
}
