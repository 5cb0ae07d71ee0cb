package model

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// stackable is a recurrent layer of a labeller: a Layer, or a bidirectional.
type stackable interface {
	Apply(x, w *gorgonia.Node) (*gorgonia.Node, error)
	run(w []float32, x compute.RecurrentInput)
	output() *buffer
	Close()
}

// reversal reverses each example within its own length: a permutation of the rows of [T, B], its
// own inverse, that leaves padding where it is.
type reversal []int32

// load sets the permutation for examples of these lengths, [B].
func (r reversal) load(lengths []int32) {
	B := len(lengths)
	for row := range r {
		r[row] = int32(row)
		if t, b := row/B, row%B; t < int(lengths[b]) {
			r[row] = int32((int(lengths[b])-1-t)*B + b)
		}
	}
}

// bidirectional is a recurrent layer of two directions as one Gorgonia operator: y: [T, B, W] has
// the forward direction's output in its first columns. It is one operator because Gorgonia would
// add the two gradients of x in memory of its own.
//
// The second direction is a Layer that runs over the reversed examples. In the direction of each
// run padding comes after the example, and the output's rows there have no gradient, so it has no
// effect: these are the semantics of torch.nn.utils.rnn's packed sequences.
type bidirectional struct {
	name            string
	dev             compute.Device
	shape           compute.RecurrentShape // of the forward direction
	forward, second *Layer                 // both write y to the same memory
	order           reversal               // set before a run

	y        *buffer   // [T, B, W]
	ids      []int32   // [T, B]: reversed token ids, if the input is ids
	reversed []float32 // [T, B, D]: reversed rows of x, or nil
	dx       *buffer   // [T, B, D]; nil if the input is ids
	skip     *skip     // around the layer; nil: none
	// spare is memory of dy, [T, B, D]. Once each direction has its part of dy, it takes the second
	// direction's gradient of x.
	spare []float32
	dw    *tensor.Dense // gradient of the weights: the forward direction's, then the second one's
}

// copyHalf copies a direction's columns of y, or of dy, to or from one: [T, B, its width].
func (l *bidirectional) copyHalf(y []float32, of *Layer, order reversal, toY bool) {
	part, one := compute.Columns{X: y, Stride: l.forward.shape.H + l.second.shape.H},
		packed(of.y.flat, of.shape.H)
	if of == l.second {
		part.At = l.forward.shape.H
	}
	if toY {
		part, one = one, part
	}
	l.dev.CopyRows(one, part, len(l.order), of.shape.H, order, false)
}

// packed are the columns of a matrix of this width.
func packed(x []float32, width int) compute.Columns { return compute.Columns{X: x, Stride: width} }

func (l *bidirectional) output() *buffer { return l.y }

// Apply adds the layer to the graph of x and w, as Layer.Apply does.
func (l *bidirectional) Apply(x, w *gorgonia.Node) (*gorgonia.Node, error) {
	forward := &operator{name: l.name, shape: l.y.value.Shape().Clone(),
		wrt: []bool{l.dx != nil, true}, gradient: l.differentiate,
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			x, w, err := layerInputs(in, l.shape, l.dx == nil, l.dw.DataSize())
			if err != nil {
				return nil, err
			}
			l.run(w, x)
			return l.y.value, nil
		}}
	return forward.apply(x, w)
}

// run computes y from x, with the weights w.
func (l *bidirectional) run(w []float32, x compute.RecurrentInput) {
	split := len(l.forward.gradient)
	l.forward.run(w[:split:split], x)
	l.copyHalf(l.y.flat, l.forward, nil, true)
	l.second.run(w[split:], l.reverse(x))
	l.copyHalf(l.y.flat, l.second, l.order, true)
}

// reverse returns the reversed input.
func (l *bidirectional) reverse(x compute.RecurrentInput) compute.RecurrentInput {
	if x.IDs != nil {
		for i, row := range l.order {
			l.ids[i] = x.IDs[row]
		}
		return compute.RecurrentInput{IDs: l.ids}
	}
	D := l.shape.D
	l.dev.CopyRows(packed(l.reversed, D), packed(x.X, D), len(l.order), D, l.order, false)
	return compute.RecurrentInput{X: l.reversed}
}

func (l *bidirectional) differentiate(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes,
	error) {
	return differentiate(l.name, gorgonia.Nodes{in[0], in[1], y, dy}, l.dx, l.dw,
		func(in []gorgonia.Value, dx []float32) error {
			x, _, err := layerInputs(in, l.shape, dx == nil, l.dw.DataSize())
			if err != nil {
				return err
			}
			dy, err := floats(in[3], len(l.y.flat))
			if err == nil {
				l.backward(x, dy, dx)
				l.skip.add(dx)
			}
			return err
		})
}

// backward computes the gradients of the weights and, unless it is nil, dx.
func (l *bidirectional) backward(x compute.RecurrentInput, dy, dx []float32) {
	n, D := len(l.order), l.shape.D
	l.copyHalf(dy, l.forward, nil, false)
	l.forward.backward(l.forward.y.flat, dx)
	l.copyHalf(dy, l.second, l.order, false)
	if dx == nil {
		l.second.backward(l.second.y.flat, nil)
		return
	}
	if &dy[0] != &l.spare[0] {
		panic(fmt.Sprintf("model: %s is given %p, and overwrites %p", l.name, &dy[0], &l.spare[0]))
	}
	l.reverse(x) // other layers have used the memory since
	l.second.backward(l.second.y.flat, l.spare)
	l.dev.CopyRows(packed(dx, D), packed(l.spare, D), n, D, l.order, true)
}

// Close frees the layers' workspaces.
func (l *bidirectional) Close() {
	for _, d := range []*Layer{l.forward, l.second} {
		if d != nil {
			d.Close()
		}
	}
}
