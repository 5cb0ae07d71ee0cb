package train

import (
	"errors"
	"slices"
	"testing"

	"rondo/train/agree"
)

// A corrupt state is not copied: the ranks that have a state compare it first.
func TestCorruptDonor(t *testing.T) {
	j := elasticJob(8)
	j.config.SaveEvery, j.config.CheckEvery = 0, 7
	e := newElastic(t, j, 3)
	e.workers[0].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
		return Spoil{Flip: step == 2}
	}}
	regroupAt(e, 1, 2)
	e.ring(breakage{}, 0, 1, 2)
	newcomer := e.addWorker()
	e.ring(breakage{}, 0, 1, newcomer, 2)
	var corrupt *agree.CorruptError
	if !errors.As(e.workers[0].err, &corrupt) || e.workers[0].trainer.HasState() {
		t.Error(e.workers[0].err)
	}
	for _, worker := range []int{1, 2, newcomer} {
		var others *agree.PeerCorruptError
		if err := e.workers[worker].err; !errors.As(err, &others) ||
			!slices.Equal(others.Ranks, []int{0}) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	e.ring(breakage{}, 1, 2, newcomer)
	if got := e.workers[1].joined; got.Step != 3 || !slices.Equal(got.Copied, []int{2}) {
		t.Errorf("%+v", got)
	}
	e.allDone(1, 2, newcomer)
}
