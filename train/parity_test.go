package train

import (
	"fmt"
	"math"
	"testing"

	"rondo/compute"
	"rondo/train/optim"
)

// apart returns the largest relative difference of two loss curves.
func apart(t *testing.T, a, b []float64) float64 {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("curves of %d and %d steps", len(a), len(b))
	}
	most := 0.0
	for i := range a {
		d := math.Abs(a[i]-b[i]) / b[i]
		if !(d <= most) {
			most = d
		}
	}
	return most
}

// sameJob compares the losses and final lane states of jobs on different numbers of ranks.
func sameJob(t *testing.T, got, want *outcome) {
	t.Helper()
	if d := apart(t, got.losses(), want.losses()); !(d <= 1e-4) {
		t.Errorf("the loss curve is off by %.2g", d)
	} else {
		t.Logf("the loss curve is off by %.2g", d)
	}
	a, b := got.saved[0].Lanes, want.saved[0].Lanes
	for i := range b {
		if d := math.Abs(float64(a[i] - b[i])); !(d <= 1e-3) || len(a) != len(b) {
			t.Fatalf("element %d of the lanes' states is %v, not %v", i, a[i], b[i])
		}
	}
}

// With global clipping the result does not depend on the number of ranks.
func TestGlobalClipDoesNotDependOnRanks(t *testing.T) {
	for _, cell := range []compute.Cell{compute.GRU, compute.LSTM} {
		for _, random := range []bool{false, true} {
			for _, by := range []optim.ClipBy{optim.ByNorm, optim.ByValue} {
				name := fmt.Sprintf("cell %d, random %v, by %s", cell, random, by)
				t.Run(name, func(t *testing.T) {
					j := newJob(1)
					j.model.Cell, j.batches = cell, newLanes(random)
					j.model.Layers, j.model.Dropout, j.config.Save = 2, 0.1, true
					j.config.Clip.By = by
					j.config.Clip.Limit = map[optim.ClipBy]float64{
						optim.ByNorm: 0.3, optim.ByValue: 0.02}[by]
					alone := j.mustRun(t)
					if first, last := alone.steps[0], alone.steps[49]; last.Loss > 0.95*first.Loss {
						t.Errorf("the loss went from %v to %v only", first.Loss, last.Loss)
					}
					for _, ranks := range []int{2, 3, 4, 5} {
						j.ranks = ranks
						sameJob(t, j.mustRun(t), alone)
					}
				})
			}
		}
	}
}

// With clipping by worker the result is the same only while nothing is clipped.
func TestWorkerClipDependsOnRanks(t *testing.T) {
	j := newJob(1)
	j.config.Clip = optim.Clip{Limit: 1e6, By: optim.ByNorm, Scope: optim.ScopeWorker}
	free := j.mustRun(t)
	j.config.Clip.Limit = 0.2
	clipped := j.mustRun(t)
	j.config.Clip.Scope = optim.ScopeGlobal
	if d := apart(t, j.mustRun(t).losses(), clipped.losses()); d > 1e-6 {
		t.Errorf("one rank: scopes worker and global are %.2g apart", d)
	}

	j.ranks, j.ends = 3, []int{1, 3, testG} // shares of 1/12, 1/6 and 3/4
	j.config.Clip = optim.Clip{Limit: 1e6, By: optim.ByNorm, Scope: optim.ScopeWorker}
	if d := apart(t, j.mustRun(t).losses(), free.losses()); !(d <= 1e-4) {
		t.Errorf("three ranks, nothing clipped: off by %.2g", d)
	}
	j.config.Clip.Limit = 0.2
	if d := apart(t, j.mustRun(t).losses(), clipped.losses()); !(d > 1e-3) {
		t.Errorf("three ranks that clip their own are only %.2g from one", d)
	}
}
