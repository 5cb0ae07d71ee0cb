package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"rondo/compute"
)

// deviceTolerance bounds a device's error against the reference in float64, as a share of the
// largest value of the tensor: float32 rounding over the longest sums here.
const deviceTolerance = 2e-5

// onISAs runs a test on every instruction set of this build, with a seed that it prints.
func onISAs(t *testing.T, test func(t *testing.T, d *Device, random *rand.Rand)) {
	seed := uint64(time.Now().UnixNano())
	for _, isa := range isas() {
		t.Run(isa, func(t *testing.T) {
			t.Logf("seed %d", seed)
			test(t, newDevice(t, isa), rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// narrow copies to device memory; nil stays nil.
func narrow(d *Device, x []float64) []float32 {
	if x == nil {
		return nil
	}
	y := d.Alloc(len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

func compare(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, want %d", what, len(got), len(want))
	}
	largest, worst, at := 1e-3, 0.0, 0
	for i, v := range want {
		largest = math.Max(largest, math.Abs(v))
		if e := worse(worst, math.Abs(float64(got[i])-v)); e > worst {
			worst, at = e, i
		}
	}
	if worst > deviceTolerance*largest {
		t.Errorf("%s[%d] of %d is %g, want %g: error %.2g of %.2g", what, at, len(got), got[at],
			want[at], worst, largest)
	}
}

// junk is device memory that holds NaN, for what a call must overwrite.
func junk(d *Device, n int) []float32 {
	x := d.Alloc(n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// TestLayers holds every cell on every instruction set against the reference, for random shapes
// around the sizes of blocks and tiles: values, all gradients, dx, dstate, with and without dout.
func TestLayers(t *testing.T) {
	onISAs(t, func(t *testing.T, d *Device, random *rand.Rand) {
		for trial := range 40 {
			s := compute.RecurrentShape{Cell: cells[trial%len(cells)].cell,
				T: 1 + random.IntN(12), B: 1 + random.IntN(67), D: 1 + random.IntN(67),
				H: 1 + random.IntN(67)}
			if trial >= 30 { // whole blocks, and more rows than one chunk of input
				s.T, s.B, s.D, s.H = 9, 16, 64, 64
			}
			dense, withDout := random.IntN(2) == 0, random.IntN(2) == 0
			name := fmt.Sprintf("%+v dense=%t dout=%t", s, dense, withDout)
			checkLayer(t, name, d, newProblem(s, dense, random), withDout)
		}
	})
}

func checkLayer(t *testing.T, name string, d *Device, p *problem, withDout bool) {
	t.Helper()
	if !withDout {
		clear(p.dout.h)
		clear(p.dout.c)
	}
	want := p.solve()
	weights := func(w refWeights[float64], make func(*Device, []float64) []float32,
	) compute.RecurrentWeights {
		return compute.RecurrentWeights{IH: make(d, w.ih), HH: make(d, w.hh),
			BiasIH: make(d, w.biasIH), BiasHH: make(d, w.biasHH)}
	}
	junkLike := func(d *Device, x []float64) []float32 {
		if x == nil {
			return nil
		}
		return junk(d, len(x))
	}
	w, dw := weights(p.w, narrow), weights(p.w, junkLike)
	in := compute.RecurrentInput{IDs: p.in.ids, X: narrow(d, p.in.x)}
	state := compute.RecurrentState{H: narrow(d, p.state.h), C: narrow(d, p.state.c)}
	var dout compute.RecurrentState
	if withDout {
		dout = compute.RecurrentState{H: narrow(d, p.dout.h), C: narrow(d, p.dout.c)}
	}
	likeState := func() compute.RecurrentState {
		return compute.RecurrentState{H: junkLike(d, p.state.h), C: junkLike(d, p.state.c)}
	}
	out, dstate, y := likeState(), likeState(), junk(d, len(p.dy))
	dx, dy := junkLike(d, p.in.x), narrow(d, p.dy)
	layer := d.NewRecurrent(p.shape, false)
	defer layer.Close()
	for range 2 { // the second time on a used workspace
		layer.Forward(w, in, state, y, out)
		layer.Backward(dy, dout, dw, dx, dstate)
	}
	compare(t, name+" y", y, want.y)
	compare(t, name+" h_T", out.H, want.out.h)
	compare(t, name+" c_T", out.C, want.out.c)
	compare(t, name+" dIH", dw.IH, want.dw.ih)
	compare(t, name+" dHH", dw.HH, want.dw.hh)
	compare(t, name+" dBiasIH", dw.BiasIH, want.dw.biasIH)
	compare(t, name+" dBiasHH", dw.BiasHH, want.dw.biasHH)
	compare(t, name+" dx", dx, want.dx)
	compare(t, name+" dh_0", dstate.H, want.dstate.h)
	compare(t, name+" dc_0", dstate.C, want.dstate.c)

	layer.Forward(w, in, state, y, out)
	layer.Backward(dy, dout, dw, nil, compute.RecurrentState{}) // nothing optional
	compare(t, name+" dHH alone", dw.HH, want.dw.hh)

	inference := d.NewRecurrent(p.shape, true)
	defer inference.Close()
	inference.Forward(w, in, state, y, state) // state out over state in
	compare(t, name+" y of inference", y, want.y)
	compare(t, name+" state in place", state.H, want.out.h)
}

// TestLongSegment sums a weight's gradient over more rows than one pass takes.
func TestLongSegment(t *testing.T) {
	onISAs(t, func(t *testing.T, d *Device, random *rand.Rand) {
		s := compute.RecurrentShape{Cell: compute.GRU, T: 70, B: 23, D: 5, H: 33}
		checkLayer(t, "long", d, newProblem(s, true, random), false)
		checkLayer(t, "long ids", d, newProblem(s, false, random), false)
	})
}

// TestNaN puts one NaN into a weight; it must reach the output and the gradient.
func TestNaN(t *testing.T) {
	onISAs(t, func(t *testing.T, d *Device, random *rand.Rand) {
		for _, c := range cells {
			s := compute.RecurrentShape{Cell: c.cell, T: 3, B: 2, D: 3, H: 5}
			m := newStepModel(d, s, random)
			m.weights.HH[0] = float32(math.NaN())
			if loss := m.step(); !math.IsNaN(loss) {
				t.Errorf("%s: loss %v of a weight that is NaN", c.name, loss)
			}
			if sum := d.SumSquares(m.grads); !math.IsNaN(sum) {
				t.Errorf("%s: squared gradient %v of a weight that is NaN", c.name, sum)
			}
			m.close()
		}
	})
}

// TestOutput holds the output layer against the reference, in one and in several chunks.
func TestOutput(t *testing.T) {
	onISAs(t, func(t *testing.T, d *Device, random *rand.Rand) {
		values := func(n int) []float64 {
			x := make([]float64, n)
			for i := range x {
				x[i] = float64(float32(4*random.Float64() - 2))
			}
			return x
		}
		for trial := range 24 {
			s := compute.OutputShape{N: 1 + random.IntN(67), H: 1 + random.IntN(67),
				V: 1 + random.IntN(67)}
			chunk := s.N
			if trial%2 == 0 {
				chunk = 1 + random.IntN(s.N)
			}
			x, w, b := values(s.N*s.H), values(s.V*s.H), values(s.V)
			if trial%3 == 0 {
				b = nil
			}
			targets := make([]int32, s.N)
			for i := range targets {
				targets[i] = int32(random.IntN(s.V+1)) - 1
			}
			dx, dw := make([]float64, len(x)), make([]float64, len(w))
			var db []float64
			gdb := []float32(nil)
			if b != nil {
				db, gdb = make([]float64, len(b)), junk(d, len(b))
			}
			loss := newRefHead(s, plainRows[float64](), s.N).run(x, w, b, targets, 0.5, dx, dw, db)

			o := &output{shape: s, head: d.backend.newHead(s, chunk)}
			gx, gw, gb := narrow(d, x), narrow(d, w), narrow(d, b)
			gdx, gdw := junk(d, len(x)), junk(d, len(w))
			name := fmt.Sprintf("%+v chunk=%d", s, chunk)
			if got := o.Forward(gx, gw, gb, targets); !(math.Abs(got-loss) <= 1e-5*(1+loss)) {
				t.Errorf("%s: loss %v, want %v", name, got, loss)
			}
			got := o.ForwardBackward(gx, gw, gb, targets, 0.5, gdx, gdw, gdb)
			if !(math.Abs(got-loss) <= 1e-5*(1+loss)) {
				t.Errorf("%s: loss %v, want %v", name, got, loss)
			}
			compare(t, name+" dx", gdx, dx)
			compare(t, name+" dw", gdw, dw)
			compare(t, name+" db", gdb, db)
			o.Close()
		}
	})
}

// TestStepAllocates says that a training step allocates nothing once it has run.
func TestStepAllocates(t *testing.T) {
	d := newDevice(t, "")
	for _, c := range cells {
		s := compute.RecurrentShape{Cell: c.cell, T: 3, B: 2, D: 7, H: 9}
		m := newStepModel(d, s, rand.New(rand.NewPCG(1, 2)))
		if n := testing.AllocsPerRun(20, func() { m.step() }); n != 0 {
			t.Errorf("%s: %v allocations a step", c.name, n)
		}
		m.close()
	}
}
