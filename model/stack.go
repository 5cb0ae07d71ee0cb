package model

import (
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// stack is all recurrent layers of a graph as one operator, and the dropout between them: of a
// device that computes layers beside each other.
type stack struct {
	kernel compute.Stack
	layers []compute.StackLayer // their states are set before a run
	ids    int                  // token ids that it reads; 0: rows
	y      *buffer              // of the last layer: [T, B, H]
	dx     *buffer              // of the first layer's input; nil for token ids
	dw     []*tensor.Dense      // of each layer's weights
	done   []func()             // called when a layer's have been asked for
}

// newStack makes the graph's layers as a stack, or returns nil where the device has them one after
// the other.
func (g *graph) newStack() *stack {
	m, c := g.model, g.model.config
	device, ok := m.dev.(compute.Stacker)
	if !ok || c.Layers < 2 {
		return nil
	}
	var shapes []compute.RecurrentShape
	for k := range c.Layers {
		shapes = append(shapes, c.layerShape(k, g.T, g.B))
	}
	s := &stack{kernel: device.NewStack(shapes, float32(c.Dropout)),
		y: cut(g.memory.hidden[c.Layers-1], g.T, g.B, c.Hidden)}
	if s.kernel == nil {
		return nil
	}
	if c.Embed > 0 {
		s.dx = g.downward(c.Layers, c.Embed)
	} else {
		s.ids = g.T * g.B
	}
	for k, shape := range shapes {
		begin, end := layerSpan(m.views, k)
		grads := g.grads[begin:end:end]
		layer := compute.StackLayer{Weights: g.weights.layers[k],
			Y:         cut(g.memory.hidden[k], g.T, g.B, c.Hidden).flat,
			Gradients: recurrentWeights(LayerLayout(shape), grads)}
		if k < len(g.keys) {
			layer.Keys = g.keys[k]
		}
		if k > 0 || s.dx != nil {
			layer.DX = g.downward(c.Layers-k, c.inputWidth(k)).flat
		}
		s.layers = append(s.layers, layer)
		s.dw = append(s.dw, dense(grads, len(grads)))
		s.done = append(s.done, g.finishing(layerName("bias_hh", k)))
	}
	return s
}

// apply adds the stack to the graph of x and every layer's weights, whose memory the layers have.
func (s *stack) apply(x *gorgonia.Node, weights gorgonia.Nodes) (*gorgonia.Node, error) {
	wrt := []bool{s.dx != nil}
	for range weights {
		wrt = append(wrt, true)
	}
	forward := &operator{name: "rnn", shape: s.y.value.Shape().Clone(), wrt: wrt,
		gradient: s.differentiate,
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			input, err := s.input(in[0])
			if err != nil {
				return nil, err
			}
			s.kernel.Forward(input, s.layers)
			return s.y.value, nil
		}}
	return forward.apply(append(gorgonia.Nodes{x}, weights...)...)
}

// input is x as the first layer reads it.
func (s *stack) input(x gorgonia.Value) (in compute.RecurrentInput, err error) {
	if s.dx == nil {
		in.IDs, err = tokenIDs(x, s.ids)
	} else {
		in.X, err = floats(x, len(s.dx.flat))
	}
	return in, err
}

// differentiate adds one operator that computes every gradient; see Layer.
func (s *stack) differentiate(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	value := s.dw[0]
	if s.dx != nil {
		value = s.dx.value
	}
	backward := &operator{name: "rnn.backward", shape: value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			dy, err := floats(in[len(in)-1], len(s.y.flat))
			if err != nil {
				return nil, err
			}
			s.kernel.Backward(dy, s.layers, func(layer int) { s.done[layer]() })
			return value, nil
		}}
	n, err := backward.apply(append(append(gorgonia.Nodes{}, in...), y, dy)...)
	if err != nil {
		return nil, err
	}
	all := gorgonia.Nodes{n}
	if s.dx == nil {
		all = gorgonia.Nodes{nil, n}
	}
	for k := len(all) - 1; k < len(s.dw); k++ {
		dw, err := port(layerName("dw", k), n, s.dw[k])
		if err != nil {
			return nil, err
		}
		all = append(all, dw)
	}
	return all, nil
}
