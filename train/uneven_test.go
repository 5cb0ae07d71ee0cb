package train

import (
	"fmt"
	"math"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
	"rondo/train/optim"
)

// uneven gives the lanes of a segment 0 to 7 targets, the first six lanes few and the others many.
// In some segments whole ranks have none.
func uneven(segment int64, lane int) int {
	if segment%4 == 3 && lane < 5 {
		return 0
	}
	return 4*(lane/(testG/2)) + int(segment+int64(lane))%4
}

// With global clipping the result does not depend on the number of ranks, though lanes have
// different numbers of targets.
func TestUnevenTargets(t *testing.T) {
	for _, accumulate := range []int{1, 2} {
		t.Run(fmt.Sprintf("accumulate %d", accumulate), func(t *testing.T) {
			j := newJob(1)
			j.counts, j.config.Accumulate, j.config.Save = uneven, accumulate, true
			j.config.Clip.Limit = 0.3
			alone := j.mustRun(t)
			for i, s := range alone.steps {
				want := float64(accumulate * testG * testT) // that textTask reads
				if s.Tokens != want {
					t.Errorf("step %d read %v tokens, want %v", i+1, s.Tokens, want)
				}
			}
			for _, j.ranks = range []int{2, 3, 4} {
				sameJob(t, j.mustRun(t), alone)
			}
		})
	}
}

// A rank without targets in a round does not move the mean over the ranks: the parameters are those
// of a rank alone.
func TestRoundsCountByTargets(t *testing.T) {
	j := newJob(1)
	j.config.Steps, j.config.Local = 4, optim.Local{Every: 2, Outer: optim.OuterAverage}
	j.config.Clip = optim.Clip{Limit: 0.3, By: optim.ByNorm, Scope: optim.ScopeWorker}
	j.counts = func(segment int64, lane int) int {
		if lane >= testG/2 {
			return 0
		}
		return uneven(segment, testG-1-lane)
	}
	alone := j.mustRun(t)
	j.ranks = 2
	o := j.mustRun(t)
	for i, x := range o.params {
		if !(math.Abs(float64(x-alone.params[i])) < 1e-5) {
			t.Fatalf("parameter %d is %v, want %v", i, x, alone.params[i])
		}
	}
	if got, want := o.steps[1].GradientNorm, alone.steps[1].GradientNorm; !(math.Abs(got-want) <
		1e-5) {
		t.Errorf("the norm is %v, want %v", got, want)
	}
}

// Parts that are clipped before the sum count by their shares of the targets, not of the lanes. A
// part alone is a job in which the other lanes have no targets.
func TestClippedPartsCountByTargets(t *testing.T) {
	begin := func(limit float64) job {
		j := newJob(1)
		j.counts, j.config.Steps = uneven, 1
		j.config.Clip = optim.Clip{Limit: limit, By: optim.ByNorm, Scope: optim.ScopeWorker}
		return j
	}
	for _, limit := range []float64{0.01, 1e6} {
		var want []float64
		norm := 0.0
		for part := range 2 {
			lanes := Lanes{First: part * testG / 2, Count: testG / 2}
			j := begin(limit)
			j.counts = func(segment int64, lane int) int {
				if lane < lanes.First || lane >= lanes.End() {
					return 0
				}
				return uneven(segment, lane)
			}
			o := j.mustRun(t)
			share := share(lanes)
			if want == nil {
				want = make([]float64, len(o.params))
			}
			for i, x := range o.params {
				want[i] += share * float64(x)
			}
			norm += share * o.steps[0].GradientNorm
		}
		workers, groups := begin(limit), begin(limit)
		workers.ranks = 2
		groups.config.Clip.Scope, groups.config.LaneGroups = optim.ScopeGroup, 2
		for name, j := range map[string]job{"worker": workers, "group": groups} {
			o := j.mustRun(t)
			if got := o.steps[0].GradientNorm; !(math.Abs(got/norm-1) < 1e-5) {
				t.Errorf("%s, limit %v: the norm is %v, want %v", name, limit, got, norm)
			}
			for i, x := range o.params {
				if !(math.Abs(float64(x)-want[i]) < 1e-5) {
					t.Fatalf("%s, limit %v: parameter %d is %v, want %v", name, limit, i, x,
						want[i])
				}
			}
		}
	}
}

// share is the part of the first segment's targets that lanes have.
func share(lanes Lanes) float64 {
	own, all := 0, 0
	for lane := range testG {
		n := uneven(0, lane)
		all += n
		if lane >= lanes.First && lane < lanes.End() {
			own += n
		}
	}
	return float64(own) / float64(all)
}

// With --reduce canonical uneven numbers of targets give the same bits on any number of ranks.
func TestUnevenCanonical(t *testing.T) {
	for _, scope := range []optim.ClipScope{optim.ScopeGlobal, optim.ScopeGroup} {
		j := canonical(6, scope)
		j.counts, j.config.Accumulate = uneven, 2
		want := j.mustRun(t).report()
		for _, j.ranks = range []int{2, 3, 4} {
			if got := j.mustRun(t).report(); got != want {
				t.Errorf("%s, %d ranks: %s\nwant %s", scope, j.ranks, got, want)
			}
		}
	}
}

// A device that records clips a rank's only group as part of the pass, with the group's weight.
func TestGroupsOnARecorder(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		j := newJob(ranks)
		j.config.Clip = optim.Clip{Limit: 0.1, By: optim.ByNorm, Scope: optim.ScopeGroup}
		j.config.LaneGroups, j.config.Save = 2, true
		want := j.mustRun(t)
		j.config.HostMemory, j.model.GradientTail = false, 0
		j.device = func(_ int, dev compute.Device) compute.Device {
			return devicetest.NewRecorder(dev)
		}
		sameJob(t, j.mustRun(t), want)
	}
}
