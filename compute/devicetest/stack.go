package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
)

// stack is the smallest language model, composed of a device's calls by hand: recurrent layers over
// one-hot tokens, or over an embedding with dropout between the layers, and an output layer. Its
// tensors have PyTorch's names.
type stack struct {
	dev               compute.Device
	cell              compute.Cell
	T, B, V, E, H     int // E is 0 where tokens are one-hot
	names             []string
	weights, gradient map[string][]float32
	layers            []compute.Recurrent
	head              compute.Output
	embedded, dembed  []float32              // [T, B, E]
	y, dy             [][]float32            // of each layer, [T, B, H]
	before, after     compute.RecurrentState // the same for each layer, as in the trace
	ids, targets      []int32
	keys              [][]uint64 // of the lanes, after each layer but the last
	scale             float32
	behind            func() // called behind the loss of a step, before the gradients; or nil
}

// dropout is a stack's, where there is an embedding.
const dropout = 0.3

// newStack makes the layers; add gives it its weights.
func newStack(dev compute.Device, cell compute.Cell, layers, T, B, V, E, H int) *stack {
	n := T * B
	s := &stack{dev: dev, cell: cell, T: T, B: B, V: V, E: E, H: H, scale: 1 / float32(n),
		weights: map[string][]float32{}, gradient: map[string][]float32{},
		head:     dev.NewOutput(compute.OutputShape{N: n, H: H, V: V}),
		embedded: dev.Alloc(n * E), dembed: dev.Alloc(n * E),
		ids: make([]int32, n), targets: make([]int32, n)}
	for l := range layers {
		width := H
		if l == 0 {
			width = first(E, V)
		}
		s.layers = append(s.layers, compute.NewRecurrent(dev,
			compute.RecurrentShape{Cell: cell, T: T, B: B, D: width, H: H}, false))
		s.y, s.dy = append(s.y, dev.Alloc(n*H)), append(s.dy, dev.Alloc(n*H))
		s.keys = append(s.keys, make([]uint64, B))
	}
	for _, state := range []*compute.RecurrentState{&s.before, &s.after} {
		*state = compute.RecurrentState{H: dev.Alloc(B * H), C: dev.Alloc(B * H)}
	}
	return s
}

// first is the width of the first layer's input.
func first(E, V int) int {
	if E > 0 {
		return E
	}
	return V
}

// add gives the stack a tensor.
func (s *stack) add(name string, host []float32) {
	s.names = append(s.names, name)
	s.weights[name], s.gradient[name] = upload(s.dev, host), s.dev.Alloc(len(host))
}

// randomStack has weights and a segment that the source decides.
func randomStack(dev compute.Device, random *rand.Rand, cell compute.Cell, layers, E int) *stack {
	const T, B, V, H = 5, 4, 7, 33
	s := newStack(dev, cell, layers, T, B, V, E, H)
	draw := func(name string, n int) {
		s.add(name, narrow(normal(random, n, 0.6/math.Sqrt(H))))
	}
	wide := cell.Gates() * H
	for l := range layers {
		width := H
		if l == 0 {
			width = first(E, V)
		}
		draw(fmt.Sprintf("rnn.weight_ih_l%d", l), wide*width)
		hidden := cell.HiddenGates() * H
		if hidden > 0 {
			draw(fmt.Sprintf("rnn.weight_hh_l%d", l), hidden*H)
		}
		draw(fmt.Sprintf("rnn.bias_ih_l%d", l), wide)
		if hidden > 0 {
			draw(fmt.Sprintf("rnn.bias_hh_l%d", l), hidden)
		}
		if n := cell.Peepholes() * H; n > 0 {
			draw(fmt.Sprintf("rnn.%s_l%d", cell.Elementwise(), l), n)
		}
	}
	draw("output.weight", V*H)
	draw("output.bias", V)
	if E > 0 {
		draw("embedding.weight", V*E)
	}
	s.read(random)
	return s
}

// read draws another segment, and other masks.
func (s *stack) read(random *rand.Rand) {
	copy(s.ids, ids(random, len(s.ids), s.V))
	copy(s.targets, ids(random, len(s.targets), s.V+1))
	for i := range s.targets {
		s.targets[i]-- // some do not count
	}
	for _, keys := range s.keys {
		for b := range keys {
			keys[b] = random.Uint64()
		}
	}
}

func (s *stack) close() {
	for _, l := range s.layers {
		l.Close()
	}
	s.head.Close()
}

// of returns layer l's tensors.
func (s *stack) of(tensors map[string][]float32, l int) compute.RecurrentWeights {
	cell := s.cell
	name := func(part string) []float32 { return tensors[fmt.Sprintf("rnn.%s_l%d", part, l)] }
	return compute.RecurrentWeights{IH: name("weight_ih"), HH: name("weight_hh"),
		BiasIH: name("bias_ih"), BiasHH: name("bias_hh"), Peephole: name(cell.Elementwise())}
}

// drop is dropout after layer l, of x in place.
func (s *stack) drop(x []float32, l int) {
	if s.E > 0 && l < len(s.layers)-1 {
		s.dev.Dropout(x, x, s.T, dropout, s.keys[l])
	}
}

// forward computes the output layer's input.
func (s *stack) forward() []float32 {
	in := compute.RecurrentInput{IDs: s.ids}
	if s.E > 0 {
		s.dev.Embed(s.embedded, s.weights["embedding.weight"], s.ids)
		in = compute.RecurrentInput{X: s.embedded}
	}
	for l, layer := range s.layers {
		layer.Forward(s.of(s.weights, l), in, s.before, s.y[l], s.after)
		s.drop(s.y[l], l)
		in = compute.RecurrentInput{X: s.y[l]}
	}
	return in.X
}

// step asks for the gradients of scale times the loss.
func (s *stack) step() {
	top := len(s.layers) - 1
	s.head.ForwardBackward(s.forward(), s.weights["output.weight"], s.weights["output.bias"],
		s.targets, s.scale, s.dy[top], s.gradient["output.weight"], s.gradient["output.bias"])
	if s.behind != nil {
		s.behind()
	}
	for l := top; l >= 0; l-- {
		var dx []float32
		switch {
		case l > 0:
			dx = s.dy[l-1]
		case s.E > 0:
			dx = s.dembed
		}
		s.layers[l].Backward(s.dy[l], compute.RecurrentState{}, s.of(s.gradient, l), dx,
			compute.RecurrentState{})
		if l > 0 {
			s.drop(dx, l-1)
		}
	}
	if s.E > 0 {
		s.dev.Zero(s.gradient["embedding.weight"])
		s.dev.EmbedBackward(s.gradient["embedding.weight"], s.dembed, s.ids)
	}
}

// update updates all weights.
func (s *stack) update(u compute.Update) {
	for _, name := range s.names {
		s.dev.Update(u, s.weights[name], s.gradient[name], nil, nil)
	}
}

// turn makes a step's final state the next step's initial one.
func (s *stack) turn() { s.before, s.after = s.after, s.before }

// all is everything that a step computes, the loss first.
func (s *stack) all() []float32 {
	got := []float32{float32(s.head.Sum())}
	for _, name := range s.names {
		got = slices.Concat(got, get(s.dev, s.gradient[name]), get(s.dev, s.weights[name]))
	}
	return slices.Concat(got, get(s.dev, s.after.H), get(s.dev, s.after.C))
}

// testSlope walks along the gradient that a device computes. The loss must change as the gradient
// predicts, within the bend of rnn-relu's kinks and, where operands are rounded, the effect of
// rounding the weights.
func testSlope(r *rig) {
	tolerance, length := 3e-2, 4e-3
	if r.precision != compute.FP32 {
		tolerance, length = 5e-2, 5e-2
	}
	for _, cell := range compute.Cells() {
		// The same on every run, so that no run has a kink just there.
		s := randomStack(r.dev, rand.New(rand.NewPCG(1, 2)), cell, 2, 9)
		s.step()
		norm := 0.0
		from, along := map[string][]float32{}, map[string][]float32{}
		for _, name := range s.names {
			from[name], along[name] = get(r.dev, s.weights[name]), get(r.dev, s.gradient[name])
			norm += r.dev.SumSquares(s.gradient[name])
		}
		norm = math.Sqrt(norm)
		loss := func(by float64) float64 {
			for _, name := range s.names {
				moved := slices.Clone(from[name])
				for i, g := range along[name] {
					moved[i] += float32(by / norm * float64(g))
				}
				r.dev.Upload(s.weights[name], moved)
			}
			s.head.Forward(s.forward(), s.weights["output.weight"], s.weights["output.bias"],
				s.targets)
			return s.head.Sum() * float64(s.scale)
		}
		slope := (loss(length) - loss(-length)) / (2 * length)
		if e := math.Abs(slope/norm - 1); !(e <= tolerance) {
			r.Errorf("%v: the loss rises by %.6g along a gradient of %.6g: off by %.2g", cell,
				slope, norm, e)
		}
		s.close()
	}
}
