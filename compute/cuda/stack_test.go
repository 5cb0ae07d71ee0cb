//go:build cuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/emulator"
	"rondo/compute/devicetest"
)

// forced is planned, and wants it to be a wave.
func forced(t *testing.T, d *Device, shapes []compute.RecurrentShape, steps int,
	backward bool) wave {
	t.Helper()
	w := planned(d, shapes, steps, backward)
	if w.steps == 0 {
		t.Fatalf("%+v have no plan on 1/%d of %s", shapes, len(shapes), d.Name())
	}
	return w
}

// planned is a pass in chunks of so many steps, on shares of the multiprocessors; no wave where a
// layer has no plan on them.
func planned(d *Device, shapes []compute.RecurrentShape, steps int, backward bool) wave {
	w := wave{steps: steps}
	o := d.forward()
	if backward {
		o = d.backward()
	}
	for _, s := range shapes {
		p, ok := planPersistent(s, o, d.multiprocessors()/len(shapes), d.sharedPerBlock(),
			backward)
		if !ok {
			return wave{}
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
		{h200(), lstm, operandBF16, 3, 256, 32, 35, 0, 0},
		{h200(), lstm, operandBF16, 3, 256, 32, 64, 0, 0}, // nor our own kernels' products
		{h200(), lstm, operandBF16, 2, 256, 32, 128, 0, 0},
		{h200(), lstm, operandBF16, 2, 256, 32, 256, 64, 64},
		{h200(), lstm, operandBF16, 3, 256, 32, 256, 64, 64},
		{h200(), gru, operandBF16, 2, 256, 32, 256, 86, 86},
		{h200(), gru, operandBF16, 3, 256, 32, 256, 32, 32},
		{h200(), lstm, operandBF16, 2, 512, 64, 256, 0, 0},
		{h200(), lstm, operandBF16, 2, 512, 16, 256, 0, 64},
		{h200(), lstm, operandBF16, 2, 512, 1, 256, 64, 64},
		{h200(), lstm, operandFP32, 2, 256, 32, 64, 0, 16},
		{h200(), lstm, operandFP32, 3, 256, 32, 35, 0, 7},
		{h200(), lstm, operandFP32, 3, 256, 32, 64, 13, 13},
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

// TestStacksResident has both layers' blocks wait for each other's on the GPU at once, of every
// multiprocessor, for some hundred segments: where they did not all get there, they would wait for
// ever.
func TestStacksResident(t *testing.T) {
	if emulator.Running() {
		t.Skip("an emulated GPU has room for any blocks: this test needs one that is real")
	}
	d := newGPU(t, compute.BF16)
	if d.major() < 8 {
		t.Skip("there are no persistent kernels of bf16 below 8.0")
	}
	shapes := slices.Repeat([]compute.RecurrentShape{{Cell: compute.LSTM, T: 256, B: 64, D: 512,
		H: 512}}, 2)
	there, back := planned(d, shapes, 43, false), planned(d, shapes, 64, true)
	if there.steps == 0 || back.steps == 0 {
		t.Skip("the layers do not fit on the half of this GPU")
	}
	s := d.newStack(shapes, 0.3, there, back)
	defer s.Close()
	devicetest.StackOf(t, d, compute.BF16, rand.New(rand.NewPCG(3, 4)), shapes, 0.3, s, func(
		replay func()) {
		for range 100 {
			replay()
		}
		d.check("replaying", d.fence.Record(d.stream))
		d.check("replaying", d.fence.Wait(20*time.Second)) // a hundredth of it is enough
	})
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
	first := made()
	for l, r := range first.layers {
		if r.loop != nil || d.memory.room > 0 {
			t.Errorf("layer %d has a %T besides its waves, and the Device %d bytes of scratch", l,
				r.loop, d.memory.room)
		}
	}
	first.Close()
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

// TestStackWithoutRoom has a GPU with room for the layers, and for two of them beside each other,
// but not for five: those are for one after the other, and what was taken is given back.
func TestStackWithoutRoom(t *testing.T) {
	if !child(t) {
		output, err := inChild(t, fmt.Sprintf("RONDO_EMULATOR_MEMORY=%d", 36<<20))
		if err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	d := newGPU(t, compute.FP32)
	if d.Info().Memory > 36<<20 {
		t.Skip("this test needs the emulated driver: RONDO_TEST_EMULATED=1")
	}
	of := func(layers int) []compute.RecurrentShape {
		return slices.Repeat([]compute.RecurrentShape{{Cell: compute.LSTM, T: 150, B: 1, D: 16,
			H: 16}}, layers)
	}
	if w := planWave(of(5), operandFP32, d.multiprocessors(), d.sharedPerBlock(),
		true); w.steps == 0 {
		t.Fatal("five layers are planned one after the other")
	}
	before, _ := d.Bytes()
	if s := d.NewStack(of(5), 0); s != nil {
		t.Error("five layers beside each other")
	}
	if now, _ := d.Bytes(); now != before+int64(d.memory.room) {
		t.Errorf("%d bytes, %d before the layers, %d of scratch", now, before, d.memory.room)
	}
	for _, shape := range of(5) {
		defer d.NewRecurrent(shape, false).Close()
	}
	s := d.NewStack(of(2), 0)
	if s == nil {
		t.Fatal("no two layers beside each other")
	}
	s.Close()
}

// TestStackTurnedOff wants no stack of layers for which there is one.
func TestStackTurnedOff(t *testing.T) {
	shapes := slices.Repeat([]compute.RecurrentShape{{Cell: compute.LSTM, T: 200, B: 1, D: 8,
		H: 8}}, 2)
	for _, choice := range []string{"", "off"} {
		t.Setenv(waveEnvironment, choice)
		s := newGPU(t, compute.FP32).NewStack(shapes, 0)
		if (s == nil) != (choice == "off") {
			t.Errorf("%s=%q: a stack: %t", waveEnvironment, choice, s != nil)
		}
		if s != nil {
			s.Close()
		}
	}
}

// TestLaneFinish waits from within a lane, as to free what it has outgrown, while a result is on
// its way in the Device's own stream: that is waited for too, for nothing waits for it again.
func TestLaneFinish(t *testing.T) {
	d := newGPU(t, compute.FP32)
	if lack := d.makeLanes(1, 1); lack != nil {
		t.Fatal(lack)
	}
	x, r := d.Alloc(1), d.newResult(4)
	defer r.close()
	d.Upload(x, []float32{3})
	scale(d, x, 2)
	r.fetch(at(x))
	d.on(d.lanes.all[0], func() { d.finish("waiting in a lane") })
	if got := *(*float32)(unsafe.Pointer(&r.read()[0])); got != 6 {
		t.Errorf("the result is %v, want 6", got)
	}
}
