package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/train/agree"
)

// Rings break at random; workers die, are cut off and return, or are new. Every lane is read once
// in every step that counts. Unless lane states had to be replayed, the job ends with the
// undisturbed result.
func TestManyFaults(t *testing.T) {
	for _, random := range []bool{false, true} {
		var jobs []job
		var oracles []*outcome
		for _, c := range []struct {
			rule compute.Optimizer
			rate float64
		}{{compute.SGD, 0.5}, {compute.Momentum, 0.2}, {compute.AdamW, 0.005}} {
			j := elasticJob(12)
			j.batches = newLanes(random)
			j.config.Optimizer.Rule, j.config.Schedule.Rate = c.rule, c.rate
			jobs, oracles = append(jobs, j), append(oracles, j.mustRun(t))
		}
		faults, replays := 0, 0
		for seed := range uint64(60) {
			j, oracle := jobs[seed%3], oracles[seed%3]
			if seed%2 == 1 {
				j.config.HostMemory, j.model.GradientTail = false, 0
			}
			t.Run(fmt.Sprintf("random %v, seed %d", random, seed), func(t *testing.T) {
				broken, replayed := manyFaults(t, j, seed, oracle)
				faults += broken
				if replayed {
					replays++
				}
			})
		}
		t.Logf("random sampling %v: %d faults, %d jobs with replays", random, faults, replays)
		if faults < 200 || replays > 20 {
			t.Errorf("%d faults, %d jobs with replays", faults, replays)
		}
	}
}

func manyFaults(t *testing.T, j job, seed uint64, oracle *outcome) (faults int, replayed bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	e := newElastic(t, j, 3)
	e.restore = func(context.Context, agree.Reason, int64) (*Snapshot, error) {
		var newest *Snapshot
		for _, h := range e.workers {
			for _, s := range h.saved {
				if newest == nil || s.Progress.Step > newest.Progress.Step {
					newest = s
				}
			}
		}
		return newest, nil
	}
	alive, last := []int{0, 1, 2}, []int{0, 1, 2} // the last ring's workers
	for range 8 {
		ring := drawRing(rng, alive, last)
		how := breakage{call: 1 + rng.IntN(12), carried: rng.IntN(2) == 0}
		if len(ring) > 1 {
			how.dead = []int{rng.IntN(len(ring))}
		}
		if rng.IntN(3) > 0 {
			how.completes = []int{}
			for rank := range ring {
				if rng.IntN(2) == 0 {
					how.completes = append(how.completes, rank)
				}
			}
		}
		broke := e.ring(how, ring...)
		replayed = replayed || e.workers[ring[0]].joined.From == agree.FromReplay
		last = slices.Clone(ring)
		if !broke {
			continue
		}
		faults++
		lost := ring[how.dead[0]]
		last = slices.DeleteFunc(last, func(w int) bool { return w == lost })
		if rng.IntN(2) == 0 { // otherwise it was only cut off
			alive = slices.DeleteFunc(alive, func(w int) bool { return w == lost })
			alive = append(alive, e.addWorker())
		}
	}
	end := drawRing(rng, alive, last)
	e.ring(breakage{}, end...)
	replayed = replayed || e.workers[end[0]].joined.From == agree.FromReplay
	e.allDone(end...)
	e.audit()
	if !replayed {
		e.matches(end[0], oracle)
	}
	return faults, replayed
}

// drawRing draws workers in random order, at least one of them from the last ring.
func drawRing(rng *rand.Rand, alive, last []int) []int {
	ring := []int{last[rng.IntN(len(last))]}
	for _, worker := range alive {
		if worker != ring[0] && rng.IntN(3) > 0 {
			ring = append(ring, worker)
		}
	}
	rng.Shuffle(len(ring), func(i, k int) { ring[i], ring[k] = ring[k], ring[i] })
	return ring
}
