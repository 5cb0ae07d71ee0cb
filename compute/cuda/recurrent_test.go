//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/compute/cuda/emulator"
)

// recurrentProblem is one layer with every tensor that it reads, on the host.
type recurrentProblem struct {
	compute.RecurrentShape
	w                compute.RecurrentWeights
	in               compute.RecurrentInput
	state, dout      compute.RecurrentState
	dy               []float32
	withDout, withDx bool // the latter with dstate, too
	shift            int  // floats that every tensor lies behind a 256-byte boundary
}

func (p *recurrentProblem) name() string {
	return fmt.Sprintf("%v T %d B %d D %d H %d dense=%t dout=%t dx=%t lengths=%v", p.Cell, p.T,
		p.B, p.D, p.H, p.in.X != nil, p.withDout, p.withDx, p.in.Lengths)
}

func newRecurrentProblem(s compute.RecurrentShape, dense bool,
	random *rand.Rand) *recurrentProblem {
	values := func(n int, size float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(size * (2*random.Float64() - 1))
		}
		return x
	}
	weights := func(n int) []float32 { return values(n, 1/math.Sqrt(float64(s.H))) }
	states := func(n int) []float32 { return values(n, 1) }
	p := &recurrentProblem{RecurrentShape: s, dy: states(s.T * s.B * s.H), w: s.Weights(weights),
		state: s.State(states), dout: s.State(states),
		withDout: random.IntN(2) == 0, withDx: random.IntN(2) == 0}
	if dense {
		p.in.X = values(s.T*s.B*s.D, 1)
		return p
	}
	p.in.IDs = make([]int32, s.T*s.B)
	for i := range p.in.IDs { // small ones are frequent
		p.in.IDs[i] = int32(random.Float64() * random.Float64() * random.Float64() *
			float64(s.D))
	}
	return p
}

// end gives the rows lengths from none to all steps.
func (p *recurrentProblem) end(random *rand.Rand) *recurrentProblem {
	p.in.Lengths = make([]int32, p.B)
	for b := range p.in.Lengths {
		p.in.Lengths[b] = int32(random.IntN(p.T + 1))
	}
	return p
}

// newMixedProblem is one whose rows end before the segment, for one of the two kinds of input.
func newMixedProblem(s compute.RecurrentShape, dense bool, random *rand.Rand) *recurrentProblem {
	p := newRecurrentProblem(s, dense, random)
	if dense == (s.Cell%2 == 0) {
		p.end(random)
	}
	return p
}

// layerResult is one of a layer's results, on the host.
type layerResult struct {
	name   string
	values []float32
}

// newLayerOf makes a layer of a device.
type newLayerOf func(s compute.RecurrentShape, inference bool) compute.Recurrent

// layerMemory is a problem's tensors and results in a device's memory.
type layerMemory struct {
	compute.Device
	in                       compute.RecurrentInput
	w, dw                    compute.RecurrentWeights
	state, out, dout, dstate compute.RecurrentState
	y, dy, dx                []float32
	forwards, backwards      []layerResult // results, in device memory
	tensors                  [][]float32   // all that Alloc gave
}

func newLayerMemory(d compute.Device, p *recurrentProblem) *layerMemory {
	var tensors [][]float32
	put := func(x []float32) []float32 {
		if x == nil {
			return nil
		}
		whole := d.Alloc(p.shift + len(x))
		tensors = append(tensors, whole)
		y := whole[p.shift:]
		d.Upload(y, x)
		return y
	}
	junk := func(like []float32) []float32 { // that a call must overwrite
		x := make([]float32, len(like))
		for i := range x {
			x[i] = float32(math.NaN())
		}
		if like == nil {
			return nil
		}
		return put(x)
	}
	m := &layerMemory{Device: d, in: compute.RecurrentInput{IDs: p.in.IDs, X: put(p.in.X),
		Lengths: p.in.Lengths},
		w: compute.RecurrentWeights{IH: put(p.w.IH), HH: put(p.w.HH), BiasIH: put(p.w.BiasIH),
			BiasHH: put(p.w.BiasHH), Peephole: put(p.w.Peephole)},
		dw: compute.RecurrentWeights{IH: junk(p.w.IH), HH: junk(p.w.HH),
			BiasIH: junk(p.w.BiasIH), BiasHH: junk(p.w.BiasHH), Peephole: junk(p.w.Peephole)},
		state: compute.RecurrentState{H: put(p.state.H), C: put(p.state.C)},
		out:   compute.RecurrentState{H: junk(p.state.H), C: junk(p.state.C)},
		y:     junk(p.dy), dy: put(p.dy)}
	if p.withDout {
		m.dout = compute.RecurrentState{H: put(p.dout.H), C: put(p.dout.C)}
	}
	if p.withDx {
		m.dx = junk(p.in.X)
		m.dstate = compute.RecurrentState{H: junk(p.state.H), C: junk(p.state.C)}
	}
	m.tensors = tensors
	m.forwards = []layerResult{{"y", m.y}, {"h_T", m.out.H}, {"c_T", m.out.C}}
	m.backwards = []layerResult{{"dIH", m.dw.IH}, {"dHH", m.dw.HH},
		{"dBiasIH", m.dw.BiasIH}, {"dBiasHH", m.dw.BiasHH}, {"dPeephole", m.dw.Peephole},
		{"dx", m.dx}, {"dh_0", m.dstate.H}, {"dc_0", m.dstate.C}}
	return m
}

// read copies results to the host.
func (m *layerMemory) read(all []layerResult) []layerResult {
	var results []layerResult
	for _, r := range all {
		host := make([]float32, len(r.values))
		if len(host) > 0 {
			m.Download(host, r.values)
		}
		results = append(results, layerResult{r.name, host})
	}
	return results
}

// put makes the problem another of the same shape.
func (m *layerMemory) put(p *recurrentProblem) {
	copy(m.in.IDs, p.in.IDs)
	copy(m.in.Lengths, p.in.Lengths)
	if p.in.X != nil {
		m.Upload(m.in.X, p.in.X)
	}
	m.Upload(m.w.IH, p.w.IH)
	m.Upload(m.w.HH, p.w.HH)
	m.Upload(m.w.BiasIH, p.w.BiasIH)
	m.Upload(m.w.BiasHH, p.w.BiasHH)
	if p.w.Peephole != nil {
		m.Upload(m.w.Peephole, p.w.Peephole)
	}
	m.Upload(m.dy, p.dy)
	m.Upload(m.state.H, p.state.H)
	m.Upload(m.dout.H, p.dout.H)
	if p.state.C != nil {
		m.Upload(m.state.C, p.state.C)
		m.Upload(m.dout.C, p.dout.C)
	}
}

func (m *layerMemory) forward(l compute.Recurrent) {
	l.Forward(m.w, m.in, m.state, m.y, m.out)
}

func (m *layerMemory) backward(l compute.Recurrent) {
	l.Backward(m.dy, m.dout, m.dw, m.dx, m.dstate)
}

// close frees the tensors.
func (m *layerMemory) close() {
	for _, x := range m.tensors {
		m.Free(x)
	}
}

// results runs a problem on a device: two rounds, of which it returns the second's results, then
// inference whose state out is the state in.
func (p *recurrentProblem) results(d compute.Device, newLayer newLayerOf) []layerResult {
	m := newLayerMemory(d, p)
	defer m.close()
	l := newLayer(p.RecurrentShape, false)
	for range 2 {
		m.forward(l)
		m.backward(l)
	}
	all := m.read(slices.Concat(m.forwards, m.backwards))
	l.Close()
	l.Close() // frees nothing twice
	l = newLayer(p.RecurrentShape, true)
	defer l.Close()
	l.Forward(m.w, m.in, m.state, m.y, m.state)
	return append(all, m.read([]layerResult{{"y of inference", m.y}, {"h in place", m.state.H},
		{"c in place", m.state.C}})...)
}

// problemSeed is one with which no gradient of a single unit nearly cancels: such a tensor has one
// or two elements, and no larger one to compare their rounding with.
const problemSeed = 1

// recurrentProblems are every cell in awkward shapes, with ids and dense, and with rows that end
// before the segment. Cells from the MGU on draw from a stream of their own, so that a new cell
// does not change the others' problems.
func recurrentProblems(random *rand.Rand) []*recurrentProblem {
	var all []*recurrentProblem
	for _, cell := range compute.Cells() {
		if cell >= compute.MGU {
			random = rand.New(rand.NewPCG(uint64(cell), problemSeed))
		}
		for i, s := range []compute.RecurrentShape{
			{T: 1, B: 1, D: 1, H: 1}, {T: 3, B: 2, D: 5, H: 1}, {T: 5, B: 1, D: 7, H: 37},
			{T: 4, B: 3, D: 33, H: 37}, {T: 6, B: 5, D: 12, H: 8}, {T: 3, B: 17, D: 20, H: 36},
			{T: 1, B: 4, D: 16, H: 64}, {T: 40, B: 5, D: 3, H: 4}, {T: 2, B: 3, D: 70, H: 12},
		} {
			s.Cell = cell
			all = append(all, newRecurrentProblem(s, i%2 == 0, random),
				newRecurrentProblem(s, i%2 != 0, random))
			if i%3 == 0 {
				all = append(all, newRecurrentProblem(s, i%2 == 0, random).end(random))
			}
		}
	}
	return all
}

// agreement is how far a device may be from the CPU in a precision: element by element as a share
// of a tensor's largest value, and in the mean, over all problems, of a tensor's error as a share
// of its root of mean squares. Both devices of fp32 round alike but for the order of sums. In bf16
// both round the same operands but for float32's rounding, so that some fall to the other side of
// a boundary. The CPU has no tf32 and no fp16: these are held against its fp32, and must differ
// from it, or nothing would have been rounded.
type agreement struct {
	of             compute.Precision // the CPU's
	largest, share float64
	least          float64 // of the share
}

func agreements() map[compute.Precision]agreement {
	bf16 := 2e-5
	if !emulator.Running() {
		bf16 = truncatedBF16()
	}
	return map[compute.Precision]agreement{
		compute.FP32: {compute.FP32, 2e-5, 1e-6, 0},
		compute.BF16: {compute.BF16, 0x1p-7, bf16, 0},
		compute.TF32: {compute.FP32, 1e-2, 3e-4, 5e-5},
		compute.FP16: {compute.FP32, 4e-2, 8e-4, 2e-4},
	}
}

// truncatedBF16 is the share in bf16 on a GPU, whose tensor cores do not round sums. They add 16
// products and the sum so far at the largest exponent of the 17, and drop the bits below its 24th
// (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, 2021): each of
// the 17 loses 2^-24 of the largest, in the mean. A sum of k terms is then off by
// d = k/16 17 2^-24 of its size. Rounded to bf16, whose numbers are u = 2^-8 apart, it falls to the
// other side of a boundary with probability 2 d/u, and is u off then: the root of the mean square
// is sqrt(2 d/u) u = sqrt(2 d u). Operands that are not rounded at all would be u/(2 sqrt 3), more
// than twice as much, off.
func truncatedBF16() float64 {
	const k, u = 400, 0x1p-8 // k: of the widest layer's backward pass, 4 gates of 100 units
	const d = k / 16 * 17 * 0x1p-24
	return math.Sqrt(2 * d * u)
}

// off compares two tensors: the largest error as a share of the largest value, and the root of the
// mean squared error as one of that of the values.
func off(got, want []float32) (largest, share float64) {
	size, worst, errors, squares := 1e-3, 0.0, 0.0, 0.0
	for i, v := range want {
		e := math.Abs(float64(got[i]) - float64(v))
		if math.IsNaN(e) {
			return math.Inf(1), math.Inf(1)
		}
		worst, size = max(worst, e), max(size, math.Abs(float64(v)))
		errors, squares = errors+e*e, squares+float64(v)*float64(v)
	}
	if squares == 0 {
		return worst / size, 0
	}
	return worst / size, math.Sqrt(errors / squares)
}

func newCPU(t *testing.T, p compute.Precision) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Config{Threads: 1, Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// newGPU opens the device.
func newGPU(t testing.TB, p compute.Precision) *Device {
	t.Helper()
	d, err := New(Config{Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// overSteps makes layers over the recurrence of one product a step.
func (d *Device) overSteps(s compute.RecurrentShape, inference bool) compute.Recurrent {
	return newRecurrent(d, s, inference, newSteps)
}

// agree holds a device's layers against the CPU's.
func agree(t *testing.T, p compute.Precision, d *Device, newLayer newLayerOf,
	problems []*recurrentProblem) {
	t.Helper()
	a := agreements()[p]
	host := newCPU(t, a.of)
	sum, n, most := 0.0, 0, 0.0
	for _, problem := range problems {
		want := problem.results(host, host.NewRecurrent)
		for i, got := range problem.results(d, newLayer) {
			largest, share := off(got.values, want[i].values)
			sum, n, most = sum+share, n+1, max(most, largest)
			if !(largest <= a.largest) {
				t.Errorf("%s: %s: largest error %.2g of the largest value", problem.name(),
					got.name, largest)
			}
		}
	}
	t.Logf("largest error %.2g, mean share %.2g", most, sum/float64(n))
	if mean := sum / float64(n); !(mean <= a.share && mean >= a.least) {
		t.Errorf("mean error %.2g of a tensor's size, want %.2g to %.2g", mean, a.least, a.share)
	}
}

// TestLayers holds every cell in every precision against compute/cpu: values, all gradients, dx,
// dstate, with and without dout, twice on one workspace, and inference in place.
func TestLayers(t *testing.T) {
	for p := range agreements() {
		t.Run(p.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			d := newGPU(t, p)
			agree(t, p, d, d.overSteps, recurrentProblems(random))
		})
	}
}

// TestLayersHeld does the same with W_hh in 16 bits, which a layer of this size would not keep.
func TestLayersHeld(t *testing.T) {
	for _, p := range []compute.Precision{compute.BF16, compute.FP16} {
		t.Run(p.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			d := newGPU(t, p)
			if d.gemm.blas == nil || d.queue.info.Major < 8 {
				t.Skip("there is no cuBLAS, or it is not asked for products of 16 bits")
			}
			hold := func(s compute.RecurrentShape, inference bool) compute.Recurrent {
				return newRecurrent(d, s, inference,
					func(d *Device, s compute.RecurrentShape, inference bool) loop {
						l := makeSteps(d, s, inference, true)
						if l.held.hh == nil && s.Cell.HiddenGates() > 0 {
							t.Fatal("W_hh is not kept in 16 bits")
						}
						return l
					})
			}
			agree(t, p, d, hold, recurrentProblems(random))
		})
	}
	s := compute.RecurrentShape{T: 1, B: 1, D: 1, H: 1}
	if l := makeSteps(newGPU(t, compute.FP32), s, false, true); l.held.hh != nil {
		t.Error("W_hh is kept in 16 bits, which fp32 does not multiply")
	}
}

// TestLayersUnaligned has tensors that do not begin where four floats can be read at once.
func TestLayersUnaligned(t *testing.T) {
	random, d := rand.New(rand.NewPCG(13, 14)), newGPU(t, compute.FP32)
	var problems []*recurrentProblem
	for _, cell := range compute.Cells() {
		p := newRecurrentProblem(compute.RecurrentShape{Cell: cell, T: 4, B: 5, D: 8, H: 12},
			cell%2 == 0, random)
		p.shift = 1
		problems = append(problems, p)
	}
	agree(t, compute.FP32, d, d.overSteps, problems)
}

// TestLayerMemory wants a layer's memory back, and of one that does not fit what it had taken.
func TestLayerMemory(t *testing.T) {
	d, random := newGPU(t, compute.BF16), rand.New(rand.NewPCG(15, 16))
	p := newRecurrentProblem(compute.RecurrentShape{Cell: compute.GRU, T: 4, B: 5, D: 8, H: 12},
		false, random)
	p.results(d, d.NewRecurrent) // from now on the scratch is there
	tensors, workspaces := d.memory.made()
	now, _ := d.Bytes()
	want := func(what string) {
		t.Helper()
		after, others := d.memory.made()
		bytes, _ := d.Bytes()
		if after != tensors || others != workspaces || bytes != now {
			t.Errorf("%s: %d tensors, %d workspaces, %d bytes are left; before there were %d, "+
				"%d, %d", what, after, others, bytes, tensors, workspaces, now)
		}
	}
	p.results(d, d.NewRecurrent)
	want("a layer that was closed")
	p.results(d, d.overSteps)
	want("a layer of steps that was closed")
	p.end(random).results(d, d.NewRecurrent)
	want("a layer with lengths that was closed")
	func() {
		defer func() {
			if e, ok := recover().(*compute.MemoryError); !ok || e.Bytes < 1<<40 {
				t.Errorf("a layer that does not fit: %v", e)
			}
		}()
		d.NewRecurrent(compute.RecurrentShape{Cell: compute.LSTM, T: 1 << 20, B: 1 << 10, D: 1,
			H: 1 << 10}, false)
	}()
	func() {
		defer func() {
			if got := recover(); got != "no memory for the loop" {
				t.Errorf("a loop that does not fit: %v", got)
			}
		}()
		newRecurrent(d, p.RecurrentShape, false, func(*Device, compute.RecurrentShape,
			bool) loop {
			panic("no memory for the loop")
		})
	}()
	want("layers that did not fit")
}

// TestSharedHalves has products of cuBLAS share their operands in 16 bits, and wants what they give
// without.
func TestSharedHalves(t *testing.T) {
	d, random := newGPU(t, compute.BF16), rand.New(rand.NewPCG(41, 42))
	s := compute.RecurrentShape{T: 2, B: 256, D: 512, H: 704}
	for _, s.Cell = range []compute.Cell{compute.LSTM, compute.GRU} {
		p := newRecurrentProblem(s, true, random)
		m := newLayerMemory(d, p)
		l := newRecurrent(d, s, false, newLoop)
		if !l.sharesHalves() {
			t.Skip("this test needs cuBLAS")
		}
		sums := func(shared bool) []float32 {
			l.inference = !shared
			l.inputSums(m.w, m.in, 0)
			act := make([]float32, s.T*s.B*l.wide)
			d.Download(act, floats(l.tape.act, len(act)))
			return act
		}
		apart := sums(false)
		wantSame(t, "the input's sums", sums(true), apart)
		act, h := numbers(s.T*s.B*l.wide, 3), numbers(s.T*s.B*s.H, 5)
		gradients := func(copies func() layerHalves) []layerResult {
			d.Upload(floats(l.tape.act, len(act)), act)
			d.Upload(floats(l.tape.h, len(h)), h)
			if l.tape.q != nil {
				d.Upload(floats(l.tape.q, len(h)), h)
			}
			l.weights, l.input = m.w, m.in
			l.gradients(m.dw, m.dx, copies())
			return m.read(m.backwards)
		}
		got := gradients(l.roundGradient)
		want := gradients(func() layerHalves { return layerHalves{} })
		for i := range want {
			wantSame(t, want[i].name, got[i].values, want[i].values)
		}
		l.Close()
		m.close()
	}
}

// TestFrequentTokens sums more rows of a token than one thread does, of tokens that are one tile's
// and several's.
func TestFrequentTokens(t *testing.T) {
	random, d := rand.New(rand.NewPCG(3, 4)), newGPU(t, compute.FP32)
	agree(t, compute.FP32, d, d.overSteps, []*recurrentProblem{
		newRecurrentProblem(compute.RecurrentShape{Cell: compute.GRU, T: 70, B: 9, D: 40, H: 15},
			false, random),
		newRecurrentProblem(compute.RecurrentShape{Cell: compute.GRU, T: 70, B: 9, D: 28, H: 15},
			false, random),
		newRecurrentProblem(compute.RecurrentShape{Cell: compute.LSTM, T: 35, B: 2, D: 70, H: 9},
			false, random),
		newRecurrentProblem(compute.RecurrentShape{Cell: compute.LSTM, T: 64, B: 4, D: 1, H: 9},
			false, random)})
}

// TestLayersAgain wants the same bits of a second run.
func TestLayersAgain(t *testing.T) {
	for _, p := range []compute.Precision{compute.FP32, compute.BF16} {
		d, random := newGPU(t, p), rand.New(rand.NewPCG(5, 6))
		for _, cell := range compute.Cells() {
			for _, dense := range []bool{false, true} {
				problem := newRecurrentProblem(compute.RecurrentShape{Cell: cell, T: 20, B: 7,
					D: 9, H: 20}, dense, random)
				first := problem.results(d, d.overSteps)
				for i, again := range problem.results(d, d.overSteps) {
					if !slices.EqualFunc(first[i].values, again.values, sameBits) {
						t.Errorf("%v: %s: %s differs from run to run", p, problem.name(),
							again.name)
					}
				}
			}
		}
	}
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// TestLayerReplay records a segment, there and back, and wants of its replays, on other ids, rows,
// lengths and weights, the bits of the calls themselves.
func TestLayerReplay(t *testing.T) {
	d := newGPU(t, compute.BF16)
	for _, cell := range compute.Cells() {
		for _, dense := range []bool{false, true} {
			replays(t, d, d.NewRecurrent, cell, dense)
			replays(t, d, d.overSteps, cell, dense)
			for _, steps := range []int{1, 12} {
				replaysInference(t, d, cell, dense, steps)
			}
		}
	}
}

func replays(t *testing.T, d *Device, newLayer newLayerOf, cell compute.Cell, dense bool) {
	t.Helper()
	random := rand.New(rand.NewPCG(11, uint64(cell)))
	s := compute.RecurrentShape{Cell: cell, T: 12, B: 4, D: 6, H: 12}
	p := newMixedProblem(s, dense, random)
	p.withDout, p.withDx = true, true
	m, l := newLayerMemory(d, p), newLayer(s, false)
	defer m.close()
	defer l.Close()
	m.forward(l) // what is made by the first call is there when it is recorded
	m.backward(l)
	r, err := d.Record(func() error {
		m.forward(l)
		m.backward(l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		next := newMixedProblem(s, dense, random)
		next.withDout, next.withDx = true, true
		want := next.results(d, newLayer)
		m.put(next)
		r.Replay()
		for i, got := range m.read(slices.Concat(m.forwards, m.backwards)) {
			if !slices.EqualFunc(got.values, want[i].values, sameBits) {
				t.Errorf("%s: a replay's %s differs", p.name(), got.name)
			}
		}
	}
}

// replaysInference is replays of an inference that carries its state in place.
func replaysInference(t *testing.T, d *Device, cell compute.Cell, dense bool, steps int) {
	t.Helper()
	random := rand.New(rand.NewPCG(13, uint64(cell)))
	s := compute.RecurrentShape{Cell: cell, T: steps, B: 4, D: 6, H: 12}
	p := newMixedProblem(s, dense, random)
	p.withDout = true
	m, l := newLayerMemory(d, p), d.NewRecurrent(s, true)
	defer m.close()
	defer l.Close()
	forward := func() error {
		l.Forward(m.w, m.in, m.state, m.y, m.state)
		return nil
	}
	_ = forward()
	r, err := d.Record(forward)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		next := newMixedProblem(s, dense, random)
		next.withDout = true
		want := next.results(d, d.NewRecurrent)
		m.put(next)
		r.Replay()
		got := m.read([]layerResult{{"y", m.y}, {"h", m.state.H}, {"c", m.state.C}})
		for i, want := range want[len(want)-len(got):] {
			if !slices.EqualFunc(got[i].values, want.values, sameBits) {
				t.Errorf("%v, %d steps: a replay's %s differs", cell, steps, want.name)
			}
		}
	}
}

// TestLayerInParts wants of inference with room for few steps at once what one with room for all
// computes.
func TestLayerInParts(t *testing.T) {
	for _, c := range []struct{ T, stepBytes, want int }{
		{12, 1, 12}, {12, inferenceBytes / 5, 4}, {7, inferenceBytes / 5, 1},
		{1, 2 * inferenceBytes, 1}, {6, 2 * inferenceBytes, 1}, {6, inferenceBytes / 6, 6},
	} {
		if got := stepsAtOnce(c.T, c.stepBytes); got != c.want {
			t.Errorf("%d steps of %d bytes: %d at once, want %d", c.T, c.stepBytes, got, c.want)
		}
	}
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(7, 8))
	for _, cell := range compute.Cells() {
		for _, dense := range []bool{false, true} {
			p := newMixedProblem(compute.RecurrentShape{Cell: cell, T: 6, B: 3, D: 5, H: 7},
				dense, random)
			whole := p.results(d, d.overSteps)
			parts := func(s compute.RecurrentShape, inference bool) compute.Recurrent {
				l := newRecurrent(d, s, inference, newSteps)
				if inference {
					l.loop.(*steps).T, l.steps = 2, 2 // in memory that has room for six
				}
				return l
			}
			inParts := p.results(d, parts)
			for i, got := range inParts {
				if largest, _ := off(got.values, whole[i].values); !(largest <= 1e-6) {
					t.Errorf("%s: %s: error %.2g in parts", p.name(), got.name, largest)
				}
			}
		}
	}
}

// TestLayerDifferences holds gradients against central differences of the inner product of y, h_T
// and c_T with fixed directions, in float32.
func TestLayerDifferences(t *testing.T) {
	const step, tolerance = 1.0 / 128, 4e-3
	d := newGPU(t, compute.FP32)
	for _, cell := range compute.Cells() {
		s := compute.RecurrentShape{Cell: cell, T: 3, B: 2, D: 3, H: 4}
		p := newRecurrentProblem(s, true, rand.New(rand.NewPCG(9, uint64(cell))))
		p.withDout, p.withDx = true, true
		m := newLayerMemory(d, p)
		l := d.overSteps(s, false)
		m.forward(l)
		m.backward(l)
		loss := func() float64 {
			m.forward(l)
			sum := 0.0
			for _, r := range m.read(m.forwards) {
				with := map[string][]float32{"y": p.dy, "h_T": p.dout.H, "c_T": p.dout.C}
				for i, v := range r.values {
					sum += float64(v) * float64(with[r.name][i])
				}
			}
			return sum
		}
		at := [][]float32{m.w.IH, m.w.HH, m.w.BiasIH, m.w.BiasHH, m.w.Peephole, m.in.X, m.state.H,
			m.state.C}
		for k, gradient := range m.read(m.backwards) {
			host := make([]float32, len(at[k]))
			if len(host) == 0 || cell == compute.Clockwork && gradient.name == "dc_0" {
				continue // Clockwork's c counts steps: it has no gradient
			}
			d.Download(host, at[k])
			for i, x := range host {
				lossAt := func(x float32) float64 {
					host[i] = x
					d.Upload(at[k], host)
					return loss()
				}
				want := (lossAt(x+step) - lossAt(x-step)) / (2 * step)
				lossAt(x)
				if e := math.Abs(float64(gradient.values[i]) - want); !(e <= tolerance) {
					t.Errorf("%v: %s[%d] is %g, the difference %g", cell, gradient.name, i,
						gradient.values[i], want)
				}
			}
		}
		l.Close()
		m.close()
	}
}

// TestLayerChecks wants panics that name what does not fit.
func TestLayerChecks(t *testing.T) {
	d := newGPU(t, compute.FP32)
	s := compute.RecurrentShape{Cell: compute.GRU, T: 2, B: 3, D: 4, H: 5}
	p := newRecurrentProblem(s, false, rand.New(rand.NewPCG(1, 1)))
	m := newLayerMemory(d, p)
	l, inference := d.NewRecurrent(s, false), d.NewRecurrent(s, true)
	for _, c := range []struct {
		want string
		call func()
	}{
		{"shape", func() { d.NewRecurrent(compute.RecurrentShape{T: 1, B: 1, D: 0, H: 1}, false) }},
		{"exactly one", func() { l.Forward(m.w, compute.RecurrentInput{}, m.state, m.y, m.out) }},
		{"ids has 1 elements", func() {
			l.Forward(m.w, compute.RecurrentInput{IDs: []int32{0}}, m.state, m.y, m.out)
		}},
		{"one-hot input", func() {
			ids := []int32{0, 1, 2, 4, 0, 0}
			l.Forward(m.w, compute.RecurrentInput{IDs: ids}, m.state, m.y, m.out)
		}},
		{"weight HH", func() {
			w := m.w
			w.HH = w.HH[1:]
			l.Forward(w, m.in, m.state, m.y, m.out)
		}},
		{"state out H", func() { l.Forward(m.w, m.in, m.state, m.y, compute.RecurrentState{}) }},
		{"without a Forward", func() { m.backward(l) }},
		{"inference: true", func() {
			m.forward(inference)
			m.backward(inference)
		}},
		{"dx of token ids", func() {
			m.forward(l)
			l.Backward(m.dy, m.dout, m.dw, d.Alloc(2*3*4), m.dstate)
		}},
		{"dout H", func() {
			m.forward(l)
			l.Backward(m.dy, compute.RecurrentState{H: m.dy}, m.dw, nil, m.dstate)
		}},
	} {
		func() {
			defer func() {
				if s := fmt.Sprint(recover()); !strings.Contains(s, c.want) {
					t.Errorf("panic %q, want one with %q", s, c.want)
				}
			}()
			c.call()
		}()
	}
	l.Close()
	inference.Close()
}
