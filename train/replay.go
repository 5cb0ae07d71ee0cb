package train

import (
	"context"
	"fmt"

	"rondo/model"
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
	for from > 0 && to-from < replayLimit && !t.batches.Reset(from) {
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
	var runs []*run
	defer func() {
		for _, r := range runs {
			r.evaluator.Close()
		}
	}()
	for _, lane := range lost {
		if lane < t.first || lane >= t.first+t.count {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].first+runs[n-1].count == lane {
			runs[n-1].count++
			continue
		}
		runs = append(runs, &run{first: lane, count: 1})
	}
	for i, r := range runs {
		if err := r.open(t.model, t.cfg.BPTT); err != nil {
			runs = runs[:i]
			return err
		}
	}
	for segment := from; segment < to; segment++ {
		for _, r := range runs {
			if err := r.advance(ctx, t.batches, segment); err != nil {
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
	for _, r := range runs {
		if err := r.evaluator.State(t.book.lanes(e, r.first, r.first+r.count)); err != nil {
			return err
		}
		e.know(r.first, r.first+r.count)
	}
	t.book.heal(e, 0, 0)
	lost, err := t.dealLanes(ctx)
	if err == nil && len(lost) > 0 {
		panic(fmt.Sprintf("train: a replay has left out the lanes %v", lost))
	}
	return err
}

// run is a run of neighbouring lanes in a replay.
type run struct {
	first, count    int
	evaluator       *model.Evaluator
	inputs, targets []int32
}

func (r *run) open(m *model.Model, steps int) (err error) {
	r.inputs, r.targets = make([]int32, steps*r.count), make([]int32, steps*r.count)
	r.evaluator, err = m.NewEvaluator(steps, r.count)
	return err
}

func (r *run) advance(ctx context.Context, batches Batches, segment int64) error {
	if err := batches.Fill(ctx, segment, r.first, r.count, r.inputs, r.targets); err != nil {
		return err
	}
	return r.evaluator.Advance(r.inputs)
}
