package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rondo/compute"
)

// Ring is a rank's part in one generation of ranks. What it is made of is the caller's, and may go
// on using the trainer's memory after a failure, so it is closed before the next Join.
type Ring struct {
	Peers Peers // nil: this rank is alone
	// NewSum makes the ring's Sum, of a gradient that backward finishes up to each of finishes in
	// turn. With Config.Canonical what is summed are also the nodes of a tree: see package sum. It
	// is nil if this rank is alone, or where Scatter sums.
	NewSum func(g *compute.Mirror, finishes []int, nodes func() [][]float32) (Sum, error)
	// Scatter sums where Config.ShardCopies has the ranks share out the optimizer.
	Scatter    Scatterer
	Rank       int
	LaneEnds   []int    // rank r holds the lanes [LaneEnds[r-1], LaneEnds[r]) of the G lanes
	Generation int64    // of each ring greater than of those before
	Names      []string // of the ranks, for people; nil: numbers will do
}

// RestoreReason is why a ring asks for a snapshot.
type RestoreReason int

// The reasons.
const (
	NoState   RestoreReason = iota // no rank has a state
	LostLanes                      // no rank knows the state of some lanes
)

// Restore finds the snapshot to go on from. Nil: there is none. It may take its time, in a
// goroutine of its own, and ends when ctx does; Join returns after it.
type Restore func(ctx context.Context, reason RestoreReason) (*Snapshot, error)

// Where a ring's state is from, if not from its ranks.
const (
	FromCheckpoint = "checkpoint"
	FromScratch    = "scratch"
	FromReplay     = "replay" // of the lanes that were lost
)

// Join takes part in a ring: it finds out, with the other ranks, which of them is the furthest,
// copies its state to those that lack it, and deals the lanes with their states. The newest ring's
// word counts: a rank that has gone on alone, in a ring that others have left, goes back. Restore
// is called on rank 0 only. Whatever breaks Join off, a rank that has a state keeps it, unless it
// was just being given another. Run does what a broken ring has left undone after its last step.
func (t *Trainer) Join(ctx context.Context, ring Ring, restore Restore) (Joined, error) {
	began := t.cfg.Now()
	t.laps.begin()
	t.regrouping.Store(false) // this ring is what was asked for
	if err := t.enter(ring); err != nil {
		return Joined{}, err
	}
	joined := Joined{Donor: -1}
	if err := t.agree(ctx, restore, &joined); err != nil {
		return joined, fmt.Errorf("joining the ring: %w", err)
	}
	if err := t.openSeat(&joined); err != nil {
		return joined, err
	}
	// Where the ring begins is told when all have agreed to it: nobody goes by an older ring then.
	t.joined = ring.Generation
	if _, err := gather(ctx, t, ring.Generation); err != nil {
		return joined, fmt.Errorf("joining the ring: %w", err)
	}
	t.roll.begin(ring)
	joined.Step, joined.Committed = t.progress.Step, t.committed
	t.laps.end("joining the ring")
	joined.Took = t.cfg.Now().Sub(began)
	// The rank that was to save the end may have been lost, and its snapshot with it.
	t.saveAgain = t.done() && !t.pending && t.cfg.Save && joined.From != FromCheckpoint
	return joined, nil
}

// enter takes a seat in a ring.
func (t *Trainer) enter(ring Ring) error {
	if err := ring.validate(t.cfg.Lanes); err != nil {
		return err
	}
	t.ring, t.first = ring, 0
	if ring.Rank > 0 {
		t.first = ring.LaneEnds[ring.Rank-1]
	}
	t.count = ring.LaneEnds[ring.Rank] - t.first
	if err := t.groupLanes(); err != nil {
		return err
	}
	if err := t.enterSum(ring); err != nil {
		return err
	}
	t.ending = t.newEnding()
	// A sum that was broken off leaves anything, also in the padding, which no gradient overwrites.
	t.dev.Zero(t.task.Gradients())
	t.laneFloats = t.laneFloats[:0]
	for _, end := range ring.LaneEnds {
		t.laneFloats = append(t.laneFloats, end*t.laneSize)
	}
	return nil
}

// enterSum readies the exchange for a ring.
func (t *Trainer) enterSum(ring Ring) (err error) {
	x := t.exchange
	x.rank, x.ranks, x.busy, x.sum = ring.Rank, len(ring.LaneEnds), 0, noSum{}
	switch {
	case (t.shards != nil) != (ring.Scatter != nil) && ring.Peers != nil:
		return errors.New("train: ranks that share out the optimizer sum by a Scatterer, and " +
			"only they")
	case t.shards != nil:
		t.enterShards()
	case ring.NewSum != nil:
		x.sum, err = ring.NewSum(x.gradient, t.finishes, t.fold.sums)
	}
	return err
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
	if sums := r.NewSum != nil || r.Scatter != nil; sums != (r.Peers != nil) || !sums && n > 1 {
		return fmt.Errorf("train: %d ranks without Peers and a sum", n)
	}
	if r.Names != nil && len(r.Names) != n {
		return fmt.Errorf("train: %d names for %d ranks", len(r.Names), n)
	}
	return nil
}

// name is a rank as people know it.
func (r Ring) name(rank int) string {
	if r.Names == nil {
		return fmt.Sprintf("rank %d", rank)
	}
	return fmt.Sprintf("rank %d (%s)", rank, r.Names[rank])
}

// agree makes the state of all ranks the same, and has each of them know all lanes.
func (t *Trainer) agree(ctx context.Context, restore Restore, joined *Joined) error {
	all, err := gather(ctx, t, t.standing())
	if err != nil {
		return err
	}
	donor := elect(all)
	if donor < 0 {
		if all, err = t.ask(ctx, NoState, restore); err != nil {
			return err
		}
		if !all[0].Found {
			joined.From = FromScratch
			t.startFresh()
			return t.freshShards()
		}
		joined.From, donor = FromCheckpoint, 0
	}
	if err := t.adopt(ctx, all, donor, joined); err != nil {
		return err
	}
	lost, err := t.dealLanes(ctx)
	if err != nil {
		return err
	}
	gaps, err := t.meetWithShards(ctx)
	if err != nil {
		return err
	}
	if len(lost) == 0 && gaps == 0 {
		return t.dealShards(ctx)
	}
	joined.LostLanes, joined.LostSlots = lost, gaps
	if all, err = t.ask(ctx, LostLanes, restore); err != nil {
		return err
	}
	if !all[0].Found {
		joined.From = FromReplay
		if gaps > 0 {
			t.progress.Held = 0 // a second moment of zeros must take gradients in
		}
		if len(lost) > 0 {
			if joined.Replayed, err = t.replay(ctx, lost); err != nil {
				return err
			}
		}
		return t.dealShards(ctx) // zeros where nobody has any
	}
	joined.From = FromCheckpoint
	if err := t.adopt(ctx, all, 0, joined); err != nil {
		return err
	}
	if lost, err = t.dealLanes(ctx); err == nil && len(lost) > 0 {
		panic(fmt.Sprintf("train: a snapshot without the lanes %v", lost))
	}
	if err != nil {
		return err
	}
	if gaps, err = t.meetWithShards(ctx); err == nil && gaps > 0 {
		panic(fmt.Sprintf("train: a snapshot without what is kept of %d parameters", gaps))
	}
	if err != nil {
		return err
	}
	return t.dealShards(ctx)
}

// lookSigns is after how long the ranks meet again while rank 0 looks for a snapshot.
const lookSigns = time.Second

// ask lets rank 0 look for a snapshot, and tells all ranks what came of it. To find, read and
// verify one may take much longer than the ranks wait for each other in the ring, so they meet all
// the while.
func (t *Trainer) ask(
	ctx context.Context, reason RestoreReason, restore Restore,
) ([]standing, error) {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	defer looking.Wait() // when cancel has told it
	defer cancel()
	var found chan finding // nil: this rank does not look
	if t.ring.Rank == 0 && restore != nil {
		found = make(chan finding, 1)
		looking.Go(func() {
			snapshot, err := restore(ctx, reason)
			found <- finding{snapshot, err}
		})
	}
	for {
		var own standing
		if found != nil {
			var err error
			if own, err = t.take(ctx, found); err != nil {
				return nil, err
			}
		}
		all, err := gather(ctx, t, own)
		if err != nil || !all[0].Looking {
			return all, err
		}
	}
}

// finding is what a Restore has returned.
type finding struct {
	snapshot *Snapshot
	err      error
}

// take makes what was found this rank's state, or says that it still looks.
func (t *Trainer) take(ctx context.Context, found <-chan finding) (standing, error) {
	sign := time.NewTimer(lookSigns)
	defer sign.Stop()
	var f finding
	select {
	case f = <-found:
	case <-sign.C:
		return standing{Looking: true}, nil
	case <-ctx.Done():
	}
	switch {
	case ctx.Err() != nil: // which is what f.err would be of
		return standing{}, context.Cause(ctx)
	case f.err != nil:
		return standing{}, f.err
	case f.snapshot == nil:
		return standing{}, nil
	}
	if err := t.load(f.snapshot); err != nil {
		return standing{}, err
	}
	own := t.standing()
	own.Found = true
	return own, nil
}

// startFresh makes this rank's state that of a job that has not begun, which is the same on all.
func (t *Trainer) startFresh() {
	if t.touched {
		t.task.Initialise()
		for _, s := range t.slots {
			t.dev.Zero(s)
		}
		t.touched = false
	}
	t.progress, t.committed, t.joined = Progress{}, t.ring.Generation, 0
	t.pending, t.stopped, t.hasState = false, false, true
	t.book.open(0, 0, t.committed).zero()
}

// adopt makes the donor's state every rank's.
func (t *Trainer) adopt(ctx context.Context, all []standing, donor int, joined *Joined) error {
	d := all[donor]
	joined.Donor, joined.Copied = donor, nil
	for rank, s := range all {
		if !s.same(d) {
			joined.Copied = append(joined.Copied, rank)
		}
	}
	if len(joined.Copied) > 0 {
		if err := t.copyTo(ctx, joined.Copied, donor, d.version()); err != nil {
			return fmt.Errorf("copying the state of step %d from %s: %w", d.Progress.Step,
				t.ring.name(donor), err)
		}
	}
	t.progress, t.committed, t.joined = d.Progress, d.Committed, d.Joined
	t.pending, t.stopped, t.hasState = d.Pending, d.Stopped, true
	return nil
}

// copyTries is how often a state is copied until it arrives as it is.
const copyTries = 3

// copyTo copies the donor's tensors to the ranks that are to receive them, and again to those that
// have something else then. Those that have them already compare them before: a copy of what is
// corrupt could not be told from it any more.
func (t *Trainer) copyTo(ctx context.Context, receivers []int, donor int, to version) error {
	if err := t.alike(ctx, to.step, receivers); err != nil {
		return err
	}
	for range copyTries {
		receive := slices.Contains(receivers, t.ring.Rank)
		if receive { // from the first byte on
			t.catchUp(to)
			t.hasState, t.touched = false, true
		}
		if err := t.copyState(ctx, donor, receive); err != nil {
			return err
		}
		all, err := gather(ctx, t, t.digest())
		if err != nil {
			return err
		}
		receivers = nil
		for rank, d := range all {
			if d != all[donor] {
				receivers = append(receivers, rank)
			}
		}
		if len(receivers) == 0 {
			return nil
		}
	}
	return fmt.Errorf("it has arrived as another one %d times: %w", copyTries,
		t.corrupt(receivers))
}

// openSeat opens the seat of this rank's lanes, or of a group of them, unless it has one for as
// many, and sets its state.
func (t *Trainer) openSeat(joined *Joined) error {
	lanes := t.groups[0]
	if t.seat == nil || t.seated != lanes.Count {
		if t.seat != nil {
			t.seat.Close()
			t.seat = nil
		}
		began := t.cfg.Now()
		seat, err := t.task.Open(lanes.Count)
		if err != nil {
			return err
		}
		t.seat, t.seated, joined.Build = seat, lanes.Count, t.cfg.Now().Sub(began)
	}
	e := t.book.at(t.progress.Step, t.committed)
	return t.seat.SetState(t.book.lanes(e, lanes.First, lanes.End()))
}

// Joined is what came of a Join. It is the same on all ranks, but for the times.
type Joined struct {
	Step      int64
	From      string // FromCheckpoint, FromScratch, FromReplay; empty: from the ranks themselves
	Donor     int    // the rank whose state it is; -1: from scratch
	Copied    []int  // ranks that were given the state
	LostLanes []int  // whose states no rank knew
	LostSlots int    // parameters of which no rank had what the optimizer keeps
	Replayed  int64  // segments of each that they were computed from; 0: they were not
	// Committed is the ring that the state's last step was completed in: this one where the state
	// is from a checkpoint or from scratch.
	Committed int64

	Build time.Duration // opening this rank's seat; 0: it had one
	Took  time.Duration
}

// String says what people should know; nothing if every rank and lane just went on.
func (j Joined) String() string {
	lost := j.lost()
	switch {
	case j.From == FromScratch:
		return "no worker has a state, and there is no checkpoint: training starts from scratch"
	case j.From == FromCheckpoint && lost == "":
		return fmt.Sprintf("training goes on from the checkpoint of step %d", j.Step)
	case j.From == FromCheckpoint:
		return fmt.Sprintf("%straining goes back to the checkpoint of step %d", lost, j.Step)
	case j.From == FromReplay && len(j.LostLanes) == 0:
		return lost + "that begins at zero again (there is no checkpoint)"
	case j.From == FromReplay:
		return fmt.Sprintf("%sthey were computed anew, up to step %d, from zeros %d segments ago, "+
			"with the parameters as they are: they are not what they were (there is no "+
			"checkpoint)", lost, j.Step, j.Replayed)
	case len(j.Copied) > 0:
		return fmt.Sprintf("rank %d gave its state of step %d to the ranks %v", j.Donor, j.Step,
			j.Copied)
	}
	return ""
}

// lost says what no rank had, as the beginning of a sentence.
func (j Joined) lost() (text string) {
	if len(j.LostLanes) > 0 {
		text = fmt.Sprintf("no worker knew the states of the lanes %v, so ", j.LostLanes)
	}
	if j.LostSlots > 0 {
		text = fmt.Sprintf("no worker had what --optimizer keeps of %d parameters "+
			"(--shard-copies), so ", j.LostSlots) + text
	}
	return text
}
