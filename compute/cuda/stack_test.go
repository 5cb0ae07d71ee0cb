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
	type chunks struct{ there, back int }
	for p := range agreements() {
		all := []chunks{{4, 3}}
		if p == compute.FP32 {
			all = []chunks{{1, 4}, {4, 0}, {0, 3}, {20, 2}}
		}
		for _, steps := range all {
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
		{h200(), lstm, operandBF16, 2, 256, 32, 35, 0, 0}, // textbook: chunks of few steps
		{h200(), lstm, operandBF16, 3, 256, 32, 35, 12, 0},
		{h200(), lstm, operandBF16, 2, 256, 32, 64, 0, 0},
		{h200(), lstm, operandBF16, 3, 256, 32, 64, 16, 16},
		{h200(), lstm, operandBF16, 2, 256, 32, 128, 32, 32},
		{h200(), gru, operandBF16, 2, 256, 32, 256, 64, 64},
		{h200(), gru, operandBF16, 3, 256, 32, 256, 32, 32},
		{h200(), lstm, operandBF16, 2, 512, 64, 64, 0, 0},
		{h200(), lstm, operandBF16, 2, 512, 64, 256, 43, 0},
		{h200(), lstm, operandBF16, 2, 512, 1, 256, 64, 64},
		{h200(), lstm, operandFP32, 2, 256, 32, 64, 0, 16},
		{h200(), lstm, operandBF16, 2, 1024, 64, 64, 0, 0}, // the L2 cache is the limit
		{h200(), lstm, operandBF16, 2, 1024, 64, 256, 0, 0},
		{h200(), lstm, operandBF16, 1, 256, 32, 256, 0, 0}, // one layer
		{h200(), compute.GRUResetBefore, operandBF16, 2, 256, 32, 256, 0, 0},
		{v100(), lstm, operandFP32, 2, 256, 32, 256, 32, 32},
		{emulated(), lstm, operandFP32, 2, 16, 2, 150, 50, 50},
		{emulated(), lstm, operandFP32, 17, 16, 2, 150, 0, 0}, // more layers than multiprocessors
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

// TestStackMemory wants a stack to leave nothing behind but the lanes, which the next one takes.
func TestStackMemory(t *testing.T) {
	d := newGPU(t, compute.FP32)
	shapes := slices.Repeat([]compute.RecurrentShape{{Cell: compute.LSTM, T: 8, B: 2, D: 16,
		H: 16}}, 2)
	made := func() *stack {
		return d.newStack(shapes, 0.5, forced(t, d, shapes, 3, false), forced(t, d, shapes, 3,
			true))
	}
	made().Close()
	before, _ := d.Bytes()
	tensors, workspaces := d.made()
	s := made()
	if during, _ := d.Bytes(); during <= before {
		t.Errorf("a stack has %d bytes", during-before)
	}
	s.Close()
	after, _ := d.Bytes()
	if a, b := d.made(); a != tensors || b != workspaces || after != before {
		t.Errorf("%d tensors, %d workspaces and %d bytes are left; there were %d, %d and %d", a, b,
			after, tensors, workspaces, before)
	}
}
