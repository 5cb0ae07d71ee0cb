package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// differences holds gradients against central differences of a loss with respect to x.
func differences(t *testing.T, name string, x, gradient []float64, loss func() float64) {
	t.Helper()
	const step, tolerance = 1e-5, 1e-7
	for i, at := range x {
		x[i] = at + step
		up := loss()
		x[i] = at - step
		down := loss()
		x[i] = at
		want := (up - down) / (2 * step)
		if e := math.Abs(gradient[i] - want); !(e <= tolerance*math.Max(1, math.Abs(want))) {
			t.Errorf("%s[%d]: gradient %g, difference %g", name, i, gradient[i], want)
		}
	}
}

// TestLayerOracle holds the oracle's gradients of every cell against differences in float64.
func TestLayerOracle(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, cell := range compute.Cells() {
		for _, dense := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/dense=%t", cell, dense), func(t *testing.T) {
				p := newLayerProblem(compute.RecurrentShape{Cell: cell, T: 4, B: 3, D: 3, H: 5},
					dense, true, random)
				if dense {
					p.lengths = []int32{4, 0, 2}
				}
				got := p.solve(compute.FP32)
				loss := func() float64 {
					a := p.solve(compute.FP32)
					return inner(a["y"], p.dy) + inner(a["h_T"], p.doutH) + inner(a["c_T"], p.doutC)
				}
				inputs := map[string][]float64{"dIH": p.ih, "dHH": p.hh, "dBiasIH": p.biasIH,
					"dBiasHH": p.biasHH, "dPeephole": p.peephole, "dx": p.x, "dh_0": p.h,
					"dc_0": p.c}
				if cell == compute.Clockwork { // its c counts steps: it has no gradient
					delete(inputs, "dc_0")
				}
				for name, x := range inputs {
					differences(t, name, x, got[name], loss)
				}
			})
		}
	}
}

// TestOutputOracle does the same for the output layer, of which some rows do not count.
func TestOutputOracle(t *testing.T) {
	p := newOutputProblem(compute.OutputShape{N: 7, H: 4, V: 5}, true,
		rand.New(rand.NewPCG(5, 6)))
	copy(p.targets, []int32{0, 4, -1, 2, 3, 3, -1})
	for _, smoothing := range []float32{0, 0.25} {
		_, got := p.solve(compute.FP32, smoothing)
		loss := func() float64 {
			sum, _ := p.solve(compute.FP32, smoothing)
			return outputScale * sum
		}
		for name, x := range map[string][]float64{"dx": p.x, "dw": p.w, "db": p.b} {
			differences(t, name, x, got[name], loss)
		}
	}
}

// TestPoolOracle does the same for poolings of rows with and without steps.
func TestPoolOracle(t *testing.T) {
	for _, by := range []compute.Pooling{compute.MeanPool, compute.MaxPool} {
		p := newPoolProblem(by, 5, 3, []int32{5, 0, 1, 3}, rand.New(rand.NewPCG(7, 8)))
		_, dx := p.solve()
		differences(t, fmt.Sprintf("pooling %d: dx", by), p.x, dx, func() float64 {
			y, _ := p.solve()
			return inner(y, p.dy)
		})
	}
}

// TestAttentionOracle does the same for attention of lanes with and without steps.
func TestAttentionOracle(t *testing.T) {
	p := newAttentionProblem(3, 4, 5, 2, []int32{4, 0, 2}, rand.New(rand.NewPCG(9, 10)))
	got := p.solve()
	for name, x := range map[string][]float64{"dq": p.q, "dk": p.k, "dv": p.v} {
		differences(t, name, x, got[name], func() float64 { return inner(p.solve()["y"], p.dy) })
	}
}

// TestRounding knows some operands of each precision.
func TestRounding(t *testing.T) {
	for _, c := range []struct {
		p       compute.Precision
		forward bool
		x, want float64
	}{
		{compute.BF16, true, 1 + 0x1p-8, 1}, {compute.BF16, false, 1 + 0x1.8p-7, 1 + 0x1p-6},
		{compute.BF16, true, -1 - 0x1.1p-8, -1 - 0x1p-7}, {compute.BF16, true, 0x1p-133, 0x1p-133},
		{compute.TF32, true, 1 + 0x1p-10, 1 + 0x1p-10}, {compute.TF32, true, 1 + 0x1p-12, 1},
		{compute.FP16, true, 1 + 0x1p-10, 1 + 0x1p-10}, {compute.FP16, false, 1 + 0x1p-10, 1},
		{compute.FP16, true, 65519, 65504}, {compute.FP16, true, -65520, math.Inf(-1)},
		{compute.FP16, true, 0x1.8p-24, 0x1p-23}, {compute.FP16, true, 0x1p-25, 0},
	} {
		if got := rounding(c.p, c.forward)(c.x); got != c.want {
			t.Errorf("%v of %v, forward %t: %v, want %v", c.x, c.p, c.forward, got, c.want)
		}
	}
}

// TestRecorder holds the stand-in to the contract of what it stands in for.
func TestRecorder(t *testing.T) {
	var made []*Recorder
	Run(t, Config{Precisions: []compute.Precision{compute.FP32}, Trials: 2, Endless: true,
		Open: func(t testing.TB, p compute.Precision) compute.Device {
			dev, err := cpu.New(cpu.Config{Threads: 1, Precision: p})
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, NewRecorder(dev))
			return made[len(made)-1]
		}})
	recorded := 0
	for _, r := range made {
		if recorded += r.Recorded; r.Open > 0 {
			t.Errorf("%d recordings are open", r.Open)
		}
	}
	if recorded == 0 {
		t.Error("nothing was recorded")
	}
}
