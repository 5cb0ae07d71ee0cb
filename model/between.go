package model

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// What may follow a recurrent layer besides dropout: u = x + layer(x), and LayerNorm(u).

// skip is u = x + y for a layer's input x and output y: [T, B, W], in y's memory (He et al. 2016,
// arXiv:1512.03385). Its node does not read x's, because Gorgonia would add the two gradients of x
// in memory of its own: the layer adds du to its own gradient of x.
type skip struct {
	dev   compute.Device
	name  string
	x     []float32
	y, du *buffer
}

func (s *skip) run() { s.dev.Add(s.y.flat, s.x) }

// backward copies du to y's memory, which nothing reads then, because dropout and the layer may
// overwrite the gradient that they are given. It returns the copy.
func (s *skip) backward(du []float32) []float32 {
	W := s.y.value.Shape()[2]
	s.dev.CopyRows(packed(s.y.flat, W), packed(du, W), len(du)/W, W, nil, false)
	return s.y.flat
}

// apply adds the operator to the graph of y.
func (s *skip) apply(y *gorgonia.Node) (*gorgonia.Node, error) {
	return applyTogether(s.name, gorgonia.Nodes{y}, s.y, []*buffer{s.y},
		func([]float32) { s.run() }, func(_, du []float32) { s.backward(du) })
}

// add adds du to the gradient of x. A nil skip does nothing.
func (s *skip) add(dx []float32) {
	if s != nil {
		s.dev.Add(dx, s.du.flat)
	}
}

// norm is layer normalisation of [T, B, W]. Its gradient takes the place of the one it is given.
type norm struct {
	dev    compute.Device
	name   string // of its tensors, without weight and bias
	of     compute.LayerNorm
	dw, db []float32
	y, dx  *buffer
}

func (n *norm) run() { n.dev.LayerNorm(n.of) }

// backward computes the gradients, given y's.
func (n *norm) backward(dy []float32) {
	n.dev.LayerNormBackward(n.of, dy, n.dx.flat, n.dw, n.db)
}

// apply adds the operator to the graph of x.
func (n *norm) apply(x *gorgonia.Node, weights *leaves) (*gorgonia.Node, error) {
	in := gorgonia.Nodes{x, weights.tensor(n.name + "weight"), weights.tensor(n.name + "bias")}
	gradients := []*buffer{n.dx, cut(n.dw, len(n.dw)), cut(n.db, len(n.db))}
	return applyTogether(n.name+"operator", in, n.y, gradients, func([]float32) { n.run() },
		func(_, dy []float32) { n.backward(dy) })
}

// newSkip makes the skip connection around layer k, whose output is y; nil: there is none.
func (s *stack) newSkip(k int, y *buffer) *skip {
	if !s.Skip || k == 0 {
		return nil
	}
	return &skip{dev: s.dev, name: fmt.Sprintf("%sskip.l%d", s.prefix, k),
		x: s.outputOf(k - 1).flat, y: y, du: s.inputGradient(s.Layers-1-k, s.width())}
}

// newNorm makes the normalisation of layer k's output; nil: there is none.
func (s *stack) newNorm(k int) *norm {
	if !s.LayerNorm {
		return nil
	}
	weight, bias := find(s.views, s.normName(k, "weight")), find(s.views, s.normName(k, "bias"))
	y, n := cut(s.memory.normed[k], s.T, s.B, s.width()), 2*s.T*s.B
	return &norm{dev: s.dev, name: s.normName(k, ""), y: y,
		dx: s.inputGradient(s.Layers-1-k, s.width()), dw: s.gradientOf(weight),
		db: s.gradientOf(bias), of: compute.LayerNorm{X: s.layers[k].output().flat,
			Weight: weight.of(s.params), Bias: bias.of(s.params),
			Stats: s.memory.stats[k][:n:n], Y: y.flat}}
}

// outputOf is what follows layer k reads.
func (s *stack) outputOf(k int) *buffer {
	if n := s.norms[k]; n != nil {
		return n.y
	}
	return s.layers[k].output()
}
