package model

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// The operators of a model's graph besides Layer. Each is made for one (T, B), owns the memory of
// its output and of its input's gradient, and writes the gradients of its weights to where the
// model keeps them.

// embedding is y[i] = table[ids[i]]: [T, B, E].
type embedding struct {
	dev  compute.Device
	y    *buffer
	grad []float32 // of the table: [V, E]
	dw   *tensor.Dense
	// shared says that another operator overwrites grad before backward gets here, so that
	// this one only adds.
	shared bool
}

func newEmbedding(dev compute.Device, T, B, V, E int, grad []float32, shared bool) *embedding {
	return &embedding{dev: dev, y: newBuffer(dev, T, B, E), grad: grad, dw: dense(grad, V, E),
		shared: shared}
}

// apply looks ids: [T, B] up in table: [V, E].
func (e *embedding) apply(ids, table *gorgonia.Node) (*gorgonia.Node, error) {
	rows := e.y.value.Shape()[0] * e.y.value.Shape()[1]
	forward := &operator{name: "embedding", shape: e.y.value.Shape().Clone(),
		wrt: []bool{false, true},
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			ids, err := tokenIDs(in[0], rows)
			if err != nil {
				return nil, err
			}
			table, err := floats(in[1], len(e.grad))
			if err != nil {
				return nil, err
			}
			e.dev.Embed(e.y.flat, table, ids)
			return e.y.value, nil
		}}
	forward.gradient = func(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		backward := &operator{name: "embedding.backward", shape: e.dw.Shape().Clone(),
			run: func(in []gorgonia.Value) (gorgonia.Value, error) {
				ids, err := tokenIDs(in[0], rows)
				if err != nil {
					return nil, err
				}
				dy, err := floats(in[1], len(e.y.flat))
				if err != nil {
					return nil, err
				}
				if !e.shared {
					e.dev.Zero(e.grad)
				}
				e.dev.EmbedBackward(e.grad, dy, ids)
				return e.dw, nil
			}}
		n, err := backward.apply(in[0], dy)
		return gorgonia.Nodes{nil, n}, err
	}
	return forward.apply(ids, table)
}

func (e *embedding) close() { e.y.close() }

// dropout is y = x ⊙ mask / (1-p) on [T, B, H], with a mask for each lane that its key determines
// (compute.Device.Dropout). Its gradient is the same operation.
type dropout struct {
	dev   compute.Device
	name  string
	steps int
	p     float32
	keys  []uint64 // of each lane; set before a run
	y, dx *buffer
}

func newDropout(dev compute.Device, name string, T, B, H int, p float64) *dropout {
	return &dropout{dev: dev, name: name, steps: T, p: float32(p), keys: make([]uint64, B),
		y: newBuffer(dev, T, B, H), dx: newBuffer(dev, T, B, H)}
}

func (d *dropout) apply(x *gorgonia.Node) (*gorgonia.Node, error) {
	forward := d.operator(d.name, d.y)
	forward.wrt = []bool{true}
	forward.gradient = func(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		n, err := d.operator(d.name+".backward", d.dx).apply(dy)
		return gorgonia.Nodes{n}, err
	}
	return forward.apply(x)
}

// operator drops its input's elements into out.
func (d *dropout) operator(name string, out *buffer) *operator {
	return &operator{name: name, shape: out.value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			x, err := floats(in[0], len(out.flat))
			if err != nil {
				return nil, err
			}
			d.dev.Dropout(out.flat, x, d.steps, d.p, d.keys)
			return out.value, nil
		}}
}

func (d *dropout) close() {
	d.y.close()
	d.dx.close()
}

// projection is y = x W^T for x: [T, B, H], W: [E, H], y: [T, B, E].
type projection struct {
	dev     compute.Device
	n, h, e int
	grad    []float32 // of W
	dw      *tensor.Dense
	y, dx   *buffer
}

func newProjection(dev compute.Device, T, B, H, E int, grad []float32) *projection {
	return &projection{dev: dev, n: T * B, h: H, e: E, grad: grad, dw: dense(grad, E, H),
		y: newBuffer(dev, T, B, E), dx: newBuffer(dev, T, B, H)}
}

func (p *projection) apply(x, w *gorgonia.Node) (*gorgonia.Node, error) {
	forward := &operator{name: "projection", shape: p.y.value.Shape().Clone(),
		wrt: []bool{true, true}, gradient: p.differentiate,
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			x, w, err := p.inputs(in)
			if err != nil {
				return nil, err
			}
			p.dev.Gemm(false, true, p.n, p.e, p.h, 1, x, w, 0, p.y.flat)
			return p.y.value, nil
		}}
	return forward.apply(x, w)
}

func (p *projection) inputs(in []gorgonia.Value) (x, w []float32, err error) {
	if x, err = floats(in[0], p.n*p.h); err != nil {
		return nil, nil, err
	}
	w, err = floats(in[1], p.e*p.h)
	return x, w, err
}

// differentiate adds dx = dy W, dW = dy^T x. y is an input of it for x's sake: see Layer.
func (p *projection) differentiate(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes,
	error) {
	backward := &operator{name: "projection.backward", shape: p.dx.value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			x, w, err := p.inputs(in)
			if err != nil {
				return nil, err
			}
			dy, err := floats(in[3], p.n*p.e)
			if err != nil {
				return nil, err
			}
			p.dev.Gemm(false, false, p.n, p.h, p.e, 1, dy, w, 0, p.dx.flat)
			p.dev.Gemm(true, false, p.e, p.h, p.n, 1, dy, x, 0, p.grad)
			return p.dx.value, nil
		}}
	dx, err := backward.apply(in[0], in[1], y, dy)
	if err != nil {
		return nil, err
	}
	dw, err := port("projection.dw", dx, p.dw)
	return gorgonia.Nodes{dx, dw}, err
}

func (p *projection) close() {
	p.y.close()
	p.dx.close()
}

// crossEntropy is the output layer: scale times the sum, over rows whose target is not negative,
// of -log softmax(x W^T + b)[target]; x: [T, B, H], W: [V, H], b: [V]. The kernel computes its
// gradients together with the loss.
type crossEntropy struct {
	dev     compute.Device
	kernel  compute.Output
	shape   compute.OutputShape
	gw, gb  []float32 // gradients of W and b
	dw, db  *tensor.Dense
	dx      *buffer
	targets []int32 // [T, B]; set before a run
	scale   float32 // set before a run
	sum     float64 // of the last run, not scaled
	loss    gorgonia.F32

	between func() error // called before the backward pass; nil: nothing. Set before a run
	halted  error        // what between returned in the last run
}

func newCrossEntropy(dev compute.Device, T, B, H, V int, gw, gb []float32) *crossEntropy {
	s := compute.OutputShape{N: T * B, H: H, V: V}
	return &crossEntropy{dev: dev, kernel: dev.NewOutput(s), shape: s, gw: gw, gb: gb,
		dw: dense(gw, V, H), db: dense(gb, V), dx: newBuffer(dev, T, B, H),
		targets: make([]int32, T*B)}
}

func (c *crossEntropy) apply(x, w, b *gorgonia.Node) (*gorgonia.Node, error) {
	forward := &operator{name: "cross_entropy", shape: tensor.ScalarShape(),
		wrt: []bool{true, true, true}, run: c.forward, gradient: c.differentiate}
	return forward.apply(x, w, b)
}

func (c *crossEntropy) forward(in []gorgonia.Value) (gorgonia.Value, error) {
	x, err := floats(in[0], len(c.dx.flat))
	if err != nil {
		return nil, err
	}
	w, err := floats(in[1], len(c.gw))
	if err != nil {
		return nil, err
	}
	b, err := floats(in[2], len(c.gb))
	if err != nil {
		return nil, err
	}
	c.sum = c.kernel.ForwardBackward(x, w, b, c.targets, c.scale, c.dx.flat, c.gw, c.gb)
	c.loss = gorgonia.F32(float64(c.scale) * c.sum)
	return &c.loss, nil
}

// differentiate adds an operator that has little to do: the gradients of the loss are there, and
// it multiplies them by the loss's own, unless that is 1.
func (c *crossEntropy) differentiate(in gorgonia.Nodes, loss, grad *gorgonia.Node) (
	gorgonia.Nodes, error) {
	backward := &operator{name: "cross_entropy.backward", shape: c.dx.value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			g, ok := in[4].(*gorgonia.F32)
			if !ok {
				return nil, fmt.Errorf("the loss's gradient is a %T, not a float32", in[4])
			}
			if c.between != nil {
				if c.halted = c.between(); c.halted != nil {
					return nil, c.halted
				}
			}
			if *g != 1 {
				for _, x := range [][]float32{c.dx.flat, c.gw, c.gb} {
					c.dev.Scale(x, float32(*g))
				}
			}
			return c.dx.value, nil
		}}
	dx, err := backward.apply(in[0], in[1], in[2], loss, grad)
	if err != nil {
		return nil, err
	}
	dw, err := port("cross_entropy.dw", dx, c.dw)
	if err != nil {
		return nil, err
	}
	db, err := port("cross_entropy.db", dx, c.db)
	return gorgonia.Nodes{dx, dw, db}, err
}

func (c *crossEntropy) close() {
	c.kernel.Close()
	c.dx.close()
}
