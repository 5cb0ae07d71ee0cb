package model

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// Layer is a fused recurrent layer as a Gorgonia operator: one node computes T steps, and one
// node their gradient, with the kernels of a device. It composes with Gorgonia's own operators,
// which work in host memory, when the device is a CPU.
//
// The state that it starts from is zero, until Advance makes the state after the last run the
// next run's. Gradients do not flow between segments (truncated BPTT).
type Layer struct {
	name  string
	dev   compute.Device
	shape compute.RecurrentShape
	views []View

	kernel       compute.Recurrent
	input        compute.RecurrentInput
	in, out      compute.RecurrentState
	dout, dstate compute.RecurrentState // gradients of out and in; nil but in a chunk of a segment
	states       []float32              // in and out: [2, States, B, H]; nil when another's
	y            *buffer                // [T, B, H]
	dx           *buffer                // [T, B, D]; nil when the input is token ids

	gradient []float32     // of the weights, laid out as they are
	dw       *tensor.Dense // the same
	owned    *buffer       // the gradient's memory, when it is the layer's own
	// told is called with how many of the weights' tensors have their gradients, and how many rows
	// of the next, when these have been asked for: of a compute.Telling early. Nil: nothing.
	told    func(tensors, rows int)
	applied bool
}

// NewLayer makes a layer. The name is unique in its graph. Gradients of the weights are written
// to gradient: device memory of Span(LayerLayout(s)) floats, whose padding is left alone; nil
// makes the layer allocate it. Close frees the layer's memory.
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
	n := s.Cell.States() * s.B * s.H
	l.states = dev.Alloc(2 * n)
	l.in, l.out = cutState(s, l.states[:n]), cutState(s, l.states[n:])
	return l, nil
}

// newLayer makes a layer that writes to the given memory, and has no state of its own.
func newLayer(dev compute.Device, name string, s compute.RecurrentShape, gradient []float32,
	y *buffer) *Layer {
	return &Layer{name: name, dev: dev, shape: s, views: LayerLayout(s),
		kernel: dev.NewRecurrent(s, false), y: y, gradient: gradient,
		dw: dense(gradient, len(gradient))}
}

// cutState cuts [States, B, H] floats into a state.
func cutState(s compute.RecurrentShape, flat []float32) compute.RecurrentState {
	n := s.B * s.H
	state := compute.RecurrentState{H: flat[:n:n]}
	if s.Cell.States() == 2 {
		state.C = flat[n : 2*n : 2*n]
	}
	return state
}

// Apply adds the layer to the graph of x and w, and returns y: [T, B, H]. x is [T, B, D] float32,
// or [T, B] int32: token ids in [0, D), which stand for one-hot vectors and have no gradient.
// w is the weights as one vector, laid out as LayerLayout says; it feeds no other node, since
// Gorgonia may add up the gradients of one that does in the layer's own memory. A layer is
// applied once.
func (l *Layer) Apply(x, w *gorgonia.Node) (*gorgonia.Node, error) {
	s, ids := l.shape, false
	switch got := x.Shape(); {
	case x.Dtype() == tensor.Int32 && got.Eq(tensor.Shape{s.T, s.B}):
		ids = true
	case x.Dtype() == tensor.Float32 && got.Eq(tensor.Shape{s.T, s.B, s.D}):
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
	s := l.shape
	var err error
	if l.dx == nil {
		if l.input.IDs, err = tokenIDs(in[0], s.T*s.B); err != nil {
			return nil, err
		}
	} else if l.input.X, err = floats(in[0], s.T*s.B*s.D); err != nil {
		return nil, err
	}
	w, err := floats(in[1], len(l.gradient))
	if err != nil {
		return nil, err
	}
	l.kernel.Forward(recurrentWeights(l.views, w), l.input, l.in, l.y.flat, l.out)
	return l.y.value, nil
}

// differentiate adds one operator that computes every gradient. Its inputs include y, so that
// Gorgonia keeps y's memory and that of x until then.
func (l *Layer) differentiate(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	value, dx := l.dw, []float32(nil)
	if l.dx != nil {
		value, dx = l.dx.value, l.dx.flat
	}
	backward := &operator{name: l.name + ".backward", shape: value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			dy, err := floats(in[3], len(l.y.flat))
			if err != nil {
				return nil, err
			}
			l.backward(dy, dx)
			return value, nil
		}}
	n, err := backward.apply(in[0], in[1], y, dy)
	if err != nil || l.dx == nil {
		return gorgonia.Nodes{nil, n}, err
	}
	dw, err := port(l.name+".dw", n, l.dw)
	return gorgonia.Nodes{n, dw}, err
}

// backward runs the kernel's, and tells of the gradients of the weights.
func (l *Layer) backward(dy, dx []float32) {
	dw := recurrentWeights(l.views, l.gradient)
	if k, ok := l.kernel.(compute.Telling); ok && l.told != nil {
		k.BackwardTelling(dy, l.dout, dw, dx, l.dstate, l.told)
		return
	}
	l.kernel.Backward(dy, l.dout, dw, dx, l.dstate)
	if l.told != nil {
		l.told(len(l.views), 0)
	}
}

// Advance makes the state after the last run the state before the next.
func (l *Layer) Advance() { l.in, l.out = l.out, l.in }

// ZeroState makes the next run start from a state of zeros.
func (l *Layer) ZeroState() {
	l.dev.Zero(l.in.H)
	if l.in.C != nil {
		l.dev.Zero(l.in.C)
	}
}

// State is what the next run starts from, in device memory; Advance makes it another.
func (l *Layer) State() compute.RecurrentState { return l.in }

// Gradient is where the gradient of w is after a run, in device memory.
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
