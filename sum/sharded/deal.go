package sharded

import (
	"context"
	"fmt"

	"rondo/compute"
	"rondo/train/agree"
)

// DifferError is what all ranks end with when two keep the same slots with other values. Each rank
// keeps what it has. At the next join neither of the two counts.
type DifferError struct{ Step int64 }

func (e *DifferError) Error() string {
	return fmt.Sprintf("after step %d two ranks have other values of what the optimizer keeps of "+
		"the same parameters (--shard-copies 2), and nothing says whose memory is to be trusted",
		e.Step)
}

// offer returns what this rank has.
func (s *Slots) offer() (o offer) {
	compare := s.copies > 1 && s.Compare
	switch now := s.Version(); {
	case s.whole != nil && s.wholeAt == now:
		o.Ranges[0] = [2]int64{0, int64(len(s.Params))}
		if compare {
			o.Digests[0] = agree.Memory{}.Digest(s.whole)
		}
	case s.at == now:
		for i, h := range s.held {
			o.Ranges[i] = [2]int64{int64(h.first), int64(h.end)}
			if compare {
				o.Digests[i] = s.memory.Digest(h.slots)
			}
		}
	}
	return o
}

// Alike has the ranks compare the slots that two of them keep.
func (s *Slots) Alike(ctx context.Context) error {
	if !s.logs() || !s.Compare || len(s.ends) == 1 {
		return nil
	}
	all, err := agree.Gather(ctx, s.ranks, s.offer())
	if err != nil {
		return fmt.Errorf("comparing what the optimizer keeps: %w", err)
	}
	if len(differing(all)) > 0 {
		return &DifferError{Step: s.Version().Step}
	}
	return nil
}

// Meet has the ranks tell each other which slots they have, and plans how these get to the ranks
// that are to keep them. It returns of how many parameters no rank has slots to be trusted.
func (s *Slots) Meet(ctx context.Context) (gaps int, err error) {
	s.passages = nil
	if s.Slots == 0 || s.Updates() == 0 { // before the first update slots are zeros
		return 0, nil
	}
	all, err := agree.Gather(ctx, s.ranks, s.offer())
	if err != nil {
		return 0, fmt.Errorf("finding who has what of the optimizer's: %w", err)
	}
	s.passages = s.plan(all)
	for _, p := range s.passages {
		if p.giver < 0 {
			gaps += p.end - p.first
		}
	}
	if gaps > 0 {
		has := "has"
		if len(differing(all)) > 0 {
			has = "has, or two have differently,"
		}
		s.Notice(fmt.Sprintf("step %d: no worker %s what --optimizer keeps of %d of "+
			"%d parameters (--shard-optimizer, --shard-copies %d)", s.Version().Step, has, gaps,
			len(s.Params), s.copies))
	}
	return gaps, nil
}

// Deal gives this rank what it is to keep in the ring, as Meet has planned. Gaps are zeros.
func (s *Slots) Deal(ctx context.Context) error {
	if s.whole != nil && s.wholeAt == s.Version() { // whole is dealt: make room
		s.free(s.held)
		s.held = nil
	}
	held, err := s.zeros()
	if err != nil {
		return err
	}
	err = s.pass(ctx, s.passages, func(slot, first int, x []float32) {
		for _, h := range held {
			if h.first <= first && first+len(x) <= h.end {
				s.Device.Upload(h.slots[slot][first-h.first:][:len(x)], x)
			}
		}
	})
	if err != nil {
		s.free(held)
		return fmt.Errorf("dealing what the optimizer keeps: %w", err)
	}
	s.hold(held)
	return nil
}

// pass has slots travel in pieces. It calls write with each piece that this rank has or is given.
// All ranks take part.
func (s *Slots) pass(
	ctx context.Context, passages []passage, write func(slot, first int, x []float32),
) (err error) {
	defer compute.Catch(&err)
	ends := make([]int, len(s.ends)) // of a gathering to which the giver alone gives
	for _, p := range passages {
		if p.giver < 0 { // a rank may have slots that are not to be trusted
			continue
		}
		for slot := range s.Slots {
			for at := p.first; at < p.end; at += len(s.piece) {
				x := s.piece[:min(p.end-at, len(s.piece))]
				has := s.read(slot, at, x)
				if p.travels {
					for rank := p.giver; rank < len(ends); rank++ {
						ends[rank] = len(x)
					}
					clear(ends[:p.giver])
					if err := s.ranks.AllGather(ctx, x, ends); err != nil {
						return err
					}
				}
				if has || p.travels {
					write(slot, at, x)
				}
			}
		}
	}
	return nil
}

// read copies [first, first+len(x)) of a slot to x, if this rank has it.
func (s *Slots) read(slot, first int, x []float32) bool {
	now := s.Version()
	if s.whole != nil && s.wholeAt == now {
		copy(x, s.whole[slot][first:])
		return true
	}
	for _, h := range s.held {
		if s.at == now && h.first <= first && first+len(x) <= h.end {
			s.Device.Download(x, h.slots[slot][first-h.first:][:len(x)])
			return true
		}
	}
	return false
}

// Gather gives all slots to rank 0, or to all ranks.
func (s *Slots) Gather(ctx context.Context, all bool) error {
	if s.Slots == 0 || len(s.ends) == 1 {
		return nil
	}
	if err := s.Alike(ctx); err != nil { // before one copy replaces the other
		return err
	}
	var passages []passage
	for rank := range s.ends {
		first, end := s.span(rank)
		passages = append(passages, passage{first, end, rank, true})
	}
	keeps := all || s.ranks.Rank == 0
	var whole [][]float32
	for range s.Slots {
		if keeps {
			whole = append(whole, make([]float32, len(s.Params)))
		}
	}
	err := s.pass(ctx, passages, func(slot, first int, x []float32) {
		if keeps {
			copy(whole[slot][first:], x)
		}
	})
	if err != nil {
		return fmt.Errorf("gathering what the optimizer keeps: %w", err)
	}
	if keeps {
		s.whole, s.wholeAt = whole, s.Version()
	}
	return nil
}
