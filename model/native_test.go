package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// native is a one-hot model unrolled over its steps with Gorgonia's own operators. It is the oracle
// for gradients: in float64 and without a fused layer it shares no code with the kernels. Each gate
// has its own matrices, stored transposed, because Gorgonia 0.9.18 merges some slices of one
// matrix. Biases are added as products with a column of ones.
type native struct {
	c       Config
	dt      tensor.Dtype
	fused   *Layer // replaces layer fusedAt, in float32; nil: no layer is fused
	fusedAt int
	g       *gorgonia.ExprGraph
	ones    *gorgonia.Node // [B, H]
	column  *gorgonia.Node // [B, 1]
	weights gorgonia.Nodes
	sources []source // places of the weights' gradients
	flat    []float32
	views   []View
	err     error
}

// source is the block of a tensor's rows that a node holds.
type source struct {
	view View
	gate int
}

// do returns node and keeps the first error.
func (n *native) do(node *gorgonia.Node, err error) *gorgonia.Node {
	if n.err == nil {
		n.err = err
	}
	return node
}

func (n *native) mul(a, b *gorgonia.Node) *gorgonia.Node { return n.do(gorgonia.Mul(a, b)) }
func (n *native) add(a, b *gorgonia.Node) *gorgonia.Node { return n.do(gorgonia.Add(a, b)) }
func (n *native) sub(a, b *gorgonia.Node) *gorgonia.Node { return n.do(gorgonia.Sub(a, b)) }
func (n *native) times(a, b *gorgonia.Node) *gorgonia.Node {
	return n.do(gorgonia.HadamardProd(a, b))
}
func (n *native) tanh(a *gorgonia.Node) *gorgonia.Node    { return n.do(gorgonia.Tanh(a)) }
func (n *native) sigmoid(a *gorgonia.Node) *gorgonia.Node { return n.do(gorgonia.Sigmoid(a)) }

// constant adds an input node without a gradient.
func (n *native) constant(name string, rows, columns int,
	at func(i, j int) float64) *gorgonia.Node {
	value := tensor.New(tensor.WithShape(rows, columns), tensor.Of(n.dt))
	for i := range rows {
		for j := range columns {
			switch x := value.Data().(type) {
			case []float32:
				x[i*columns+j] = float32(at(i, j))
			case []float64:
				x[i*columns+j] = at(i, j)
			}
		}
	}
	return gorgonia.NewMatrix(n.g, n.dt, gorgonia.WithName(name),
		gorgonia.WithShape(rows, columns), gorgonia.WithValue(value))
}

// weight adds a gate's block of a tensor, [rows, columns], as a node [columns, rows].
func (n *native) weight(name string, gate, rows int) *gorgonia.Node {
	v := find(n.views, name)
	columns := 1
	if len(v.Shape) == 2 {
		columns = v.Shape[1]
	}
	x := v.of(n.flat)[gate*rows*columns:]
	w := n.constant(fmt.Sprintf("%s.%d", name, gate), columns, rows,
		func(i, j int) float64 { return float64(x[j*columns+i]) })
	n.weights = append(n.weights, w)
	n.sources = append(n.sources, source{v, gate})
	return w
}

// linear is x W^T + b.
func (n *native) linear(x, w, b *gorgonia.Node) *gorgonia.Node {
	return n.add(n.mul(x, w), n.mul(n.column, b))
}

// fuse applies the fused layer to token ids, or to the stacked xs, and splits its output into
// steps.
func (n *native) fuse(ids []int32, xs []*gorgonia.Node) []*gorgonia.Node {
	T, B := n.fused.shape.T, n.fused.shape.B
	x := leafIDs(n.g, "ids", ids, T, B)
	if n.fusedAt > 0 {
		var steps gorgonia.Nodes
		for _, step := range xs {
			steps = append(steps, n.do(gorgonia.Reshape(step, tensor.Shape{1, B, n.c.Hidden})))
		}
		x = n.do(gorgonia.Concat(0, steps...))
	}
	begin, end := layerSpan(n.views, n.fusedAt)
	w := leaf(n.g, "fused weights", n.flat[begin:end], end-begin)
	n.weights = append(n.weights, w)
	n.sources = append(n.sources, source{
		view: View{Tensor: compute.Tensor{Offset: begin, Len: end - begin}}})
	y := n.do(n.fused.Apply(x, w))
	var ys []*gorgonia.Node
	for t := range T {
		ys = append(ys, n.do(gorgonia.Slice(y, gorgonia.S(t))))
	}
	return ys
}

// layer unrolls recurrent layer k over xs, from a zero state.
func (n *native) layer(k int, xs []*gorgonia.Node, zero *gorgonia.Node) []*gorgonia.Node {
	H, gates, hidden := n.c.Hidden, n.c.Cell.Gates(), n.c.Cell.HiddenGates()
	block := func(what string, gates int) (nodes []*gorgonia.Node) {
		for gate := range gates {
			nodes = append(nodes, n.weight(layerName(what, k), gate, H))
		}
		return nodes
	}
	var holes []*gorgonia.Node // [1, H] each
	for p := range n.c.Cell.Peepholes() {
		holes = append(holes, n.weight(layerName(n.c.Cell.Elementwise(), k), p, H))
	}
	w, u := block("weight_ih", gates), block("weight_hh", hidden)
	b, d := block("bias_ih", gates), block("bias_hh", hidden)
	s := n.c.layerShape(k, 1, 1)
	if n.c.Cell == compute.Clockwork {
		u[0] = n.times(u[0], n.constant(fmt.Sprintf("connections %d", k), H, H,
			func(from, to int) float64 { return one(!s.Removed(from, to)) }))
	}
	h, c := zero, zero
	var ys []*gorgonia.Node
	for step, x := range xs {
		ih := func(gate int) *gorgonia.Node { return n.linear(x, w[gate], b[gate]) }
		hh := func(gate int, h *gorgonia.Node) *gorgonia.Node {
			return n.linear(h, u[gate], d[gate])
		}
		both := func(gate int) *gorgonia.Node { return n.add(ih(gate), hh(gate, h)) }
		switch n.c.Cell {
		case compute.RNNTanh:
			h = n.tanh(both(0))
		case compute.RNNReLU:
			h = n.do(gorgonia.Rectify(both(0)))
		case compute.GRU, compute.GRUResetBefore:
			r, z := n.sigmoid(both(0)), n.sigmoid(both(1))
			var candidate *gorgonia.Node
			if n.c.Cell == compute.GRU {
				candidate = n.tanh(n.add(ih(2), n.times(r, hh(2, h))))
			} else {
				candidate = n.tanh(n.add(ih(2), hh(2, n.times(r, h))))
			}
			h = n.add(n.times(n.sub(n.ones, z), candidate), n.times(z, h))
		case compute.LSTM:
			i, f, o := n.sigmoid(both(0)), n.sigmoid(both(1)), n.sigmoid(both(3))
			c = n.add(n.times(f, c), n.times(i, n.tanh(both(2))))
			h = n.times(o, n.tanh(c))
		case compute.LSTMCoupled, compute.LSTMNoForget:
			i, kept := n.sigmoid(both(0)), c
			if n.c.Cell == compute.LSTMCoupled {
				kept = n.times(n.sub(n.ones, i), c)
			}
			c = n.add(kept, n.times(i, n.tanh(both(1))))
			h = n.times(n.sigmoid(both(2)), n.tanh(c))
		case compute.Leaky, compute.LeakyLearned: // by default a leak of 1/2
			a := n.do(gorgonia.Div(n.ones, n.add(n.ones, n.ones)))
			if n.c.Cell == compute.LeakyLearned {
				a = n.sigmoid(n.mul(n.column, holes[0]))
			}
			h = n.add(n.times(n.sub(n.ones, a), h), n.times(a, n.tanh(both(0))))
		case compute.MinGRU:
			z := n.sigmoid(ih(0))
			h = n.add(n.times(n.sub(n.ones, z), h), n.times(z, ih(1)))
		case compute.Clockwork:
			works := n.constant(fmt.Sprintf("works %d %d", k, step), x.Shape()[0], H,
				func(_, unit int) float64 { return one(step%int(s.Period(unit)) == 0) })
			h = n.add(n.times(n.sub(n.ones, works), h), n.times(works, n.tanh(both(0))))
		case compute.MGU:
			f := n.sigmoid(both(0))
			candidate := n.tanh(n.add(ih(1), hh(1, n.times(f, h))))
			h = n.add(n.times(n.sub(n.ones, f), h), n.times(f, candidate))
		case compute.LSTMPeephole:
			see := func(gate, hole int) *gorgonia.Node {
				return n.sigmoid(n.add(both(gate), n.times(c, n.mul(n.column, holes[hole]))))
			}
			i, f := see(0, 0), see(1, 1)
			c = n.add(n.times(f, c), n.times(i, n.tanh(both(2))))
			h = n.times(see(3, 2), n.tanh(c))
		}
		ys = append(ys, h)
	}
	return ys
}

// one is 1 or 0.
func one(x bool) float64 {
	if x {
		return 1
	}
	return 0
}

// loss is scale times the summed cross-entropy of the rows whose target is not negative.
func (n *native) loss(ys []*gorgonia.Node, in SegmentInput, B int) *gorgonia.Node {
	V := n.c.Vocab
	w, b := n.weight(outputWeight, 0, V), n.weight(outputBias, 0, V)
	all := n.constant("ones of V", V, 1, func(int, int) float64 { return 1 })
	var sum *gorgonia.Node
	for t, y := range ys {
		z := n.linear(y, w, b)
		counts := n.constant(fmt.Sprintf("counts %d", t), B, 1, func(i, _ int) float64 {
			if in.Targets[t*B+i] < 0 {
				return 0
			}
			return float64(in.Scale)
		})
		picks := n.constant(fmt.Sprintf("picks %d", t), B, V, func(i, j int) float64 {
			if int(in.Targets[t*B+i]) == j {
				return float64(in.Scale)
			}
			return 0
		})
		logs := n.do(gorgonia.Log(n.mul(n.do(gorgonia.Exp(z)), all)))
		part := n.sub(n.do(gorgonia.Sum(n.times(logs, counts))),
			n.do(gorgonia.Sum(n.times(z, picks))))
		if sum == nil {
			sum = part
		} else {
			sum = n.add(sum, part)
		}
	}
	return sum
}

// gradients builds and runs the graph, and returns the loss and the flat gradient.
func (n *native) gradients(in SegmentInput, T, B int) (loss float64, flat []float64, err error) {
	n.g = gorgonia.NewGraph()
	n.ones = n.constant("ones", B, n.c.Hidden, func(int, int) float64 { return 1 })
	n.column = n.constant("column", B, 1, func(int, int) float64 { return 1 })
	zero := n.constant("zero", B, n.c.Hidden, func(int, int) float64 { return 0 })
	var xs []*gorgonia.Node
	for t := range T {
		xs = append(xs, n.constant(fmt.Sprintf("x %d", t), B, n.c.Vocab, func(i, j int) float64 {
			if int(in.Inputs[t*B+i]) == j {
				return 1
			}
			return 0
		}))
	}
	for k := range n.c.Layers {
		if n.fused != nil && k == n.fusedAt {
			xs = n.fuse(in.Inputs, xs)
		} else {
			xs = n.layer(k, xs, zero)
		}
	}
	cost := n.loss(xs, in, B)
	if n.err != nil {
		return 0, nil, n.err
	}
	if _, err := gorgonia.Grad(cost, n.weights...); err != nil {
		return 0, nil, err
	}
	machine := gorgonia.NewTapeMachine(n.g, gorgonia.BindDualValues(n.weights...))
	defer machine.Close()
	if err := machine.RunAll(); err != nil {
		return 0, nil, err
	}
	flat = make([]float64, len(n.flat))
	for i, w := range n.weights {
		grad, err := w.Grad()
		if err != nil {
			return 0, nil, err
		}
		n.sources[i].put(flat, wide(grad), w.Shape())
	}
	return wide(cost.Value())[0], flat, nil
}

// put writes the gradient x of a node of this shape to its place in flat.
func (s source) put(flat, x []float64, shape tensor.Shape) {
	if shape.Dims() == 1 { // a fused layer's gradient, already in layout
		copy(flat[s.view.Offset:], x)
		return
	}
	columns, rows := shape[0], shape[1]
	for r := range rows {
		for c := range columns {
			flat[s.view.Offset+(s.gate*rows+r)*columns+c] = x[c*rows+r]
		}
	}
}

// wide returns a value's elements as float64.
func wide(v gorgonia.Value) []float64 {
	switch x := v.Data().(type) {
	case float32:
		return []float64{float64(x)}
	case float64:
		return []float64{x}
	case []float64:
		return x
	case []float32:
		out := make([]float64, len(x))
		for i := range x {
			out[i] = float64(x[i])
		}
		return out
	}
	panic(fmt.Sprintf("a value of type %T", v.Data()))
}

// TestGradientsAgainstNativeGorgonia compares every cell with the same cell unrolled from
// Gorgonia's operators.
func TestGradientsAgainstNativeGorgonia(t *testing.T) {
	for _, cell := range compute.Cells() {
		for layers := 1; layers <= 2; layers++ {
			t.Run(fmt.Sprintf("%v/%d", cell, layers), func(t *testing.T) {
				checkNative(t, Config{Cell: cell, Vocab: 5, Hidden: 4, Layers: layers,
					Seed: 11}, -1)
			})
		}
	}
}

// TestFusedLayerAmongNativeOperators puts a fused layer below, between and above layers of
// Gorgonia's operators in one graph. All gradients must equal the model's.
func TestFusedLayerAmongNativeOperators(t *testing.T) {
	for _, cell := range compute.Cells() {
		for at := range 3 {
			t.Run(fmt.Sprintf("%v/%d", cell, at), func(t *testing.T) {
				checkNative(t, Config{Cell: cell, Vocab: 5, Hidden: 4, Layers: 3, Seed: 11}, at)
			})
		}
	}
}

// checkNative compares a segment with the native model, whose layer fusedAt, if it exists, is
// fused.
func checkNative(t *testing.T, cfg Config, fusedAt int) {
	const T, B = 3, 2
	m := newModel(t, cfg)
	in := randomInput(rand.New(rand.NewPCG(3, 4)), T, B, cfg.Vocab)
	n := &native{c: cfg, dt: tensor.Float64, flat: download(m, m.params), views: m.views}
	if fusedAt >= 0 {
		layer, err := NewLayer(m.dev, "fused", cfg.layerShape(fusedAt, T, B), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer layer.Close()
		n.dt, n.fused, n.fusedAt = tensor.Float32, layer, fusedAt
	}
	var want []float64
	var wantLoss float64
	err := Build(func() (err error) {
		wantLoss, want, err = n.gradients(in, T, B)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	loss := run(t, newSegment(t, m, T, B), in) * float64(in.Scale)
	if math.Abs(loss-wantLoss) > lossTolerance*wantLoss {
		t.Errorf("loss %v, Gorgonia has %v", loss, wantLoss)
	}
	got := download(m, m.Gradients())
	for _, v := range m.views {
		x := want[v.Offset : v.Offset+v.Len]
		if e := relative(v.of(got), x); e > gradientTolerance {
			t.Errorf("gradient of %s: relative error %.2g", v.Name, e)
		}
	}
}
