package sharded

import (
	"errors"
	"fmt"

	"rondo/compute"
	"rondo/train/agree"
)

// MaxCopies is the largest number of ranks that keep the slots of a range.
const MaxCopies = 2

const (
	// unit is the alignment of ranges: 64 bytes, as devices align.
	unit = 16
	// cached is how many floats are updated at once in host memory, so that they stay in a core's
	// cache.
	cached = 1 << 16
	// pieceFloats is how many floats are updated at once in device memory, and travel at once.
	pieceFloats = 1 << 20
)

// holding holds the slots of the parameters [first, end).
type holding struct {
	first, end int
	slots      [][]float32 // each [end-first], device memory
	// log is the clipped gradient of the step from Slots.at to Slots.next, device memory. It is nil
	// if steps are not logged.
	log []float32
}

// Slots are a rank's part of the slots of all parameters.
type Slots struct {
	agree.SlotsConfig
	memory agree.Memory

	// The ring.
	ranks agree.Ranks
	ranges
	transfers []transfer // planned transfers of slots

	held []holding     // of this rank's range; with two copies also of its predecessor's
	at   agree.Version // version of held

	// The summed step that is not yet committed. next is zero if there is none.
	next    agree.Version
	skipped bool           // the step changes nothing
	rule    compute.Update // of the log

	// whole has all slots, [Slots][n] in host memory: those of a checkpoint that is written or
	// read, or those gathered at a planned end of a ring, for the next one.
	whole   [][]float32
	wholeAt agree.Version

	scratch  [][]float32 // blocks of parameters and slots under update, device memory
	incoming []float32   // gradient of the predecessor's range, if device memory is not host memory
	piece    []float32   // slots that travel, host memory
}

// New makes a rank's part. copies ranks keep each range. It is empty until Fresh or Deal.
func New(copies int, c agree.SlotsConfig) (s *Slots, err error) {
	if copies < 1 || copies > MaxCopies {
		return nil, fmt.Errorf("--shard-copies %d: must be 1 to %d", copies, MaxCopies)
	}
	s = &Slots{SlotsConfig: c, ranges: ranges{copies: copies}}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	defer compute.Catch(&err)
	block := min(pieceFloats, len(s.Params))
	s.piece = make([]float32, block)
	if c.Gradient.InPlace {
		block = min(block, cached)
	} else {
		s.memory = agree.Memory{Device: c.Device, Piece: s.piece}
	}
	for range 1 + c.Slots {
		s.scratch = append(s.scratch, c.Device.Alloc(block))
	}
	return s, nil
}

// logs reports whether steps are logged.
func (s *Slots) logs() bool { return s.copies > 1 && s.Slots > 0 }

// Enter cuts the parameters into ranges for a ring. Fresh or Deal follows.
func (s *Slots) Enter(r agree.Ranks) {
	s.ranks, s.ends, s.transfers = r, endsOf(len(s.Params), len(r.LaneEnds)), nil
}

// Fresh sets the slots of a new job: zeros.
func (s *Slots) Fresh() error {
	s.Forget()
	held, err := s.zeros()
	if err == nil {
		s.hold(held)
	}
	return err
}

// zeros allocates the slots that this rank keeps in the ring.
func (s *Slots) zeros() (held []holding, err error) {
	defer func() {
		if err != nil {
			s.free(held)
			held = nil
			err = fmt.Errorf("this worker's part of what --optimizer keeps: %w", err)
		}
	}()
	defer compute.Catch(&err)
	for _, span := range s.spans(s.ranks.Rank) {
		held = append(held, holding{first: span[0], end: span[1]})
		h := &held[len(held)-1]
		if h.first == h.end {
			continue
		}
		for range s.Slots {
			h.slots = append(h.slots, s.Device.Alloc(h.end-h.first))
		}
		if s.logs() && s.ranks.AllGather != nil {
			h.log = s.Device.Alloc(h.end - h.first)
		}
	}
	return held, nil
}

func (s *Slots) free(held []holding) {
	for _, h := range held {
		for _, x := range h.slots {
			s.Device.Free(x)
		}
		if h.log != nil {
			s.Device.Free(h.log)
		}
	}
}

// hold replaces the slots that this rank keeps.
func (s *Slots) hold(held []holding) {
	s.Replace()
	s.free(s.held)
	s.Forget()
	s.held, s.at = held, s.Version()
	if !s.Gradient.InPlace && len(held) > 1 && s.logs() {
		s.incoming = make([]float32, held[1].end-held[1].first)
	}
}

// Forget drops the slots: this rank reports that it has none.
func (s *Slots) Forget() {
	s.at, s.next, s.whole = agree.Version{}, agree.Version{}, nil
}

// Close frees the memory.
func (s *Slots) Close() {
	s.free(s.held)
	for _, x := range s.scratch {
		s.Device.Free(x)
	}
	s.held, s.scratch = nil, nil
}

// Same returns the slots that all ranks keep alike: none.
func (s *Slots) Same() [][]float32 { return nil }

// Own returns the slots of all parameters, for the updates of a single rank.
func (s *Slots) Own() [][]float32 {
	if len(s.ends) > 1 {
		panic(fmt.Sprintf("sharded: rank %d of %d updates alone", s.ranks.Rank, len(s.ends)))
	}
	return s.held[0].slots
}

// Load takes the slots of a snapshot, for Deal. It keeps their memory.
func (s *Slots) Load(slots [][]float32) {
	s.next, s.whole, s.wholeAt = agree.Version{}, slots, s.Version()
}

// CatchUp prepares for parameters of version to. If this rank has logged the step to that version,
// the step is committed and CatchUp applies the log. It needs the old parameters for that.
func (s *Slots) CatchUp(to agree.Version) {
	none := agree.Version{}
	if s.next == to && to != none {
		s.at = none // while some of the slots have changed
		if !s.skipped {
			s.apply()
		}
		s.at = to
	}
	s.next = none
}

// Commit records that the step is committed: the slots are now of the parameters' version.
func (s *Slots) Commit() { s.at, s.next = s.Version(), agree.Version{} }

// apply applies the log to the slots.
func (s *Slots) apply() {
	for _, h := range s.held {
		s.update(h, h.log, true, false)
	}
}

// update updates a range by its gradient. It works on copies of the parameters. If wanted, these
// replace the gradient. The slots themselves change only if inPlace; otherwise copies change.
func (s *Slots) update(h holding, gradient []float32, inPlace, wanted bool) {
	block := len(s.scratch[0])
	for at := 0; at < len(gradient); at += block {
		end := min(len(gradient), at+block)
		params := s.scratch[0][:end-at]
		s.Copy(params, s.Params[h.first+at:h.first+end])
		var slots [2][]float32
		for i, x := range h.slots {
			if slots[i] = x[at:end]; !inPlace {
				slots[i] = s.scratch[1+i][:end-at]
				s.Copy(slots[i], x[at:end])
			}
		}
		s.Device.Update(s.rule, params, gradient[at:end], slots[0], slots[1])
		if wanted {
			s.Copy(gradient[at:end], params)
		}
	}
}

// Host returns all slots in host memory, for a snapshot. It fails if this rank lacks some.
func (s *Slots) Host() ([][]float32, error) {
	kept := 0
	for _, h := range s.held {
		kept += h.end - h.first
	}
	switch now := s.Version(); {
	case s.Slots == 0:
		return nil, nil
	case s.whole != nil && s.wholeAt == now:
		return s.whole, nil
	case s.at != now || kept != len(s.Params):
		return nil, errors.New("this worker has only its own part of what --optimizer keeps " +
			"(--shard-optimizer); the steps since the newest checkpoint are lost unless others " +
			"have the rest")
	case len(s.held) == 1 && s.Gradient.InPlace:
		return s.held[0].slots, nil
	}
	var whole [][]float32
	for slot := range s.Slots {
		x := make([]float32, len(s.Params))
		for _, h := range s.held {
			if h.first < h.end {
				s.Device.Download(x[h.first:h.end], h.slots[slot])
			}
		}
		whole = append(whole, x)
	}
	return whole, nil
}
