package devicetest

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// NewStack makes a stack for a test.
type NewStack func(shapes []compute.RecurrentShape, dropout float32) compute.Stack

// testStacks has the device make stacks of shapes for which it does.
func testStacks(r *rig) {
	d, ok := r.dev.(compute.Stacker)
	if !ok {
		r.Skip("this device has layers one after the other")
	}
	made := 0
	Stacks(r.T, d, r.precision, r.random, func(shapes []compute.RecurrentShape,
		dropout float32) compute.Stack {
		s := d.NewStack(shapes, dropout)
		if s != nil {
			made++
		}
		return s
	})
	if made == 0 {
		r.Error("the device made no stack of any shape")
	}
	x := compute.RecurrentShape{Cell: compute.GRU, T: 2, B: 2, D: 3, H: 4}
	for what, f := range map[string]func(){
		"no layers":              func() { d.NewStack(nil, 0) },
		"dropout":                func() { d.NewStack([]compute.RecurrentShape{x}, 2) },
		"layers that do not fit": func() { d.NewStack([]compute.RecurrentShape{x, x}, 0) },
	} {
		r.panics(what, f)
	}
}

// Stacks holds what newStack makes against layers one after the other, each of which the suite
// holds against its oracle: there and back, twice; with dropout and without, token ids and rows,
// gradients of states and none; where the device records, from a recording too, with other tokens
// and masks. Where newStack returns nil there is nothing to hold. The bounds are of a precision.
func Stacks(t *testing.T, dev compute.Device, p compute.Precision, random *rand.Rand,
	newStack NewStack) {
	for i, cell := range []compute.Cell{compute.LSTM, compute.GRU, compute.RNNTanh, compute.LSTM} {
		s := compute.RecurrentShape{Cell: cell, T: 11 - 2*i, B: 3, D: 5, H: 24}
		dropout := float32(0.3)
		layers := 2
		switch i {
		case 1:
			s.B, dropout, layers = 17, 0, 3
		case 3: // so long that a wave is worth it
			s.T, s.B, s.H = 200, 1, 8
		}
		shapes := []compute.RecurrentShape{s}
		for range layers - 1 {
			s.D = s.H
			shapes = append(shapes, s)
		}
		problem := newStackProblem(dev, random, shapes, dropout, i%2 == 1)
		if made := newStack(shapes, dropout); made != nil {
			problem.hold(t, made, random, p, func(replay func()) { replay() })
			made.Close()
		}
	}
}

// StackOf holds one stack, of these shapes and dropout, as Stacks does those that it has made. Its
// first layer reads rows. What is looked at of a recording is what has come of it by the end of
// replays, which calls replay once or more.
func StackOf(t *testing.T, dev compute.Device, p compute.Precision, random *rand.Rand,
	shapes []compute.RecurrentShape, dropout float32, made compute.Stack,
	replays func(replay func())) {
	newStackProblem(dev, random, shapes, dropout, true).hold(t, made, random, p, replays)
}

// stackProblem is a stack with all that it reads, once for layers one after the other and once for
// the stack under test.
type stackProblem struct {
	name    string
	dev     compute.Device
	shapes  []compute.RecurrentShape
	dropout float32
	in      compute.RecurrentInput
	layers  []compute.StackLayer
	// dy is the gradient of what the last layer puts out; top is where the passes read it from.
	dy, top []float32
}

func newStackProblem(dev compute.Device, random *rand.Rand, shapes []compute.RecurrentShape,
	dropout float32, dense bool) *stackProblem {
	p := &stackProblem{name: fmt.Sprintf("%d layers, the last %+v, dropout %v, dense=%t",
		len(shapes), shapes[len(shapes)-1], dropout, dense), dev: dev, shapes: shapes,
		dropout: dropout}
	for l, s := range shapes {
		of := newLayerProblem(s, l > 0 || dense, dense, random)
		a := of.arguments(dev)
		if l == 0 {
			p.in = a.in
		}
		layer := compute.StackLayer{Weights: a.w, State: a.state, Out: of.likeState(dev),
			Y: junk(dev, len(of.dy)), Gradients: of.likeWeights(dev), DX: junk(dev, len(of.x)),
			DOut: a.dout}
		if dense {
			layer.DState = of.likeState(dev)
		}
		if l < len(shapes)-1 && dropout > 0 {
			layer.Keys = make([]uint64, s.B)
		}
		p.layers, p.dy = append(p.layers, layer), a.dy
	}
	p.top = junk(dev, len(p.dy))
	for l := 1; l < len(shapes); l++ { // two places in turn, as a model has them
		if down := len(shapes) - l; down%2 == 0 {
			p.layers[l].DX = p.top
		} else {
			p.layers[l].DX = p.layers[len(shapes)-1].DX
		}
	}
	return p
}

// draw has the host's part of the input be another.
func (p *stackProblem) draw(random *rand.Rand) {
	copy(p.in.IDs, ids(random, len(p.in.IDs), p.shapes[0].D))
	for _, a := range p.layers {
		for b := range a.Keys {
			a.Keys[b] = random.Uint64()
		}
	}
}

// hold wants of a stack what layers one after the other compute, and of a recording of it the same
// bits as of calls. The recordings replay in the order that the device gives their parts, which on
// an emulated one is another each time.
func (p *stackProblem) hold(t *testing.T, made compute.Stack, random *rand.Rand,
	precision compute.Precision, replays func(replay func())) {
	t.Helper()
	b := BoundsOf(precision)
	b.Element, b.Share = 4*b.Element, 4*b.Share // both have errors, and go through several layers
	one := newLayered(p.dev, p.shapes, p.dropout)
	defer one.Close()
	compared := NewComparison(t, b)
	for range 2 {
		p.both(t, one)
		want := p.results()
		p.both(t, made)
		for i, got := range p.results() {
			compared.Tensor(p.name, got.Tensor, got.Values, wide(want[i].Values))
		}
		p.draw(random)
	}
	compared.End()
	recorder, ok := p.dev.(compute.Recorder)
	if !ok {
		return
	}
	recording, err := recorder.Record(func() error { p.both(t, made); return nil })
	if err != nil {
		t.Fatalf("%s: recording: %v", p.name, err)
	}
	defer recording.Close()
	for range 4 {
		p.draw(random)
		p.both(t, made)
		want := p.results()
		p.spoil()
		replays(recording.Replay)
		for i, got := range p.results() {
			SameBits(t, p.name+" "+got.Tensor+" replayed", got.Values, want[i].Values)
		}
	}
}

// both asks for both passes, and wants to be told of the last layer first.
func (p *stackProblem) both(t *testing.T, s compute.Stack) {
	t.Helper()
	p.dev.Zero(p.top) // the layers below may leave their gradients there
	p.dev.Add(p.top, p.dy)
	s.Forward(p.in, p.layers)
	next := len(p.layers)
	s.Backward(p.top, p.layers, func(l int) {
		if next--; l != next {
			t.Errorf("%s: layer %d is done when %d should be", p.name, l, next)
		}
	})
	if next != 0 {
		t.Errorf("%s: %d layers are not done", p.name, next)
	}
}

// spoil makes all that is computed NaN.
func (p *stackProblem) spoil() {
	for _, x := range p.computed() {
		nan := make([]float32, len(x))
		for i := range nan {
			nan[i] = float32(math.NaN())
		}
		p.dev.Upload(x, nan)
	}
}

// results are all that the passes compute.
func (p *stackProblem) results() []Result {
	c := results{dev: p.dev, problem: p.name}
	for name, x := range p.computed() {
		c.add(name, x)
	}
	return c.all
}

// computed are all tensors that the passes compute, by name, in an order.
func (p *stackProblem) computed() iter.Seq2[string, []float32] {
	return func(yield func(string, []float32) bool) {
		for l, a := range p.layers {
			of := map[string][]float32{"y": a.Y, "h_T": a.Out.H, "c_T": a.Out.C,
				"dIH": a.Gradients.IH, "dHH": a.Gradients.HH, "dBiasIH": a.Gradients.BiasIH,
				"dBiasHH": a.Gradients.BiasHH, "dh_0": a.DState.H, "dc_0": a.DState.C}
			if l == 0 {
				of["dx"] = a.DX // the others' memory has been used again
			}
			for _, name := range slices.Sorted(maps.Keys(of)) {
				if of[name] != nil && !yield(fmt.Sprintf("%s of layer %d", name, l), of[name]) {
					return
				}
			}
		}
	}
}

// wide is x in float64.
func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
