package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"rondo/compute"
	"rondo/train/agree"
	"rondo/train/exact"
)

// Ring is a rank's place in one generation. The caller owns its parts. After a failure they may
// still use the trainer's memory, so they must be closed before the next Join.
type Ring struct {
	Peers Peers // nil: there is one rank
	// NewSum makes the ring's Sum. Backward finishes the gradient up to each of finishes in turn.
	// With Config.Canonical, nodes returns the tree nodes to sum besides the gradient: see package
	// sum. NewSum is nil if there is one rank.
	NewSum   func(g *compute.Mirror, finishes []int, nodes func() [][]float32) (Sum, error)
	Rank     int
	LaneEnds []int // rank r holds the lanes [LaneEnds[r-1], LaneEnds[r]) of the G lanes
	// Reach is to how many of its next ranks each rank sends its lanes' states in a step; nil: to
	// one. Its lanes survive with any of them.
	Reach      []int
	Generation int64        // not less than that of an earlier ring; a ring may be joined again
	Names      []string     // the ranks' names in messages; nil: their numbers
	Record     agree.Record // of the furthest state that the job's store knows: see agree.Join
}

// Restore finds the snapshot to resume from, of a step after the given one; nil: there is none. It
// may run in a goroutine of its own, and must end when ctx does. Join waits for it.
type Restore func(ctx context.Context, why agree.Reason, after int64) (*Snapshot, error)

// Join enters a ring: the ranks agree on the state to resume from and on who has which lanes (see
// agree.Join). Restore is called on rank 0 only. If Join fails, a rank keeps its state, unless
// another state was just overwriting it. Run then does the work that a broken ring left undone
// after its last step.
func (t *Trainer) Join(ctx context.Context, ring Ring, restore Restore) (agree.Joined, error) {
	t.laps.begin()
	t.regrouping.Store(false) // this ring fulfils the request
	if err := t.enter(ring); err != nil {
		return agree.Joined{}, err
	}
	joined, err := t.agree(ctx, restore)
	if err != nil {
		return joined, fmt.Errorf("joining the ring: %w", t.forgetIfCorrupt(err))
	}
	if c, cuts := t.exchange.sum.(Cutter); cuts && t.progress.Cut.Ranks == int64(t.exchange.ranks) {
		c.SetCut(t.progress.Cut.Least)
	}
	if p, pauses := t.exchange.sum.(Pauser); pauses {
		p.SetPause(t.progress.Pause)
	}
	if err := t.openSeat(); err != nil {
		return joined, err
	}
	// From here on the ring counts as joined. Once all ranks have said so, none returns to an older
	// ring's state.
	t.joined, t.split = ring.Generation, agree.Version{}
	if _, err := agree.Gather(ctx, t.ranks, ring.Generation); err != nil {
		return joined, fmt.Errorf("joining the ring: %w", err)
	}
	t.roll.Begin(t.ranks, t.blocked())
	t.caused = 0
	t.laps.end("joining the ring")
	// The rank that saved the final snapshot may be lost, and the snapshot with it.
	t.saveAgain = t.done() && !t.pending && t.cfg.Save && joined.From != agree.FromCheckpoint
	return joined, nil
}

// agree lets the ranks agree on the state to resume from.
func (t *Trainer) agree(ctx context.Context, restore Restore) (agree.Joined, error) {
	m := member{t}
	j := agree.Join[Progress]{Ranks: t.ranks, State: m, Tensors: t.tensors(), Memory: t.memory,
		Shards: t.slots, Compare: t.cfg.CheckEvery > 0, Replayer: t.task,
		SegmentsPerStep: int64(t.cfg.Accumulate), Notice: t.cfg.Observer.Notice,
		Record: t.ring.Record}
	if restore != nil {
		j.Look = func(
			ctx context.Context, why agree.Reason, after int64,
		) (func() error, error) {
			s, err := restore(ctx, why, after)
			if s == nil || err != nil || s.Progress.Step <= after {
				return nil, err
			}
			return func() error { return t.load(s) }, nil
		}
	}
	joined, err := j.Run(ctx)
	if err == nil && joined.From == agree.FromReplay && joined.LostSlots > 0 {
		t.progress.Held = 0 // a second moment of zeros must take in gradients again
	}
	return joined, err
}

// enter prepares this rank for a ring: lanes, groups, sum and update path.
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
	t.path = t.newUpdatePath()
	// A broken sum may leave any values, also in the padding, which no gradient overwrites.
	t.dev.Zero(t.task.Gradients())
	return nil
}

// enterSum prepares the exchange for a ring.
func (t *Trainer) enterSum(ring Ring) (err error) {
	x := t.exchange
	x.rank, x.ranks, x.busy, x.sum = ring.Rank, len(ring.LaneEnds), 0, noSum{}
	x.stops = false
	t.slots.Enter(t.ranks)
	if ring.NewSum == nil {
		return nil
	}
	x.sum, err = ring.NewSum(x.gradient, t.finishes, t.fold.sums)
	if _, updates := x.sum.(Updater); err == nil && updates != (t.cfg.NewSlots != nil) {
		return errors.New("train: Config.NewSlots needs a Sum that is an Updater, and without " +
			"NewSlots the Sum must not be one")
	}
	return err
}

// ranksOf returns the ring as package agree takes it.
func (t *Trainer) ranksOf(ring Ring) agree.Ranks {
	r := agree.Ranks{Rank: ring.Rank, LaneEnds: ring.LaneEnds, Names: ring.Names,
		Generation: ring.Generation}
	if ring.Peers != nil {
		r.AllGather = func(ctx context.Context, buf []float32, ends []int) error {
			err := ring.Peers.AllGather(ctx, buf, ends)
			t.exchange.lastSum = t.cfg.Now()
			return err
		}
	}
	return r
}

// reach returns to how many successors a rank sends its lanes' states.
func (r Ring) reach(rank int) int {
	if r.Reach == nil {
		return 1
	}
	return r.Reach[rank]
}

// hops returns how far the states of any rank travel.
func (r Ring) hops() (hops int) {
	for rank := range r.LaneEnds {
		hops = max(hops, r.reach(rank))
	}
	return min(hops, len(r.LaneEnds)-1)
}

func (r Ring) validate(lanes int) error {
	n := len(r.LaneEnds)
	if n < 1 || n > exact.MaxTerms || r.Rank < 0 || r.Rank >= n {
		return fmt.Errorf("train: rank %d of %d ranks: want 0 to N-1, and N at most %d", r.Rank, n,
			exact.MaxTerms)
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
		return fmt.Errorf("train: %d ranks: a ring needs both Peers and NewSum", n)
	}
	if r.Reach != nil && (len(r.Reach) != n || n > 1 && (slices.Min(r.Reach) < 1 ||
		slices.Max(r.Reach) >= n)) {
		return fmt.Errorf("train: states that go %v ranks on, among %d ranks", r.Reach, n)
	}
	if r.Names != nil && len(r.Names) != n {
		return fmt.Errorf("train: %d names for %d ranks", len(r.Names), n)
	}
	return nil
}

// openSeat opens a seat for one group of this rank's lanes, unless the open seat has that size, and
// sets its state.
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
