package model

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// The operators of a model's graph besides Layer. Each is made for one (T, B). The graph provides
// the memory of its output and of all its gradients.

// embedding is y[i] = table[ids[i]]: [T, B, E].
type embedding struct {
	name string
	dev  compute.Device
	y    *buffer
	grad []float32 // of the table: [V, E]
	dw   *tensor.Dense
	// rows lists the nonzero rows of grad. It is nil if the embedding is tied: the output layer
	// then overwrites all of grad before this operator runs.
	rows *gradientRows
	adds bool   // add to the gradient of earlier runs; set before a run
	done func() // called when grad has been queued

	words *wordDropout // nil: none
}

func newEmbedding(dev compute.Device, name string, V int, grad []float32, rows *gradientRows,
	y *buffer) *embedding {
	return &embedding{name: name, dev: dev, y: y, grad: grad, rows: rows,
		dw: dense(grad, V, len(grad)/V)}
}

// gradientRows lists the rows of an embedding's gradient, [V, E], that were written since it was
// zeroed, possibly more than once. The other rows are zero if exclusive.
type gradientRows struct {
	ids       []int32
	exclusive bool // only this package has written to the gradient
}

// zero zeroes grad. It zeroes only the listed rows if they are the fewer and exclusive.
func (r *gradientRows) zero(dev compute.Device, grad []float32, V int) {
	if E := len(grad) / V; r.exclusive && len(r.ids) < V {
		for _, id := range r.ids {
			dev.Zero(grad[int(id)*E:][:E])
		}
	} else {
		dev.Zero(grad)
	}
	r.ids = r.ids[:0]
}

// apply looks ids: [T, B] up in table: [V, E].
func (e *embedding) apply(ids, table *gorgonia.Node) (*gorgonia.Node, error) {
	rows := e.y.value.Shape()[0] * e.y.value.Shape()[1]
	forward := &operator{name: e.name, shape: e.y.value.Shape().Clone(),
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
			e.lookUp(table, ids)
			return e.y.value, nil
		}}
	forward.gradient = func(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		backward := &operator{name: e.name + ".backward", shape: e.dw.Shape().Clone(),
			run: func(in []gorgonia.Value) (gorgonia.Value, error) {
				ids, err := tokenIDs(in[0], rows)
				if err != nil {
					return nil, err
				}
				dy, err := floats(in[1], len(e.y.flat))
				if err != nil {
					return nil, err
				}
				e.backward(dy, ids)
				return e.dw, nil
			}}
		n, err := backward.apply(in[0], dy)
		return gorgonia.Nodes{nil, n}, err
	}
	return forward.apply(ids, table)
}

// lookUp computes y in training.
func (e *embedding) lookUp(table []float32, ids []int32) {
	if e.words == nil {
		e.dev.Embed(e.y.flat, table, ids)
		return
	}
	e.words.copyRows(e.dev, e.y, table, e.words.ids)
}

// backward computes the table's gradient. With words it overwrites y.
func (e *embedding) backward(dy []float32, ids []int32) {
	if e.words != nil {
		e.words.copyRows(e.dev, e.y, dy, e.words.rows)
		dy = e.y.flat
	}
	if e.rows != nil {
		if !e.adds {
			e.rows.zero(e.dev, e.grad, e.dw.Shape()[0])
		}
		e.rows.ids = append(e.rows.ids, ids...)
	}
	e.dev.EmbedBackward(e.grad, dy, ids)
	e.done()
}

// inputDropout is the layer number of dropout of the embedding's output.
const inputDropout = -1

// dropout is y = x ⊙ mask / (1-p) on [T, B, H]. Each lane's key determines its mask
// (compute.Device.Dropout). The gradient is the same operation. Both work in place.
type dropout struct {
	dev   compute.Device
	layer int // layer whose output it drops; inputDropout: the embedding
	p     float32
	// locked: all steps of a lane have one mask (Gal and Ghahramani 2016, arXiv:1512.05287).
	locked bool
	keys   []uint64 // of each lane, or if locked of each row; load sets them before a run
	// y is the output, which no backward pass reads. dy is its gradient.
	y, dy *buffer
}

// newDropout makes dropout of y, the output of a layer or, with -1, of the embedding. It is nil if
// p is 0.
func (s *stack) newDropout(layer int, p float64, y *buffer) *dropout {
	if p == 0 {
		return nil
	}
	keys := s.B
	if s.DropoutLocked {
		keys *= s.T
	}
	dy := y // where a skip's gradient is
	if layer < 0 || s.skips[layer] == nil {
		dy = s.inputGradient(s.Layers-1-layer, y.value.Shape()[2])
	}
	return &dropout{dev: s.dev, layer: s.first + layer, p: float32(p), locked: s.DropoutLocked,
		keys: make([]uint64, keys), y: y, dy: dy}
}

// load sets the keys of these lanes for a sequence's time steps from first on.
func (d *dropout) load(seed uint64, step int64, lanes []int, first int) {
	width := d.y.value.Shape()[2]
	for b, lane := range lanes {
		key := DropoutKey(seed, step, d.layer, lane)
		if !d.locked {
			key = compute.DropoutShift(key, first*width)
		}
		for row := b; row < len(d.keys); row += len(lanes) {
			d.keys[row] = key
		}
	}
}

func (d *dropout) apply(x *gorgonia.Node) (*gorgonia.Node, error) {
	name := "dropout.input"
	if d.layer != inputDropout {
		name = fmt.Sprintf("dropout.l%d", d.layer)
	}
	forward := d.operator(name, d.y)
	forward.wrt = []bool{true}
	forward.gradient = func(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		n, err := d.operator(name+".backward", d.dy).apply(dy)
		return gorgonia.Nodes{n}, err
	}
	return forward.apply(x)
}

// operator makes an operator that drops elements of its input x.
func (d *dropout) operator(name string, x *buffer) *operator {
	return &operator{name: name, shape: x.value.Shape().Clone(),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			got, err := floats(in[0], len(x.flat))
			if err != nil {
				return nil, err
			}
			if &got[0] != &x.flat[0] {
				panic(fmt.Sprintf("model: %s is given %p, and drops %p", name, &got[0],
					&x.flat[0]))
			}
			d.drop(x)
			return x.value, nil
		}}
}

// drop drops elements of x in place. If locked, each row is a lane of one step.
func (d *dropout) drop(x *buffer) {
	rows := x.value.Shape()[0] * x.value.Shape()[1]
	d.dev.Dropout(x.flat, x.flat, rows/len(d.keys), d.p, d.keys)
}

// projection is y = x W^T for x: [T, B, H], W: [E, H], y: [T, B, E].
type projection struct {
	dev     compute.Device
	n, h, e int
	grad    []float32 // of W
	dw      *tensor.Dense
	y, dx   *buffer
	done    func() // called when grad has been queued
}

func newProjection(dev compute.Device, grad []float32, y, dx *buffer) *projection {
	s, h := y.value.Shape(), dx.value.Shape()[2] // [T, B, E]; H
	return &projection{dev: dev, n: s[0] * s[1], h: h, e: s[2], grad: grad,
		dw: dense(grad, s[2], h), y: y, dx: dx}
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

// differentiate adds dx = dy W, dW = dy^T x. y is an input so that Gorgonia keeps x: see Layer.
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
			p.done()
			return p.dx.value, nil
		}}
	dx, err := backward.apply(in[0], in[1], y, dy)
	if err != nil {
		return nil, err
	}
	dw, err := port("projection.dw", dx, p.dw)
	return gorgonia.Nodes{dx, dw}, err
}

// crossEntropy is the output layer. It computes scale times the sum, over rows whose target is not
// negative, of -log softmax(x W^T + b)[target]; x: [T, B, H], W: [V, H], b: [V]. The kernel
// computes the gradients together with the loss. A compute.Squares as kernel has its own loss, and
// a compute.Adaptive all its matrices as W.
type crossEntropy struct {
	dev     compute.Device
	kernel  compute.Output
	gw, gb  []float32 // gradients of W and b
	dw, db  *tensor.Dense
	dx      *buffer
	targets []int32      // [T, B]; set before a run
	scale   float32      // set before a run
	loss    gorgonia.F32 // a placeholder: the pass does not wait for the loss

	between func() error // called before the backward pass; nil: nothing. Set before a run
	halted  error        // the error of between in the last run
	done    func()       // called when gw and gb have been queued
}

// newCrossEntropy makes the output layer. The nodes of W and b are vectors.
func newCrossEntropy(kernel compute.Output, dev compute.Device, gw, gb []float32,
	dx *buffer) *crossEntropy {
	s := dx.value.Shape() // [T, B, H]
	n := s[0] * s[1]
	return &crossEntropy{dev: dev, kernel: kernel, gw: gw, gb: gb, dw: dense(gw, len(gw)),
		db: dense(gb, len(gb)), dx: dx, targets: make([]int32, n)}
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
	c.kernel.ForwardBackward(x, w, b, c.targets, c.scale, c.dx.flat, c.gw, c.gb)
	return &c.loss, nil
}

// differentiate adds an operator for the gradients, which forward has already computed. It
// multiplies them by the loss's own gradient, unless that is 1.
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
			c.done()
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
