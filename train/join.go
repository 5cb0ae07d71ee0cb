package train

import (
	"context"
	"errors"
	"fmt"

	"rondo/compute"
	"rondo/train/agree"
)

// Ring is a rank's part in one generation of ranks. What it is made of is the caller's, and may go
// on using the trainer's memory after a failure, so it is closed before the next Join.
type Ring struct {
	Peers Peers // nil: this rank is alone
	// NewSum makes the ring's Sum, of a gradient that backward finishes up to each of finishes in
	// turn. With Config.Canonical what is summed are also the nodes of a tree: see package sum. It
	// is nil if this rank is alone.
	NewSum     func(g *compute.Mirror, finishes []int, nodes func() [][]float32) (Sum, error)
	Rank       int
	LaneEnds   []int    // rank r holds the lanes [LaneEnds[r-1], LaneEnds[r]) of the G lanes
	Generation int64    // of each ring greater than of those before
	Names      []string // of the ranks, for people; nil: numbers will do
}

// Restore finds the snapshot to go on from. Nil: there is none. It may take its time, in a
// goroutine of its own, and ends when ctx does; Join returns after it.
type Restore func(ctx context.Context, why agree.Reason) (*Snapshot, error)

// Join takes part in a ring: the ranks agree on the state that they go on from, and on who has
// which lanes; see agree.Join. Restore is called on rank 0 only. If Join fails, a rank that has a
// state keeps it, unless it was just receiving another one. Run finishes what a broken ring has
// left undone after its last step.
func (t *Trainer) Join(ctx context.Context, ring Ring, restore Restore) (agree.Joined, error) {
	t.laps.begin()
	t.regrouping.Store(false) // this ring is what was asked for
	if err := t.enter(ring); err != nil {
		return agree.Joined{}, err
	}
	joined, err := t.agree(ctx, restore)
	if err != nil {
		return joined, fmt.Errorf("joining the ring: %w", t.distrust(err))
	}
	if err := t.openSeat(); err != nil {
		return joined, err
	}
	// The ring counts as joined from here on. Once all ranks have said so, none goes back to an
	// older ring's state.
	t.joined = ring.Generation
	if _, err := agree.Gather(ctx, t.ranks, ring.Generation); err != nil {
		return joined, fmt.Errorf("joining the ring: %w", err)
	}
	t.roll.Begin(t.ranks, t.blocked())
	t.laps.end("joining the ring")
	// The rank that was to save the end may have been lost, and its snapshot with it.
	t.saveAgain = t.done() && !t.pending && t.cfg.Save && joined.From != agree.FromCheckpoint
	return joined, nil
}

// agree has the ranks agree on the state that they go on from.
func (t *Trainer) agree(ctx context.Context, restore Restore) (agree.Joined, error) {
	m := member{t}
	j := agree.Join[Progress]{Ranks: t.ranks, State: m, Tensors: t.tensors(), Memory: t.memory,
		Shards: t.slots, Compare: t.cfg.CheckEvery > 0, Replayer: t.task,
		SegmentsPerStep: int64(t.cfg.Accumulate), Notice: t.cfg.Observer.Notice}
	if restore != nil {
		j.Look = func(ctx context.Context, why agree.Reason) (func() error, error) {
			s, err := restore(ctx, why)
			if s == nil || err != nil {
				return nil, err
			}
			return func() error { return t.load(s) }, nil
		}
	}
	joined, err := j.Run(ctx)
	if err == nil && joined.From == agree.FromReplay && joined.LostSlots > 0 {
		t.progress.Held = 0 // a second moment of zeros must take gradients in
	}
	return joined, err
}

// enter takes a seat in a ring.
func (t *Trainer) enter(ring Ring) error {
	if err := ring.validate(t.cfg.Lanes); err != nil {
		return err
	}
	t.ring, t.ranks = ring, t.ranksOf(ring)
	own := t.ranks.Lanes(ring.Rank)
	t.first, t.count = own.First, own.Count
	if err := t.groupLanes(); err != nil {
		return err
	}
	if err := t.enterSum(ring); err != nil {
		return err
	}
	t.ending = t.newEnding()
	// A sum that was broken off leaves anything, also in the padding, which no gradient overwrites.
	t.dev.Zero(t.task.Gradients())
	return nil
}

// enterSum readies the exchange for a ring.
func (t *Trainer) enterSum(ring Ring) (err error) {
	x := t.exchange
	x.rank, x.ranks, x.busy, x.sum = ring.Rank, len(ring.LaneEnds), 0, noSum{}
	t.slots.Enter(t.ranks)
	if ring.NewSum == nil {
		return nil
	}
	x.sum, err = ring.NewSum(x.gradient, t.finishes, t.fold.sums)
	if _, updates := x.sum.(Updater); err == nil && updates != (t.cfg.NewSlots != nil) {
		return errors.New("train: ranks that share out the optimizer sum by an Updater, and only " +
			"they")
	}
	return err
}

// ranksOf is a ring as its ranks meet in it between steps.
func (t *Trainer) ranksOf(ring Ring) agree.Ranks {
	r := agree.Ranks{Rank: ring.Rank, LaneEnds: ring.LaneEnds, Names: ring.Names,
		Generation: ring.Generation}
	if ring.Peers != nil {
		r.AllGather = func(ctx context.Context, buf []float32, ends []int) error {
			err := ring.Peers.AllGather(ctx, buf, ends)
			t.exchange.met = t.cfg.Now()
			return err
		}
	}
	return r
}

func (r Ring) validate(lanes int) error {
	n := len(r.LaneEnds)
	if n < 1 || n > maxRanks || r.Rank < 0 || r.Rank >= n {
		return fmt.Errorf("train: rank %d of %d: want 0 to N-1 of at most %d", r.Rank, n, maxRanks)
	}
	end := 0
	for rank, next := range r.LaneEnds {
		if next <= end {
			return fmt.Errorf("train: rank %d's lanes end at %d, not after %d: each rank needs "+
				"a lane", rank, next, end)
		}
		end = next
	}
	if end != lanes {
		return fmt.Errorf("train: the ranks' lanes end at %d; the job has %d", end, lanes)
	}
	if sums := r.NewSum != nil; sums != (r.Peers != nil) || !sums && n > 1 {
		return fmt.Errorf("train: %d ranks without Peers and a sum", n)
	}
	if r.Names != nil && len(r.Names) != n {
		return fmt.Errorf("train: %d names for %d ranks", len(r.Names), n)
	}
	return nil
}

// openSeat opens the seat of this rank's lanes, or of a group of them, unless it has one for as
// many, and sets its state.
func (b *batch) openSeat() error {
	lanes := b.groups[0]
	if b.seat == nil || b.seated != lanes.Count {
		if b.seat != nil {
			b.seat.Close()
			b.seat = nil
		}
		seat, err := b.task.Open(lanes.Count)
		if err != nil {
			return err
		}
		b.seat, b.seated = seat, lanes.Count
	}
	return b.seat.SetState(b.laneStates.At(b.version()).Lanes(lanes))
}
