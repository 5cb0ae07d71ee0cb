package devicetest

import (
	"math"
	"slices"

	"rondo/compute"
)

// testLayers compares every cell with the oracle: values and all gradients, with and without
// optional arguments, and inference.
func testLayers(r *rig) {
	compared := NewComparison(r, BoundsOf(r.precision))
	for _, p := range layerProblems(r.random, r.Trials, r.Layers) {
		want := p.solve(r.precision)
		for _, got := range append(p.run(r.dev), p.runReporting(r.dev)...) {
			compared.Tensor(p.name, got.Tensor, got.Values, want[got.Tensor])
		}
	}
	compared.End()
}

// testSegments cuts a segment into two that carry the state, and into steps of inference with the
// state in place, as in generation. The results must be those of the whole segment.
func testSegments(r *rig) {
	compared := NewComparison(r, BoundsOf(r.precision))
	for _, cell := range compute.Cells() {
		s := compute.RecurrentShape{Cell: cell, T: 6, B: 5, D: 9, H: 21}
		for _, dense := range []bool{false, true} {
			p := newLayerProblem(s, dense, false, r.random)
			want := p.solve(r.precision)["y"]
			y := junk(r.dev, len(p.dy))
			p.inParts(r.dev, 2, training, y)
			compared.Tensor(p.name, "y of two segments", get(r.dev, y), want)
			y = junk(r.dev, len(p.dy))
			p.inParts(r.dev, s.T, inference, y)
			compared.Tensor(p.name, "y of single steps", get(r.dev, y), want)
			kept := junk(r.dev, len(p.dy))
			p.inParts(r.dev, s.T, keeping, kept)
			if !slices.Equal(get(r.dev, kept), get(r.dev, y)) {
				r.Errorf("%s: other bits with weights that are kept", p.name)
			}
		}
	}
	compared.End()
}

// Uses of a layer: keeping is inference with weights that are kept.
const (
	training = iota
	inference
	keeping
)

// inParts runs forward over the segment in parts parts, one after the other.
func (p *layerProblem) inParts(dev compute.Device, parts, use int, y []float32) {
	s := p.shape
	s.T /= parts
	layer := dev.NewRecurrent(s, use != training)
	defer layer.Close()
	if keeper, ok := layer.(compute.WeightKeeper); ok && use == keeping {
		keeper.KeepWeights()
	}
	a, next := p.arguments(dev), p.likeState(dev)
	for i := range parts {
		in, n := compute.RecurrentInput{}, s.T*s.B
		if p.ids != nil {
			in.IDs = append(in.IDs, p.ids[i*n:(i+1)*n]...)
		} else {
			in.X = a.in.X[i*n*s.D : (i+1)*n*s.D]
		}
		out := next
		if use != training {
			out = a.state
		}
		layer.Forward(a.w, in, a.state, y[i*n*s.H:(i+1)*n*s.H], out)
		clear(in.IDs) // nothing comes back to them
		if use == training {
			a.state, next = next, a.state
		}
	}
}

// testOrder expects a panic of a Backward without its own Forward before it.
func testOrder(r *rig) {
	for _, cell := range compute.Cells() {
		s := compute.RecurrentShape{Cell: cell, T: 2, B: 2, D: 3, H: 4}
		p := newLayerProblem(s, false, false, r.random)
		a, out, y := p.arguments(r.dev), p.likeState(r.dev), junk(r.dev, len(p.dy))
		backward := func(layer compute.Recurrent) {
			layer.Backward(a.dy, a.dout, p.likeWeights(r.dev), nil, compute.RecurrentState{})
		}
		layer := r.dev.NewRecurrent(p.shape, false)
		r.panics("Backward first", func() { backward(layer) })
		layer.Forward(a.w, a.in, a.state, y, out)
		backward(layer)
		r.panics("a second Backward", func() { backward(layer) })
		layer.Close()
		inference := r.dev.NewRecurrent(p.shape, true)
		inference.Forward(a.w, a.in, a.state, y, out)
		r.panics("Backward of inference", func() { backward(inference) })
		inference.Close()
	}
}

// testLayerNaN puts one NaN into a weight; it must reach the output and the gradients.
func testLayerNaN(r *rig) {
	for _, cell := range compute.Cells() {
		s := compute.RecurrentShape{Cell: cell, T: 3, B: 2, D: 3, H: 5}
		for _, dense := range []bool{false, true} {
			p := newLayerProblem(s, dense, false, r.random)
			weights, gradient := p.hh, "dHH"
			if len(weights) == 0 {
				weights, gradient = p.biasIH, "dBiasIH"
			}
			weights[r.random.IntN(len(weights))] = math.NaN()
			for _, got := range p.run(r.dev) {
				if got.Tensor != "y" && got.Tensor != gradient {
					continue
				}
				if finite(got.Values) {
					r.Errorf("%s: %s is finite with a weight that is NaN", p.name, got.Tensor)
				}
			}
		}
	}
}

func finite(x []float32) bool {
	for _, v := range x {
		if v-v != 0 {
			return false
		}
	}
	return true
}

// testShapes expects wrong shapes to panic before any work.
func testShapes(r *rig) {
	d := r.dev
	x := func(n int) []float32 { return d.Alloc(n) }
	p := newLayerProblem(compute.RecurrentShape{Cell: compute.LSTM, T: 2, B: 2, D: 3, H: 4}, false,
		false, r.random)
	a, out, y := p.arguments(d), p.likeState(d), junk(d, len(p.dy))
	layer := d.NewRecurrent(p.shape, false)
	defer layer.Close()
	output := d.NewOutput(compute.OutputShape{N: 2, H: 3, V: 4})
	defer output.Close()
	clipper := d.NewClipper()
	defer clipper.Close()
	short := a.w
	short.HH = short.HH[1:]
	for what, f := range map[string]func(){
		"Upload":          func() { d.Upload(x(3), make([]float32, 2)) },
		"Download":        func() { d.Download(make([]float32, 2), x(3)) },
		"Gemm":            func() { d.Gemm(false, false, 2, 2, 2, 1, x(4), x(4), 0, x(3)) },
		"AddBias":         func() { d.AddBias(x(5), x(2)) },
		"Embed":           func() { d.Embed(x(4), x(6), []int32{0, 3}) },
		"EmbedBackward":   func() { d.EmbedBackward(x(6), x(4), []int32{0, -1}) },
		"Dropout's steps": func() { d.Dropout(x(6), x(6), 2, 0.5, []uint64{1, 2}) },
		"Dropout's p":     func() { d.Dropout(x(6), x(6), 3, 1.5, []uint64{1, 2}) },
		"Clip":            func() { clipper.Clip(x(2), &compute.Clip{Limit: -1}, nil) },
		"Clip's update": func() {
			clipper.Update(&compute.Update{Optimizer: compute.Momentum}, x(2), x(2), nil, nil)
		},
		"Add": func() { d.Add(x(2), x(3)) },
		"Update": func() {
			d.Update(compute.Update{Optimizer: compute.Adam, Step: 1}, x(2), x(2), x(2), nil)
		},
		"layer": func() { d.NewRecurrent(compute.RecurrentShape{T: 1, B: 1, D: 1}, false) },
		"cell": func() {
			unknown := compute.Cell(len(compute.Cells()))
			d.NewRecurrent(compute.RecurrentShape{Cell: unknown, T: 1, B: 1, D: 1, H: 1}, true)
		},
		"weights": func() { layer.Forward(short, a.in, a.state, y, out) },
		"no input": func() {
			layer.Forward(a.w, compute.RecurrentInput{}, a.state, y, out)
		},
		"two inputs": func() {
			layer.Forward(a.w, compute.RecurrentInput{IDs: p.ids, X: x(12)}, a.state, y, out)
		},
		"ids": func() {
			layer.Forward(a.w, compute.RecurrentInput{IDs: []int32{0, 1, 2, 3}}, a.state, y, out)
		},
		"lengths": func() {
			in := compute.RecurrentInput{IDs: p.ids, Lengths: []int32{1}}
			layer.Forward(a.w, in, a.state, y, out)
		},
		"a length": func() {
			in := compute.RecurrentInput{IDs: p.ids, Lengths: []int32{3, 1}}
			layer.Forward(a.w, in, a.state, y, out)
		},
		"state": func() {
			layer.Forward(a.w, a.in, compute.RecurrentState{H: a.state.H}, y, out)
		},
		"output layer": func() { d.NewOutput(compute.OutputShape{N: 1, V: 1}) },
		"targets":      func() { output.Forward(x(6), x(12), nil, []int32{0}) },
		"target":       func() { output.Forward(x(6), x(12), nil, []int32{0, 4}) },
		"output's db": func() {
			output.ForwardBackward(x(6), x(12), x(4), []int32{0, 1}, 1, x(6), x(12), nil)
		},
	} {
		r.panics(what, f)
	}
	for what, f := range r.sequenceShapes(x) {
		r.panics(what, f)
	}
}
