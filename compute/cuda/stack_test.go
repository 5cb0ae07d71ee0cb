//go:build cuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// forced is a pass in chunks of so many steps, on shares of the multiprocessors.
func forced(t *testing.T, d *Device, shapes []compute.RecurrentShape, steps int,
	backward bool) wave {
	t.Helper()
	w := wave{steps: steps}
	o := d.forward()
	if backward {
		o = d.backward()
	}
	for _, s := range shapes {
		p, ok := planPersistent(s, o, d.multiprocessors()/len(shapes), d.sharedPerBlock(),
			backward)
		if !ok {
			t.Fatalf("%+v has no plan on 1/%d of %s", s, len(shapes), d.Name())
		}
		w.plans = append(w.plans, p)
	}
	return w
}

// TestStacks holds wavefronts of chunks of many lengths, and passes of which one is none.
func TestStacks(t *testing.T) {
	for p := range agreements() {
		for _, steps := range []struct{ there, back int }{{1, 4}, {4, 0}, {0, 3}, {20, 2}} {
			t.Run(fmt.Sprintf("%v/%+v", p, steps), func(t *testing.T) {
				d := newGPU(t, p)
				devicetest.Stacks(t, d, p, rand.New(rand.NewPCG(1, 2)),
					func(shapes []compute.RecurrentShape, dropout float32) compute.Stack {
						if shapes[0].T > 100 {
							return nil // the suite has such
						}
						var there, back wave
						if steps.there > 0 {
							there = forced(t, d, shapes, steps.there, false)
						}
						if steps.back > 0 {
							back = forced(t, d, shapes, steps.back, true)
						}
						return d.newStack(shapes, dropout, there, back)
					})
			})
		}
	}
}

// TestStackPlan says which stacks are computed as wavefronts of how many steps, there and back.
func TestStackPlan(t *testing.T) {
	const lstm, gru = compute.LSTM, compute.GRU
	for _, c := range []struct {
		gpu             gpu
		cell            compute.Cell
		operands        operands
		layers, h, b, T int
		there, back     int
	}{
		{h200(), lstm, operandBF16, 2, 256, 32, 35, 0, 0},
	} {
		shapes := slices.Repeat([]compute.RecurrentShape{{Cell: c.cell, T: c.T, B: c.b, D: c.h,
			H: c.h}}, c.layers)
		for backward, want := range map[bool]int{false: c.there, true: c.back} {
			w := planWave(shapes, c.operands, c.gpu.multiprocessors, c.gpu.shared, backward)
			if w.steps != want {
				t.Errorf("%+v backward=%t: chunks of %d steps, want %d", c, backward, w.steps,
					want)
			}
			blocks := 0
			for _, p := range w.plans {
				blocks += p.slices * p.groups
			}
			if blocks > c.gpu.multiprocessors {
				t.Errorf("%+v: %d blocks wait for each other on %d multiprocessors", c, blocks,
					c.gpu.multiprocessors)
			}
		}
	}
}
