package model

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// Layer is a fused recurrent layer as a Gorgonia operator. One node computes T steps, another their
// gradient, with a device's kernels. On a CPU it combines with Gorgonia's own operators, which need
// host memory.
//
// A run starts from a zero state, until Advance continues from the state after the last run.
// Gradients do not flow between segments (truncated BPTT).
type Layer struct {
	name  string
	dev   compute.Device
	shape compute.RecurrentShape
	views []View

	kernel       compute.Recurrent
	in, out      compute.RecurrentState
	dout, dstate compute.RecurrentState // gradients of out and in; nil outside of chunks
	lengths      []int32                // of rows, [B]; set before a run; nil: all have T steps
	states       []float32              // in and out: [2, States, B, H]; nil if not the layer's
	y            *buffer                // [T, B, H]
	dx           *buffer                // [T, B, D]; nil if the input is token ids
	rows         tensor.Shape           // of x and y in the graph; nil: [T, B]
	skip         *skip                  // around the layer; nil: none

	gradient []float32     // gradient of the weights, laid out as they are
	dw       *tensor.Dense // gradient as a tensor
	owned    *buffer       // memory of gradient if the layer allocated it; else nil
	// gradientReady is called when weight gradients have been queued: those of the first tensors,
	// and this many rows of the next one. It is called early if the kernel is a
	// compute.ProgressReporter. Nil: not called.
	gradientReady func(tensors, rows int)
	applied       bool
}

// NewLayer makes a layer. Its name must be unique in the graph. The weights' gradients go to
// gradient, device memory of Span(LayerLayout(s)) floats, whose padding is not written. If gradient
// is nil, the layer allocates it. Close frees the layer's memory.
func NewLayer(dev compute.Device, name string, s compute.RecurrentShape,
	gradient []float32) (*Layer, error) {
	if name == "" {
		return nil, errors.New("model: a layer needs a name, unique in its graph")
	}
	if !s.Cell.Known() {
		return nil, fmt.Errorf("model: layer %q: %d is not a cell", name, int(s.Cell))
	}
	if s.T < 1 || s.B < 1 || s.D < 1 || s.H < 1 {
		return nil, fmt.Errorf("model: layer %q: T %d, B %d, D %d and H %d must be at least 1",
			name, s.T, s.B, s.D, s.H)
	}
	span := Span(LayerLayout(s))
	if gradient != nil && len(gradient) != span {
		return nil, fmt.Errorf("model: layer %q: the gradient has %d floats, the weights %d",
			name, len(gradient), span)
	}
	var owned *buffer
	if gradient == nil {
		owned = newBuffer(dev, span)
		gradient = owned.flat
	}
	l := newLayer(dev, name, s, gradient, newBuffer(dev, s.T, s.B, s.H))
	l.owned = owned
	n := s.States() * s.B * s.H
	l.states = dev.Alloc(2 * n)
	l.in, l.out = cutState(s, l.states[:n]), cutState(s, l.states[n:])
	return l, nil
}

// newLayer makes a layer that writes to the given memory and has no state of its own.
func newLayer(dev compute.Device, name string, s compute.RecurrentShape, gradient []float32,
	y *buffer) *Layer {
	return &Layer{name: name, dev: dev, shape: s, views: LayerLayout(s),
		kernel: compute.NewRecurrent(dev, s, false), y: y, gradient: gradient,
		dw: dense(gradient, len(gradient))}
}

// cutState cuts [States, B, H] floats into a state.
func cutState(s compute.RecurrentShape, flat []float32) compute.RecurrentState {
	n := s.B * s.H
	state := compute.RecurrentState{H: flat[:n:n]}
	if s.Cell.States() == 2 {
		state.C = flat[n : 2*n : 2*n]
	}
	if s.Skip > 1 {
		state.Past = flat[s.Cell.States()*n : s.States()*n : s.States()*n]
	}
	return state
}

// Apply adds the layer to the graph of x and w, and returns y: [T, B, H]. x is [T, B, D] float32,
// or [T, B] int32: token ids in [0, D), which stand for one-hot vectors and have no gradient. w is
// the weight vector in the layout of LayerLayout. It must feed no other node, because Gorgonia
// would add that node's gradient in the layer's own memory. A layer can be applied only once.
func (l *Layer) Apply(x, w *gorgonia.Node) (*gorgonia.Node, error) {
	s, ids := l.shape, false
	rows := tensor.Shape{s.T, s.B}
	if l.rows != nil {
		rows = l.rows
	}
	switch got := x.Shape(); {
	case x.Dtype() == tensor.Int32 && got.Eq(rows):
		ids = true
	case x.Dtype() == tensor.Float32 && got.Eq(tensor.Shape{rows[0], rows[1], s.D}):
	default:
		return nil, fmt.Errorf("model: layer %q: x is %v of shape %v; want float32 [%d, %d, %d]"+
			" or int32 [%d, %d]", l.name, x.Dtype(), got, s.T, s.B, s.D, s.T, s.B)
	}
	if w.Dtype() != tensor.Float32 || !w.Shape().Eq(tensor.Shape{len(l.gradient)}) {
		return nil, fmt.Errorf("model: layer %q: w is %v of shape %v; want float32 [%d]",
			l.name, w.Dtype(), w.Shape(), len(l.gradient))
	}
	if l.applied {
		return nil, fmt.Errorf("model: layer %q is in a graph already", l.name)
	}
	l.applied = true
	if !ids && l.dx == nil {
		l.dx = newBuffer(l.dev, s.T, s.B, s.D)
	}
	forward := &operator{name: l.name, shape: l.y.value.Shape().Clone(), run: l.forward,
		wrt: []bool{!ids, true}, gradient: l.differentiate}
	return forward.apply(x, w)
}

// forward runs the kernel on x and w.
func (l *Layer) forward(in []gorgonia.Value) (gorgonia.Value, error) {
	x, w, err := layerInputs(in, l.shape, l.dx == nil, len(l.gradient))
	if err != nil {
		return nil, err
	}
	l.run(w, x)
	return l.y.value, nil
}

// layerInputs returns the memory of a layer's input and of its n weights.
func layerInputs(in []gorgonia.Value, s compute.RecurrentShape, ids bool, n int) (
	x compute.RecurrentInput, w []float32, err error) {
	if ids {
		x.IDs, err = tokenIDs(in[0], s.T*s.B)
	} else {
		x.X, err = floats(in[0], s.T*s.B*s.D)
	}
	if err == nil {
		w, err = floats(in[1], n)
	}
	return x, w, err
}

func (l *Layer) output() *buffer { return l.y }

// run computes y from x, with the weights w.
func (l *Layer) run(w []float32, x compute.RecurrentInput) {
	x.Lengths = l.lengths
	l.kernel.Forward(recurrentWeights(l.views, w), x, l.in, l.y.flat, l.out)
}

func (l *Layer) differentiate(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return differentiate(l.name, gorgonia.Nodes{in[0], in[1], y, dy}, l.dx, l.dw,
		func(in []gorgonia.Value, dx []float32) error {
			dy, err := floats(in[3], len(l.y.flat))
			if err == nil {
				l.backward(dy, dx)
				l.skip.add(dx)
			}
			return err
		})
}

// differentiate adds one operator that computes all gradients of a layer: of its input, unless dx
// is nil, and of its weights. in are the layer's input and weights, y and dy. y is among them so
// that Gorgonia keeps the memory of x and y until then.
func differentiate(name string, in gorgonia.Nodes, dx *buffer, dw *tensor.Dense,
	run func(in []gorgonia.Value, dx []float32) error) (gorgonia.Nodes, error) {
	value, flat := dw, []float32(nil)
	if dx != nil {
		value, flat = dx.value, dx.flat
	}
	backward := &operator{name: name + ".backward", shape: value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) { return value, run(in, flat) }}
	n, err := backward.apply(in...)
	if err != nil || dx == nil {
		return gorgonia.Nodes{nil, n}, err
	}
	weights, err := port(name+".dw", n, dw)
	return gorgonia.Nodes{n, weights}, err
}

// backward runs the kernel's backward pass, and reports the weights' gradients.
func (l *Layer) backward(dy, dx []float32) {
	dw := recurrentWeights(l.views, l.gradient)
	if k, ok := l.kernel.(compute.ProgressReporter); ok && l.gradientReady != nil {
		k.BackwardReporting(dy, l.dout, dw, dx, l.dstate, l.gradientReady)
		return
	}
	l.kernel.Backward(dy, l.dout, dw, dx, l.dstate)
	if l.gradientReady != nil {
		l.gradientReady(len(l.views), 0)
	}
}

// Advance continues the next run from the state after the last run.
func (l *Layer) Advance() { l.in, l.out = l.out, l.in }

// ZeroState starts the next run from a zero state.
func (l *Layer) ZeroState() {
	l.dev.Zero(l.in.H)
	if l.in.C != nil {
		l.dev.Zero(l.in.C)
	}
	if l.in.Past != nil {
		l.dev.Zero(l.in.Past)
	}
}

// State returns the state that the next run starts from, in device memory. It is valid until
// Advance.
func (l *Layer) State() compute.RecurrentState { return l.in }

// Gradient returns the gradient of w after a run, in device memory.
func (l *Layer) Gradient() []float32 { return l.gradient }

// Close frees the layer's memory.
func (l *Layer) Close() {
	if l.kernel == nil {
		return
	}
	l.kernel.Close()
	l.kernel = nil
	l.dev.Free(l.states)
	l.states = nil
	l.y.close()
	l.dx.close()
	l.owned.close()
}
