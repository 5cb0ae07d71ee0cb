//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cuda/emulator"
)

// persistentCells are those that a persistent loop has.
func persistentCells() []compute.Cell {
	lacks := func(c compute.Cell) bool { return !hasPersistent(c) }
	return slices.DeleteFunc(compute.Cells(), lacks)
}

// persistentPrecisions are those for which the GPU has persistent loops: all, from 8.0 on.
func persistentPrecisions(t *testing.T) map[compute.Precision]agreement {
	all := agreements()
	if newGPU(t, compute.FP32).queue.info.Major < 8 {
		maps.DeleteFunc(all, func(p compute.Precision, _ agreement) bool {
			return p != compute.FP32
		})
	}
	return all
}

// overPersistent makes layers over the recurrence in one launch.
func overPersistent(t *testing.T, d *Device) newLayerOf {
	return func(s compute.RecurrentShape, inference bool) compute.Recurrent {
		return newRecurrent(d, s, inference, func(d *Device, s compute.RecurrentShape,
			inference bool) loop {
			l := newPersistent(d, s, inference)
			if l == nil {
				t.Fatalf("%+v has no persistent loop on %s", s, d.Name())
			}
			return l
		})
	}
}

// persistentProblems are the cells in shapes that give one group of blocks and several, groups of
// one tile of lanes and of several, tiles and slices that are not full, and rows of W_hh of which a
// float4 cannot be loaded.
func persistentProblems(random *rand.Rand) []*recurrentProblem {
	var all []*recurrentProblem
	for _, cell := range persistentCells() {
		for i, s := range []compute.RecurrentShape{
			{T: 9, B: 1, D: 5, H: 40}, {T: 2, B: 17, D: 4, H: 40}, {T: 5, B: 3, D: 6, H: 1},
			{T: 4, B: 50, D: 3, H: 37}, {T: 3, B: 16, D: 9, H: 100},
		} {
			s.Cell = cell
			all = append(all, newRecurrentProblem(s, i%2 == 0, random))
		}
	}
	return all
}

// TestPersistent holds the persistent loops against compute/cpu.
func TestPersistent(t *testing.T) {
	for p, a := range persistentPrecisions(t) {
		t.Run(p.String(), func(t *testing.T) {
			d, problems := newGPU(t, p), persistentProblems(rand.New(rand.NewPCG(1, 2)))
			if a.of != p { // sums that are rounded otherwise: some are on relu's other side
				problems = slices.DeleteFunc(problems, func(p *recurrentProblem) bool {
					return p.Cell == compute.RNNReLU
				})
			}
			agree(t, p, d, overPersistent(t, d), problems)
		})
	}
}

// TestPersistentSteps holds them against a product a step, which rounds the same operands.
func TestPersistentSteps(t *testing.T) {
	for p := range persistentPrecisions(t) {
		t.Run(p.String(), func(t *testing.T) {
			d, random := newGPU(t, p), rand.New(rand.NewPCG(3, 4))
			for _, problem := range persistentProblems(random) {
				sameAsSteps(t, d, problem, overPersistent(t, d))
			}
		})
	}
}

// sameAsSteps wants of a problem what newSteps computes, but for the order of sums, and operands
// that it makes fall to the other side of a boundary.
func sameAsSteps(t *testing.T, d *Device, p *recurrentProblem, newLayer newLayerOf) {
	t.Helper()
	p.withDout, p.withDx = true, true
	limit := 2e-2
	if d.Precision() == compute.FP32 {
		limit = 5e-5
	}
	want := p.results(d, d.overSteps)
	for i, got := range p.results(d, newLayer) {
		if largest, _ := off(got.values, want[i].values); !(largest <= limit) {
			t.Errorf("%v: %s: %s: largest error %.2g of the largest value", d.Precision(),
				p.name(), got.name, largest)
		}
	}
}

// TestPersistentKernels has every kernel of the backward pass compute, also where a part of W_hh is
// in shared memory, whatever the plan would have chosen.
func TestPersistentKernels(t *testing.T) {
	s := compute.RecurrentShape{Cell: compute.LSTM, T: 3, B: 17, D: 3, H: 80}
	for p := range persistentPrecisions(t) {
		d, random := newGPU(t, p), rand.New(rand.NewPCG(5, 6))
		for _, k := range persistentKernels(d.gemm.backward(), true) {
			for _, h := range []int{s.H, 288} { // the latter for rows of more than the registers
				s.H = h
				plan, ok := k.plan(s, d.gemm.backward(), d.queue.info.Multiprocessors, true)
				if !ok || plan.shared > d.queue.info.SharedPerBlock {
					continue
				}
				sameAsSteps(t, d, newRecurrentProblem(s, false, random),
					func(s compute.RecurrentShape, inference bool) compute.Recurrent {
						return newRecurrent(d, s, inference, func(d *Device,
							s compute.RecurrentShape, inference bool) loop {
							l := &persistent{device: d, RecurrentShape: s, back: &plan,
								steps: newSteps(d, s, inference)}
							l.memory = d.memory.cut(l.parts())
							return l
						})
					})
			}
			s.H = 80
		}
	}
}

// TestPersistentHalf has a shape of which the emulated GPU's 16 blocks hold one pass alone.
func TestPersistentHalf(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(13, 14))
	s := compute.RecurrentShape{Cell: compute.LSTM, T: 3, B: 4, D: 3,
		H: 8*d.queue.info.Multiprocessors + 8}
	l := newPersistent(d, s, false).(*persistent)
	if l.there != nil || l.back == nil || l.steps == nil {
		t.Fatalf("%+v: plans %+v and %+v, steps %v", s, l.there, l.back, l.steps)
	}
	l.close()
	sameAsSteps(t, d, newRecurrentProblem(s, false, random), d.NewRecurrent)
}

// TestPersistentUnaligned has W_hh begin where no float4 does, as within a model's parameters.
func TestPersistentUnaligned(t *testing.T) {
	precision := compute.FP32
	if _, ok := persistentPrecisions(t)[compute.BF16]; ok {
		precision = compute.BF16
	}
	d, random := newGPU(t, precision), rand.New(rand.NewPCG(15, 16))
	p := newRecurrentProblem(compute.RecurrentShape{Cell: compute.LSTM, T: 3, B: 2, D: 3, H: 32},
		true, random)
	m, l := newLayerMemory(d, p), overPersistent(t, d)(p.RecurrentShape, false)
	defer m.close()
	defer l.Close()
	m.forward(l)
	m.backward(l)
	want := m.read(slices.Concat(m.forwards, m.backwards))
	aligned, room := m.w.HH, d.Alloc(len(p.w.HH)+1)
	defer d.Free(room)
	m.w.HH = room[1:]
	d.Upload(m.w.HH, p.w.HH)
	m.forward(l)
	m.backward(l)
	m.w.HH = aligned
	for i, got := range m.read(slices.Concat(m.forwards, m.backwards)) {
		if !slices.EqualFunc(got.values, want[i].values, sameBits) {
			t.Errorf("%s differs", got.name)
		}
	}
}

// TestPersistentWide has the states of 256 units, of which the emulated GPU holds 16 a block.
func TestPersistentWide(t *testing.T) {
	d, random := newGPU(t, compute.BF16), rand.New(rand.NewPCG(7, 8))
	if d.queue.info.Major < 8 {
		t.Skip("below 8.0 a block has too few units of float32")
	}
	for _, cell := range []compute.Cell{compute.LSTM, compute.GRU} {
		sameAsSteps(t, d, newRecurrentProblem(compute.RecurrentShape{Cell: cell, T: 3, B: 20, D: 3,
			H: 256}, false, random), overPersistent(t, d))
	}
}

// TestPersistentAgain wants the same bits of a second run.
func TestPersistentAgain(t *testing.T) {
	for p := range persistentPrecisions(t) {
		d, random := newGPU(t, p), rand.New(rand.NewPCG(9, 10))
		for _, cell := range persistentCells() {
			problem := newRecurrentProblem(compute.RecurrentShape{Cell: cell, T: 5, B: 20, D: 4,
				H: 40}, true, random)
			first := problem.results(d, overPersistent(t, d))
			for i, again := range problem.results(d, overPersistent(t, d)) {
				if !slices.EqualFunc(first[i].values, again.values, sameBits) {
					t.Errorf("%v: %s: %s differs from run to run", p, problem.name(), again.name)
				}
			}
		}
	}
}

// TestPersistentNaN wants a segment with weights that are no numbers to come to its end, and with a
// state of which every bit is set, which the exchange could not tell from nothing written.
func TestPersistentNaN(t *testing.T) {
	for p := range persistentPrecisions(t) {
		d, random := newGPU(t, p), rand.New(rand.NewPCG(11, 12))
		for _, cell := range persistentCells() {
			problem := newRecurrentProblem(compute.RecurrentShape{Cell: cell, T: 4, B: 2, D: 3,
				H: 33}, true, random)
			for i := range problem.w.HH {
				problem.w.HH[i] = float32(math.NaN())
			}
			for i := range problem.state.H {
				problem.state.H[i] = math.Float32frombits(math.MaxUint32)
			}
			for _, r := range problem.results(d, overPersistent(t, d)) {
				if r.name == "h_T" && r.values[0] == r.values[0] {
					t.Errorf("%v: %v: h is %v", p, cell, r.values[0])
				}
			}
		}
	}
}

// TestPersistentWithoutRoom has a GPU with room for a layer but not for its exchange: a product a
// step computes it. What the tape lacks is an error all the same.
func TestPersistentWithoutRoom(t *testing.T) {
	if !child(t) {
		output, err := inChild(t, fmt.Sprintf("RONDO_EMULATOR_MEMORY=%d", 36<<20),
			blasEnvironment+"=") // whose workspace takes the most of it
		if err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(17, 18))
	if d.Info().Memory > 36<<20 {
		t.Skip("this test needs the emulated driver: RONDO_TEST_EMULATED=1")
	}
	s := compute.RecurrentShape{Cell: compute.LSTM, T: 512, B: 1, D: 3, H: 64}
	m := newLayerMemory(d, newRecurrentProblem(s, true, random))
	defer m.close()
	before, _ := d.Bytes()
	run := func(newLoop func(*Device, compute.RecurrentShape, bool) loop) []layerResult {
		l := newRecurrent(d, s, false, newLoop)
		defer l.Close()
		if _, is := l.loop.(*steps); !is {
			t.Errorf("%+v is computed by a %T", s, l.loop)
		}
		m.forward(l)
		m.backward(l)
		return m.read(slices.Concat(m.forwards, m.backwards))
	}
	got := run(newLoop)
	if now, _ := d.Bytes(); now != before+int64(d.memory.roomBytes) {
		t.Errorf("%d bytes, %d before the layer, %d of scratch", now, before, d.memory.roomBytes)
	}
	for i, want := range run(newSteps) {
		if !slices.EqualFunc(got[i].values, want.values, sameBits) {
			t.Errorf("%s differs from a product a step's", want.name)
		}
	}
	s.T <<= 5
	lack, ok := errors.AsType[*compute.MemoryError](failureOf(func() { d.NewRecurrent(s, false) }))
	if !ok || !strings.HasPrefix(lack.What, "a workspace of ") {
		t.Errorf("%+v: %v", s, lack)
	}
}

// TestPersistentGivesBack has a driver that refuses the module of the persistent kernels: what was
// made for the recurrence is given back.
func TestPersistentGivesBack(t *testing.T) {
	d := newGPU(t, compute.FP32)
	s := compute.RecurrentShape{Cell: compute.LSTM, T: 3, B: 4, D: 3, H: 40}
	d.queue.kernels.modules[d.queue.kernels.of["persistent_forward_fp32_2"]].PTX = "not PTX"
	before, _ := d.Bytes()
	err := failureOf(func() { newPersistent(d, s, false) })
	failed, ok := errors.AsType[*compute.DeviceError](err)
	if !ok || failed.Doing != "loading the kernels of persistent_forward" || d.queue.broken {
		t.Fatalf("%v; broken: %t", err, d.queue.broken)
	}
	now, peak := d.Bytes()
	if now != before || peak == before {
		t.Errorf("%d bytes, %d at most, %d before what was refused", now, peak, before)
	}
}

// TestBoundedSpins lets no persistent kernel wait: the error names the block that would have, and
// what for.
func TestBoundedSpins(t *testing.T) {
	if !child(t) {
		if output, err := inChild(t, spinsEnvironment+"=0"); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	if !emulator.Running() {
		t.Skip("the committed kernels do not count: scripts/kernels.sh debug makes those that do")
	}
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(19, 20))
	s := compute.RecurrentShape{Cell: compute.LSTM, T: 9, B: 1, D: 5, H: 40}
	err := failureOf(func() {
		newRecurrentProblem(s, true, random).results(d, overPersistent(t, d))
	})
	var x, y, looks, column, step int
	text := ""
	if err != nil {
		_, text, _ = strings.Cut(err.Error(), "a persistent kernel's ")
	}
	n, parsed := fmt.Sscanf(text, "block (%d, %d) looked %d times for column %d of step %d:", &x,
		&y, &looks, &column, &step)
	if n != 5 || x < 0 || x > 7 || y != 0 || looks != 0 || step < 0 || step > 9 || column > 9 {
		t.Errorf("%v: %v", err, parsed)
	}
}

// TestOtherKernels takes a module from the folder that the environment names.
func TestOtherKernels(t *testing.T) {
	d := newGPU(t, compute.FP32)
	module := d.queue.kernels.modules[d.queue.kernels.of["flat_scale"]]
	folder := t.TempDir()
	const mark = "// another build\n"
	err := os.WriteFile(filepath.Join(folder, "flat.ptx"), []byte(module.PTX+mark), 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(kernelsEnvironment, folder)
	d = newGPU(t, compute.FP32)
	for _, m := range d.queue.kernels.modules {
		if strings.HasSuffix(m.PTX, mark) != (m.Name == "flat") {
			t.Errorf("%s is not the one to be taken", m.Name)
		}
	}
	x := d.Alloc(100)
	d.Upload(x, numbers(100, 1))
	scale(d, x, 1)
	expect(t, "by another module", d, x, numbers(100, 1))
}

// TestPersistentTooLarge has plans of more blocks than the GPU has room for, as where the GPU is
// shared: the driver refuses them, and a product a step computes the layer.
func TestPersistentTooLarge(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(21, 22))
	s := compute.RecurrentShape{Cell: compute.LSTM, T: 3, B: 4, D: 3, H: 40}
	var made []*persistent
	sameAsSteps(t, d, newRecurrentProblem(s, true, random),
		func(s compute.RecurrentShape, inference bool) compute.Recurrent {
			return newRecurrent(d, s, inference, func(d *Device, s compute.RecurrentShape,
				inference bool) loop {
				l := newPersistent(d, s, inference).(*persistent)
				if l.there.groups = 1 << 15; l.resident(l.there, d.gemm.forward(), false) {
					t.Fatalf("there is room for %+v", l.there)
				}
				if l.back != nil {
					l.back.groups = 1 << 15
				}
				made = append(made, l)
				return l
			})
		})
	for _, l := range made {
		if l.there != nil || l.back != nil || l.steps == nil {
			t.Errorf("plans %+v and %+v, steps %v", l.there, l.back, l.steps)
		}
	}
	if len(made) != 2 { // for training and for inference
		t.Errorf("%d layers", len(made))
	}
}
