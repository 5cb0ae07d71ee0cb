package train

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"rondo/train/agree"
)

// leaky is the Reducer of a rank to which a bit of long gatherings comes flipped.
type leaky struct {
	frail
	least int // how long they are
}

func (l *leaky) AllGather(ctx context.Context, buf []float32, ends []int) error {
	err := l.frail.AllGather(ctx, buf, ends)
	if err == nil && len(buf) >= l.least {
		middle := &buf[len(buf)/2]
		*middle = math.Float32frombits(math.Float32bits(*middle) ^ 1<<12)
	}
	return err
}

// Whoever never gets what the donor has is out; the others say who it is, and keep theirs.
func TestCopyNeverArrives(t *testing.T) {
	e := newElastic(t, elasticJob(7), 2)
	regroupAt(e, 1, 1)
	e.ring(breakage{}, 0, 1)
	newcomer := e.hire()
	e.wrap = func(f *frail) Reducer {
		if f.rank != 2 {
			return f
		}
		return &leaky{*f, len(e.hands[0].model.Params())}
	}
	e.ring(breakage{}, 1, 0, newcomer)
	for worker, h := range e.hands {
		var corrupt *agree.CorruptError
		var others *agree.PeerCorruptError
		found := worker == newcomer && errors.As(h.err, &corrupt) && corrupt.Rank == 2 ||
			worker != newcomer && errors.As(h.err, &others) && slices.Equal(others.Ranks, []int{2})
		if !found || h.trainer.HasState() != (worker != newcomer) {
			t.Errorf("worker %d: %v", worker, h.err)
		}
	}
	e.wrap = nil
	e.ring(breakage{}, 1, 0)
	e.whole(1, 0)
}

// What is corrupt is not copied: the ranks that have a state agree on it before.
func TestCorruptDonor(t *testing.T) {
	j := elasticJob(8)
	j.config.SaveEvery, j.config.CheckEvery = 0, 7
	e := newElastic(t, j, 3)
	e.hands[0].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
		return Spoil{Flip: step == 2}
	}}
	regroupAt(e, 1, 2)
	e.ring(breakage{}, 0, 1, 2)
	newcomer := e.hire()
	e.ring(breakage{}, 0, 1, newcomer, 2)
	var corrupt *agree.CorruptError
	if !errors.As(e.hands[0].err, &corrupt) || e.hands[0].trainer.HasState() {
		t.Error(e.hands[0].err)
	}
	for _, worker := range []int{1, 2, newcomer} {
		var others *agree.PeerCorruptError
		if err := e.hands[worker].err; !errors.As(err, &others) ||
			!slices.Equal(others.Ranks, []int{0}) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	e.ring(breakage{}, 1, 2, newcomer)
	if got := e.hands[1].joined; got.Step != 3 || !slices.Equal(got.Copied, []int{2}) {
		t.Errorf("%+v", got)
	}
	e.whole(1, 2, newcomer)
}
