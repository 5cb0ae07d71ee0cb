package train

import (
	"context"
	"fmt"
)

// replaySigns is after how many segments of a replay the ranks meet, so that none waits in the ring
// for all of it.
const replaySigns = 16

// replayLimit is how many segments a replay reads at most. Its states are not what they were in any
// case, and what a lane remembers from before so many segments is not worth the wait.
const replayLimit = 64

// replay computes the states of lanes that no rank knows: forward only, with the parameters as they
// are now, from zeros at the last segment before which the states were zero, or replayLimit ago.
// Each rank does so for those that it is to hold. They are not what they were, which other
// parameters and dropout had made; every segment is still read once, since these were read for
// gradients that were applied. It returns how many segments of each lane were read.
func (t *Trainer) replay(ctx context.Context, lost []int) (segments int64, err error) {
	to := t.position(t.progress.Step)
	from := to
	for from > 0 && to-from < replayLimit && !t.task.Reset(from) {
		from--
	}
	segments = to - from
	t.cfg.Observer.Notice(fmt.Sprintf("no worker knows the states of the lanes %v after step %d, "+
		"and there is no checkpoint: replaying the last %d segments, from zeros",
		lost, t.progress.Step, segments))
	return segments, t.replaySegments(ctx, from, to, lost)
}

// replaySegments replays the segments [from, to).
func (t *Trainer) replaySegments(ctx context.Context, from, to int64, lost []int) error {
	runs := runsOf(lost, Lanes{t.first, t.count})
	replays := make([]Replay, 0, len(runs))
	defer func() {
		for _, r := range replays {
			r.Close()
		}
	}()
	for _, lanes := range runs {
		r, err := t.task.Replay(lanes)
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
			if _, err := gather(ctx, t, segment); err != nil {
				return fmt.Errorf("replaying segment %d: %w", segment+1, err)
			}
		}
	}
	e := t.book.at(t.progress.Step, t.committed)
	for i, lanes := range runs {
		if err := replays[i].State(t.book.lanes(e, lanes.First, lanes.End())); err != nil {
			return err
		}
		e.know(lanes.First, lanes.End())
	}
	t.book.heal(e, 0, 0)
	lost, err := t.dealLanes(ctx)
	if err == nil && len(lost) > 0 {
		panic(fmt.Sprintf("train: a replay has left out the lanes %v", lost))
	}
	return err
}

// runsOf are the runs of neighbours among some lanes, in order, that are within others.
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
