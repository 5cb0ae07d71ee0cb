package agree

import (
	"context"
	"fmt"
)

const (
	// replaySigns is after how many segments of a replay the ranks meet, so that none waits in the
	// ring for all of it.
	replaySigns = 16
	// replayLimit is how many segments a replay reads at most. A replayed state is approximate in
	// any case, and little of it depends on earlier segments.
	replayLimit = 64
)

// Replayer computes lanes' states from the data.
type Replayer interface {
	// Reset reports whether the state of all lanes is zero before a segment, from 0.
	Reset(segment int64) bool
	// Replay returns a Replay of some lanes, whose states begin at zero.
	Replay(lanes Lanes) (Replay, error)
}

// Replay carries the state of some lanes on over segments, forward only.
type Replay interface {
	Advance(ctx context.Context, segment int64) error
	// State copies the lanes' state to dst, host memory [lanes, size].
	State(dst []float32) error
	Close()
}

// replay computes the states of lanes that no rank knows, and gives them to all. It runs forward
// with the parameters as they are now, from zeros at the last segment before which the states were
// zero, or replayLimit ago. The lost states came from earlier parameters and from dropout, so the
// replayed ones differ. The gradients of these segments were applied before; there are no new ones.
// Each rank replays its own lanes. It returns how many segments of each lane were read.
func (j *Join[P]) replay(ctx context.Context, lost []int) (segments int64, err error) {
	e := j.State.Lanes()
	to := e.Step * j.SegmentsPerStep
	from := to
	for from > 0 && to-from < replayLimit && !j.Replayer.Reset(from) {
		from--
	}
	j.Notice(fmt.Sprintf("no worker knows the states of the lanes %v after step %d, and there is "+
		"no checkpoint: replaying the last %d segments, from zeros", lost, e.Step, to-from))
	runs := runsOf(lost, j.Ranks.Lanes(j.Ranks.Rank))
	if err := j.replaySegments(ctx, from, to, runs, e); err != nil {
		return 0, err
	}
	e.Heal(Lanes{})
	lost, err = e.Deal(ctx, j.Ranks)
	if err == nil && len(lost) > 0 {
		for rank := range j.Ranks.LaneEnds {
			if l := j.Ranks.Lanes(rank); l.First <= lost[0] && lost[0] < l.End() {
				err = j.Ranks.Distrust(rank, "nothing of the lanes %v, which it has replayed", lost)
			}
		}
	}
	return to - from, err
}

// replaySegments replays the segments [from, to) of some lanes into e.
func (j *Join[P]) replaySegments(
	ctx context.Context, from, to int64, runs []Lanes, e *Entry,
) error {
	replays := make([]Replay, 0, len(runs))
	defer func() {
		for _, r := range replays {
			r.Close()
		}
	}()
	for _, lanes := range runs {
		r, err := j.Replayer.Replay(lanes)
		if err != nil {
			return err
		}
		replays = append(replays, r)
	}
	for segment := from; segment < to; segment++ {
		for _, r := range replays {
			if err := r.Advance(ctx, segment); err != nil {
				return fmt.Errorf("replaying segment %d: %w", segment+1, err)
			}
		}
		if (segment-from)%replaySigns == 0 {
			if _, err := Gather(ctx, j.Ranks, segment); err != nil {
				return fmt.Errorf("replaying segment %d: %w", segment+1, err)
			}
		}
	}
	for i, lanes := range runs {
		if err := replays[i].State(e.Lanes(lanes)); err != nil {
			return err
		}
		e.Know(lanes)
	}
	return nil
}

// runsOf returns the runs of neighbours among some lanes, in order, that are within others.
func runsOf(some []int, within Lanes) (runs []Lanes) {
	for _, lane := range some {
		if lane < within.First || lane >= within.End() {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].End() == lane {
			runs[n-1].Count++
			continue
		}
		runs = append(runs, Lanes{lane, 1})
	}
	return runs
}
