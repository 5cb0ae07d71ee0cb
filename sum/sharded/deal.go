package sharded

import (
	"context"
	"fmt"

	"rondo/compute"
	"rondo/train/agree"
)

// DifferError is returned on all ranks if two of them have different slots for the same range. Each
// rank keeps what it has. At the next join neither of the two is trusted.
type DifferError struct{ Step int64 }

func (e *DifferError) Error() string {
	return fmt.Sprintf("after step %d two ranks have different optimizer slots for the same "+
		"parameters (--shard-copies 2), and it is unknown which of the two are right",
		e.Step)
}

// offer returns the ranges that this rank has, with their digests.
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

// gather returns the offers of all ranks.
func (s *Slots) gather(ctx context.Context) ([]offer, error) {
	all, err := agree.Gather(ctx, s.ranks, s.offer())
	if err != nil {
		return nil, err
	}
	for rank, o := range all {
		for _, r := range o.Ranges {
			if r[0] < 0 || r[1] < r[0] || r[1] > int64(len(s.Params)) {
				return nil, s.ranks.Distrust(rank, "that it has the slots of parameters %d to %d, "+
					"of %d", r[0], r[1], len(s.Params))
			}
		}
	}
	return all, nil
}

// Alike compares slots that two ranks keep.
func (s *Slots) Alike(ctx context.Context) error {
	if !s.logs() || !s.Compare || len(s.ends) == 1 {
		return nil
	}
	all, err := s.gather(ctx)
	if err != nil {
		return fmt.Errorf("comparing the optimizer's slots: %w", err)
	}
	if len(differing(all)) > 0 {
		return &DifferError{Step: s.Version().Step}
	}
	return nil
}

// Meet exchanges which slots each rank has, and plans their transfers to the ranks that need them.
// gaps is the number of parameters whose slots no rank has, or two ranks have differently.
func (s *Slots) Meet(ctx context.Context) (gaps int, err error) {
	s.transfers = nil
	if s.Slots == 0 || s.Updates() == 0 { // before the first update slots are zeros
		return 0, nil
	}
	all, err := s.gather(ctx)
	if err != nil {
		return 0, fmt.Errorf("finding which rank has which optimizer slots: %w", err)
	}
	s.transfers = s.plan(all)
	for _, p := range s.transfers {
		if p.giver < 0 {
			gaps += p.end - p.first
		}
	}
	if gaps > 0 {
		why := "lost"
		if len(differing(all)) > 0 {
			why = "lost, or differ between two workers"
		}
		s.Notice(fmt.Sprintf("step %d: the optimizer's slots of %d of %d parameters are %s "+
			"(--shard-optimizer, --shard-copies %d)", s.Version().Step, gaps, len(s.Params), why,
			s.copies))
	}
	return gaps, nil
}

// Deal gives this rank the slots that it keeps in this ring, as Meet has planned. Gaps become
// zeros.
func (s *Slots) Deal(ctx context.Context) error {
	if s.whole != nil && s.wholeAt == s.Version() { // whole is dealt, so make room
		s.Replace()
		s.free(s.held)
		s.held = nil
	}
	held, err := s.zeros()
	if err != nil {
		return err
	}
	err = s.transfer(ctx, s.transfers, func(slot, first int, x []float32) {
		for _, h := range held {
			if h.first <= first && first+len(x) <= h.end {
				s.Device.Upload(h.slots[slot][first-h.first:][:len(x)], x)
			}
		}
	})
	if err != nil {
		s.free(held)
		return fmt.Errorf("dealing the optimizer's slots: %w", err)
	}
	s.hold(held)
	return nil
}

// transfer sends slots in pieces. It calls write with each piece that this rank has or receives.
// All ranks take part.
func (s *Slots) transfer(
	ctx context.Context, transfers []transfer, write func(slot, first int, x []float32),
) (err error) {
	defer compute.Catch(&err)
	ends := make([]int, len(s.ends)) // of an AllGather in which only the giver contributes
	for _, p := range transfers {
		if p.giver < 0 { // a gap: a rank may have untrusted slots
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

// read copies [first, first+len(x)) of a slot to x, and reports whether this rank has it.
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

// Gather collects all slots on rank 0, or on all ranks.
func (s *Slots) Gather(ctx context.Context, all bool) error {
	if s.Slots == 0 || len(s.ends) == 1 {
		return nil
	}
	if err := s.Alike(ctx); err != nil { // before one copy replaces another
		return err
	}
	var transfers []transfer
	for rank := range s.ends {
		first, end := s.span(rank)
		transfers = append(transfers, transfer{first, end, rank, true})
	}
	keeps := all || s.ranks.Rank == 0
	var whole [][]float32
	for range s.Slots {
		if keeps {
			whole = append(whole, make([]float32, len(s.Params)))
		}
	}
	err := s.transfer(ctx, transfers, func(slot, first int, x []float32) {
		if keeps {
			copy(whole[slot][first:], x)
		}
	})
	if err != nil {
		return fmt.Errorf("gathering the optimizer's slots: %w", err)
	}
	if keeps {
		s.whole, s.wholeAt = whole, s.Version()
	}
	return nil
}
