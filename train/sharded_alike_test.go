package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"rondo/compute"
	"rondo/sum/sharded"
	"rondo/train/agree"
)

// flipping is a device that flips a bit of a second slot after this many updates.
type flipping struct {
	compute.Device
	after, updates int
}

func (f *flipping) Update(u compute.Update, params, grads, s1, s2 []float32) {
	f.Device.Update(u, params, grads, s1, s2)
	if f.updates++; f.updates == f.after {
		s2[0] = math.Float32frombits(math.Float32bits(s2[0]) ^ 1<<3)
	}
}

// flipSlot flips a bit in worker 1's own range, or in its copy of its predecessor's range, in a
// step. Each step has three updates: of parameters, of the own slots, and of the predecessor's.
func flipSlot(j *job, holding, step int) {
	j.device = func(worker int, dev compute.Device) compute.Device {
		if worker != 1 {
			return dev
		}
		return &flipping{Device: dev, after: 3*step - 1 + holding}
	}
}

// If a bit flips in one of two copies of the same slots, all ranks learn it before one copy
// replaces the other: at the next roll call, before a save, and when the ring changes, planned or
// not. The ranks then go back to a checkpoint; without one these slots restart at zero.
func TestShardsThatDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		check   int64
		how     breakage
		regroup bool
	}{
		"roll call": {check: 5},
		"save":      {check: 100},
		"planned":   {check: 100, regroup: true},
		"broken":    {check: 100, how: breakage{call: brokenCall, completes: []int{}}},
	} {
		for i := range 2 * sharded.MaxCopies {
			holding, saved := i/2, i%2 == 0
			t.Run(fmt.Sprintf("%s, copy %d, saved %v", name, holding, saved), func(t *testing.T) {
				j := shardJob(compute.Adam, 1)
				j.config.Steps, j.config.SaveEvery, j.config.EvalEvery = 9, 3, 100
				oracle := j.mustRun(t)
				j.shardCopies, j.config.CheckEvery = 2, c.check
				flipSlot(&j, holding, 4)
				e := newElastic(t, j, 4)
				e.restore = func(_ context.Context, why agree.Reason, _ int64) (*Snapshot, error) {
					if !saved || why == agree.NoState {
						return nil, nil
					}
					return e.workers[0].saved[0], nil
				}
				if c.regroup {
					regroupAt(e, 2, 5)
				}
				e.ring(c.how, 0, 1, 2, 3)
				for worker, h := range e.workers {
					var differ *sharded.DifferError
					if step := h.trainer.Progress().Step; step < 4 || step > 6 ||
						errors.As(h.err, &differ) == (name == "broken") {
						t.Fatalf("worker %d at step %d: %v", worker, step, h.err)
					}
				}
				if len(e.workers[0].saved) != 1 {
					t.Fatalf("%d saved, not that of step 3 alone", len(e.workers[0].saved))
				}
				e.workers[2].trainer.cfg.Observer = &e.workers[2].recorder // it asks only once
				e.ring(breakage{}, 0, 1, 2, 3)
				e.allDone(0, 1, 2, 3)
				e.audit()
				got := e.workers[0].joined
				want := map[bool]string{true: agree.FromCheckpoint, false: agree.FromReplay}[saved]
				if got.LostSlots == 0 || got.From != want || saved && got.Step != 3 {
					t.Errorf("%+v", got)
				}
				if saved {
					e.matches(0, oracle)
				}
			})
		}
	}
}

// brokenCall is a collective of the step after the bit flip.
const brokenCall = 40
