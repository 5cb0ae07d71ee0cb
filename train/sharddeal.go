package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"rondo/compute"
	"rondo/train/agree"
)

// What the optimizer keeps moves in pieces from those who have it to those who are to: at a join,
// when a checkpoint is written or read, and when all leave a ring that is sound.

// offer is the ranges whose slots a rank has, of the version that all go on from. Its size is
// fixed.
type offer struct {
	Ranges  [MaxShardCopies][2]int64
	Digests [MaxShardCopies]uint64 // of the slots of each; zeros if nobody compares any
}

// has says whether [first, end) is within one of the ranges.
func (o offer) has(first, end int) bool {
	for _, r := range o.Ranges {
		if int(r[0]) <= first && end <= int(r[1]) {
			return true
		}
	}
	return false
}

// doubtful are the ranges whose slots two ranks have differently: nothing says who is right.
func doubtful(all []offer) (ranges [][2]int64) {
	digests := make(map[[2]int64]uint64)
	for _, o := range all {
		for i, r := range o.Ranges {
			digest, known := digests[r]
			switch {
			case !known:
				digests[r] = o.Digests[i]
			case digest != o.Digests[i]:
				ranges = append(ranges, r)
			}
		}
	}
	return ranges
}

// passage is what is to become of the slots of the parameters [first, end).
type passage struct {
	first, end int
	giver      int  // a rank that has them; -1: nobody
	travels    bool // somebody wants them who has not
}

// offers says what this rank has.
func (t *batch) offers() (o offer) {
	s := t.shards
	compare := s.copies > 1 && t.cfg.CheckEvery > 0
	switch now := t.version(); {
	case s.whole != nil && s.wholeAt == now:
		o.Ranges[0] = [2]int64{0, int64(s.n)}
		if compare {
			o.Digests[0] = agree.Memory{}.Digest(s.whole)
		}
	case s.at == now:
		for i, h := range s.held {
			o.Ranges[i] = [2]int64{int64(h.first), int64(h.end)}
			if compare {
				o.Digests[i] = t.memory.Digest(h.slots)
			}
		}
	}
	return o
}

// ShardsDifferError is what all ranks end with when the two that keep the same slots have other
// values. Each keeps what it has: the next Join takes neither's.
type ShardsDifferError struct{ Step int64 }

func (e *ShardsDifferError) Error() string {
	return fmt.Sprintf("after step %d two ranks have other values of what the optimizer keeps of "+
		"the same parameters (--shard-copies 2), and nothing says whose memory is to be trusted",
		e.Step)
}

// alikeShards has the ranks compare the slots that two of them keep.
func (t *batch) alikeShards(ctx context.Context) error {
	s := t.shards
	if s == nil || !s.logs() || t.cfg.CheckEvery == 0 || len(s.ends) == 1 {
		return nil
	}
	all, err := agree.Gather(ctx, t.ranks, t.offers())
	if err != nil {
		return fmt.Errorf("comparing what the optimizer keeps: %w", err)
	}
	if len(doubtful(all)) > 0 {
		return &ShardsDifferError{Step: t.progress.Step}
	}
	return nil
}

// meetWithShards has the ranks tell each other what they have, and plans how it gets to where the
// ring wants it. It returns of how many parameters nobody has any that is to be trusted.
func (t *batch) meetWithShards(ctx context.Context) (gaps int, err error) {
	s := t.shards
	if s == nil || s.slots == 0 {
		return 0, nil
	}
	if s.passages = nil; t.progress.Updates == 0 { // all slots are zeros
		return 0, nil
	}
	all, err := agree.Gather(ctx, t.ranks, t.offers())
	if err != nil {
		return 0, fmt.Errorf("finding who has what of the optimizer's: %w", err)
	}
	s.passages = s.passagesOf(all)
	for _, p := range s.passages {
		if p.giver < 0 {
			gaps += p.end - p.first
		}
	}
	if gaps > 0 {
		has := "has"
		if len(doubtful(all)) > 0 {
			has = "has, or two have differently,"
		}
		t.cfg.Observer.Notice(fmt.Sprintf("step %d: no worker %s what --optimizer keeps of %d of "+
			"%d parameters (--shard-optimizer, --shard-copies %d)", t.progress.Step, has, gaps,
			s.n, s.copies))
	}
	return gaps, nil
}

// passagesOf cuts all parameters where what a rank has or is to have begins or ends.
func (s *shards) passagesOf(all []offer) (passages []passage) {
	cuts := []int{0, s.n}
	for rank, o := range all {
		for _, r := range o.Ranges {
			cuts = append(cuts, int(r[0]), int(r[1]))
		}
		cuts = append(cuts, s.ends[rank])
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	doubts := doubtful(all)
	for i, end := range cuts[1:] {
		p := passage{first: cuts[i], end: end, giver: -1}
		doubted := slices.ContainsFunc(doubts, func(r [2]int64) bool {
			return int(r[0]) <= p.first && p.end <= int(r[1])
		})
		for rank, o := range all {
			if o.has(p.first, p.end) && !doubted {
				p.giver = rank
				break
			}
		}
		for rank, o := range all {
			for _, span := range s.keepers(rank) {
				wants := span[0] <= p.first && p.end <= span[1]
				p.travels = p.travels || wants && !o.has(p.first, p.end) && p.giver >= 0
			}
		}
		passages = append(passages, p)
	}
	return passages
}

// freshShards are those of a job that has not begun.
func (t *batch) freshShards() error {
	if t.shards == nil {
		return nil
	}
	held, err := t.newHoldings()
	if err == nil {
		t.hold(held)
	}
	return err
}

// dealShards gives this rank what it is to keep in the ring, as planned: zeros where nobody has
// any.
func (t *batch) dealShards(ctx context.Context) (err error) {
	s := t.shards
	if s == nil {
		return nil
	}
	if s.whole != nil && s.wholeAt == t.version() { // all is dealt from there: make room
		t.freeHoldings(s.held)
		s.held = nil
	}
	held, err := t.newHoldings()
	if err != nil || s.slots == 0 {
		if err == nil {
			t.hold(held)
		}
		return err
	}
	err = t.passSlots(ctx, s.passages, func(slot, first int, x []float32) {
		for _, h := range held {
			if h.first <= first && first+len(x) <= h.end {
				t.dev.Upload(h.slots[slot][first-h.first:][:len(x)], x)
			}
		}
	})
	if err != nil {
		t.freeHoldings(held)
		return fmt.Errorf("dealing what the optimizer keeps: %w", err)
	}
	t.hold(held)
	return nil
}

// passSlots brings slots along, piece by piece, and calls write with each piece that this rank has
// or is given. All ranks take part.
func (t *batch) passSlots(
	ctx context.Context, passages []passage, write func(slot, first int, x []float32),
) (err error) {
	defer compute.Catch(&err)
	s := t.shards
	s.giver = make([]int, len(t.ring.LaneEnds))
	for _, p := range passages {
		if p.giver < 0 { // what a rank may have of it is in doubt
			continue
		}
		for slot := range s.slots {
			for at := p.first; at < p.end; at += len(s.piece) {
				x := s.piece[:min(p.end-at, len(s.piece))]
				has := t.readSlot(slot, at, x)
				if p.travels {
					for rank := range s.giver {
						s.giver[rank] = 0
						if rank >= p.giver {
							s.giver[rank] = len(x)
						}
					}
					if err := t.ring.Peers.AllGather(ctx, x, s.giver); err != nil {
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

// readSlot copies what this rank has of a slot from first on, if it has all of it.
func (t *batch) readSlot(slot, first int, x []float32) bool {
	s := t.shards
	now := t.version()
	if s.whole != nil && s.wholeAt == now {
		copy(x, s.whole[slot][first:])
		return true
	}
	for _, h := range s.held {
		if s.at == now && h.first <= first && first+len(x) <= h.end {
			t.dev.Download(x, h.slots[slot][first-h.first:][:len(x)])
			return true
		}
	}
	return false
}

// gatherShards gives rank 0, or all ranks, all slots after the last step.
func (t *batch) gatherShards(ctx context.Context, all bool) error {
	s := t.shards
	if s == nil || s.slots == 0 || len(s.ends) == 1 {
		return nil
	}
	if err := t.alikeShards(ctx); err != nil { // before one is copied over the other
		return err
	}
	var passages []passage
	for rank := range s.ends {
		first, end := s.span(rank)
		passages = append(passages, passage{first, end, rank, true})
	}
	keeps := all || t.ring.Rank == 0
	var whole [][]float32
	for range s.slots {
		if keeps {
			whole = append(whole, make([]float32, s.n))
		}
	}
	err := t.passSlots(ctx, passages, func(slot, first int, x []float32) {
		if keeps {
			copy(whole[slot][first:], x)
		}
	})
	if err != nil {
		return fmt.Errorf("gathering what the optimizer keeps: %w", err)
	}
	if keeps {
		s.whole, s.wholeAt = whole, t.version()
	}
	return nil
}

// dropWhole frees the slots that were gathered for a checkpoint, if another step follows.
func (t *Trainer) dropWhole() {
	if t.shards != nil && !t.done() {
		t.shards.whole = nil
	}
}

// forget forgets what this rank has.
func (s *shards) forget() {
	if s != nil {
		s.at, s.next, s.whole = version{}, version{}, nil
	}
}

// wholeSlots are all slots in host memory, which a snapshot is of. A rank that holds all ranges, as
// one of two does that keep two copies, needs nobody else's.
func (t *batch) wholeSlots() ([][]float32, error) {
	s := t.shards
	switch now := t.version(); {
	case s.slots == 0:
		return nil, nil
	case s.whole != nil && s.wholeAt == now:
		return s.whole, nil
	case s.at != now || s.holds() != s.n:
		return nil, errors.New("this worker has only its own part of what --optimizer keeps " +
			"(--shard-optimizer); the steps since the newest checkpoint are lost unless others " +
			"have the rest")
	case len(s.held) == 1 && t.cfg.HostMemory:
		return s.held[0].slots, nil
	}
	var whole [][]float32
	for slot := range s.slots {
		x := make([]float32, s.n)
		for _, h := range s.held {
			if h.first < h.end {
				t.dev.Download(x[h.first:h.end], h.slots[slot])
			}
		}
		whole = append(whole, x)
	}
	return whole, nil
}

// holds is of how many parameters this rank has the slots.
func (s *shards) holds() (n int) {
	for _, h := range s.held {
		n += h.end - h.first
	}
	return n
}

// loadShards takes the slots of a snapshot, from which they are dealt. It keeps their memory.
func (t *batch) loadShards(from *Snapshot) {
	s := t.shards
	s.whole, s.wholeAt = nil, version{Step: from.Progress.Step, Ring: t.ring.Generation}
	for _, slot := range from.Slots {
		s.whole = append(s.whole, slot.Data)
	}
}

// withShards completes a snapshot by all slots, which are looked at as the other tensors are.
func (t *batch) withShards(snapshot Snapshot) (*Snapshot, error) {
	whole, err := t.wholeSlots()
	if err != nil {
		return nil, err
	}
	for i, x := range whole {
		if !allFinite(x) {
			return nil, errNotFinite
		}
		snapshot.Slots = append(snapshot.Slots, Slot{t.slotNames()[i], x})
	}
	return &snapshot, nil
}
