package agree

import (
	"context"
	"fmt"
	"slices"
)

// State is a rank's state, which outlives rings. P is the job's progress: see Standing.
type State[P any] interface {
	Standing() Standing[P]
	// StartFresh makes it the state of a job that has not begun, which is the same on all ranks.
	StartFresh() error
	// Overwrite prepares for another rank's tensors. The rank has no state until Adopt.
	Overwrite(by Version)
	// Check returns an error if no rank of this job can be there.
	Check(Standing[P]) error
	// Drop drops this rank's state: it is of a version on which the ranks did not agree.
	Drop(split Version)
	// Adopt makes the standing this rank's. The tensors are those of the rank that it is from.
	Adopt(from Standing[P])
	// Lanes returns the lanes' states after the last step that this rank knows.
	Lanes() *Entry
}

// Shards are tensors that the ranks divide among themselves.
type Shards interface {
	// Meet exchanges which parameters' shards each rank has. gaps is the number of parameters that
	// no rank has.
	Meet(ctx context.Context) (gaps int, err error)
	// Deal gives this rank its shard, with zeros in the gaps.
	Deal(ctx context.Context) error
}

// Join is one rank's side of the agreement in a new ring.
type Join[P any] struct {
	Ranks   Ranks
	State   State[P]
	Tensors [][]float32 // the same on all ranks that have a state
	Memory  Memory      // of Tensors
	Shards  Shards
	// Compare: the ranks that have the elected state compare their tensors before one of them is
	// copied.
	Compare bool
	// Record is of the furthest state that the job's store knows. Rank 0's counts.
	Record Record
	// Look finds a snapshot of a step after the given one. load makes it this rank's state; nil, or
	// a nil Look: there is none. Only rank 0 calls Look, in a goroutine of its own. It may be slow,
	// and ends when ctx does.
	Look func(ctx context.Context, why Reason, after int64) (load func() error, err error)

	Replayer        Replayer
	SegmentsPerStep int64
	Notice          func(text string) // tells people
}

// anyStep is before every step: Look then takes any snapshot.
const anyStep = -1

// Run makes the state of all ranks that of the furthest one, and gives each the states of all
// lanes. If the record is beyond it, or none of them was in the ring before this one, others have
// gone further, or may have: a later snapshot then goes before it. A rank whose parameters are not
// those on record is corrupt. If no rank has a state, or nobody knows some lanes, the ranks go
// back to a snapshot. If there is none, the job starts from scratch, or the lanes are replayed. If
// Run fails, a rank that has a state keeps it, unless it was just receiving another one.
func (j *Join[P]) Run(ctx context.Context) (Joined, error) {
	joined := Joined{Donor: -1}
	if err := j.run(ctx, &joined); err != nil {
		return joined, err
	}
	joined.Step = j.State.Standing().Version.Step
	return joined, nil
}

func (j *Join[P]) run(ctx context.Context, joined *Joined) error {
	own := j.State.Standing()
	own.Record = j.Record
	all, err := j.gather(ctx, own)
	if err != nil {
		return err
	}
	record, why := all[0].Record, NoState
	if j.drop(all) {
		why = Untrusted
	}
	if err := j.hold(all, record); err != nil {
		return err
	}
	donor := elect(all)
	switch {
	case donor < 0:
		if all, err = j.restore(ctx, why, anyStep); err != nil {
			return err
		}
		if !all[0].Found {
			joined.From = FromScratch
			return j.State.StartFresh()
		}
		joined.From, donor = FromCheckpoint, 0
	case record.beyond(all[donor].Version) || all[donor].Joined < j.Ranks.Generation-1:
		later, err := j.restore(ctx, Behind, all[donor].Version.Step)
		if err != nil {
			return err
		}
		switch {
		case later[0].Found:
			joined.From, all, donor = FromCheckpoint, later, 0
		case record.beyond(all[donor].Version):
			joined.Redone = max(record.Step-all[donor].Version.Step, 0)
		}
	}
	lost, gaps, err := j.share(ctx, all, donor, joined)
	if err != nil {
		return err
	}
	if len(lost) == 0 && gaps == 0 {
		return j.Shards.Deal(ctx)
	}
	joined.LostLanes, joined.LostSlots = lost, gaps
	if all, err = j.restore(ctx, LostLanes, anyStep); err != nil {
		return err
	}
	if all[0].Found {
		joined.From = FromCheckpoint
		if lost, gaps, err = j.share(ctx, all, 0, joined); err != nil {
			return err
		}
		if len(lost) > 0 || gaps > 0 {
			return j.Ranks.Distrust(0, "that it has a snapshot, which lacks the lanes %v and the "+
				"shards of %d parameters", lost, gaps)
		}
		return j.Shards.Deal(ctx)
	}
	joined.From = FromReplay
	if len(lost) > 0 {
		if joined.Replayed, err = j.replay(ctx, lost); err != nil {
			return err
		}
	}
	return j.Shards.Deal(ctx)
}

// drop discards every state of a version that a rank reported as split, also on ranks that left the
// ring before they saw it. It reports whether there are any.
func (j *Join[P]) drop(all []Standing[P]) (split bool) {
	for _, by := range slices.Clone(all) {
		if by.Split == (Version{}) {
			continue
		}
		split = true
		for rank, s := range all {
			if !s.Has || s.Version != by.Split {
				continue
			}
			all[rank] = Standing[P]{Split: by.Split}
			if rank == j.Ranks.Rank {
				j.State.Drop(by.Split)
			}
		}
	}
	return split
}

// hold compares the ranks' parameters with those on record.
func (j *Join[P]) hold(all []Standing[P], record Record) error {
	var corrupt []int
	for rank, s := range all {
		if record.refutes(s.Has, s.Version, s.Digest) {
			corrupt = append(corrupt, rank)
		}
	}
	if len(corrupt) == 0 {
		return nil
	}
	return j.Ranks.corrupt(corrupt, fmt.Sprintf("did not have the parameters on record after "+
		"step %d", record.Step))
}

// gather gives every rank the standings of all.
func (j *Join[P]) gather(ctx context.Context, own Standing[P]) ([]Standing[P], error) {
	all, err := Gather(ctx, j.Ranks, own)
	if err != nil {
		return nil, err
	}
	for rank, s := range all {
		if !s.Has {
			continue
		}
		if err := j.State.Check(s); err != nil {
			return nil, j.Ranks.Distrust(rank, "where it is: %w", err)
		}
	}
	return all, nil
}

// share makes the donor's state every rank's, and deals the lanes. It returns the lanes that nobody
// knows, and of how many parameters nobody has the shards.
func (j *Join[P]) share(
	ctx context.Context, all []Standing[P], donor int, joined *Joined,
) (lost []int, gaps int, err error) {
	d := all[donor]
	joined.Donor, joined.Copied = donor, nil
	for rank, s := range all {
		if !s.same(d) {
			joined.Copied = append(joined.Copied, rank)
		}
	}
	if len(joined.Copied) > 0 {
		if err := j.copyTo(ctx, joined.Copied, donor, d.Version); err != nil {
			return nil, 0, fmt.Errorf("copying the state of step %d from %s: %w", d.Version.Step,
				j.Ranks.Name(donor), err)
		}
	}
	j.State.Adopt(d)
	if lost, err = j.State.Lanes().Deal(ctx, j.Ranks); err != nil {
		return nil, 0, err
	}
	gaps, err = j.Shards.Meet(ctx)
	return lost, gaps, err
}

// copyTries is how often a state is copied at most until it arrives unchanged.
const copyTries = 3

// copyTo copies the donor's tensors to the receivers, and again to those whose digest differs
// afterwards. The ranks that have them already compare them before: a corrupt state and its copies
// could become the majority.
func (j *Join[P]) copyTo(ctx context.Context, receivers []int, donor int, by Version) error {
	digest := func() uint64 { return j.Memory.Digest(j.Tensors) }
	if j.Compare {
		if err := Alike(ctx, j.Ranks, by.Step, digest, receivers...); err != nil {
			return err
		}
	}
	for range copyTries {
		receive := slices.Contains(receivers, j.Ranks.Rank)
		if receive {
			j.State.Overwrite(by)
		}
		if err := j.Memory.broadcast(ctx, j.Ranks, j.Tensors, donor, receive); err != nil {
			return err
		}
		all, err := Gather(ctx, j.Ranks, digest())
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
	return fmt.Errorf("it has not arrived unchanged in %d tries: %w", copyTries,
		j.Ranks.corrupt(receivers, ""))
}
