package model

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// labelGraph is the training graph of a labeller for T steps of B lanes.
type labelGraph struct {
	tape
	labeller *Labeller
	T, B     int
	memory   *labelMemory

	ids     []int32 // [T, B]
	lengths []int32 // [B]

	embedding *embedding
	dropouts  []*dropout
	layers    []stackable
	order     reversal
	pool      *pooling // nil: PoolNone
}

// labelMemory is the working memory of a labeller's graphs besides their kernels' own. Graphs that
// run in turn share it.
type labelMemory struct {
	activations           // W for H
	pooled      []float32 // [B, W]; empty without pooling
	dpooled     []float32 // its gradient
	one         []float32 // one direction's output, or its gradient: [T, B, H]
	reversed    []float32 // a layer's input, reversed: [T, B, D]
	before      []float32 // states before an example, [States, B, H]: zeros
	after       []float32 // states after it, which nothing reads
	logits      []float32 // [T*B or B, C]
}

// allocate makes room for T steps of B lanes.
func (m *labelMemory) allocate(c LabellerConfig, alloc func(n int) []float32, T, B int) {
	wide := c.network()
	wide.Hidden = c.width()
	m.activations.allocate(wide, alloc, T, B)
	if c.Pool != PoolNone {
		m.pooled = alloc(B * c.width())
		m.dpooled = alloc(B * c.width())
	}
	if c.Bidirectional {
		m.one = alloc(T * B * c.Hidden)
		widest := c.Embed
		if c.Layers > 1 {
			widest = max(widest, c.width())
		}
		m.reversed = alloc(T * B * widest)
	}
	n := c.Cell.States() * B * c.Hidden
	m.before = alloc(n)
	m.after = alloc(n)
	m.logits = alloc(c.outputRows(T, B) * c.Labels)
}

func (m *labelMemory) close() {
	for _, x := range [][]float32{m.pooled, m.dpooled, m.one, m.reversed, m.before, m.after,
		m.logits} {
		m.dev.Free(x)
	}
	m.activations.close()
	*m = labelMemory{activations: m.activations}
}

// newLabelGraph builds the graph. memory must suffice for T steps of B lanes.
func newLabelGraph(l *Labeller, T, B int, memory *labelMemory) (*labelGraph, error) {
	g := &labelGraph{labeller: l, T: T, B: B, memory: memory, ids: make([]int32, T*B),
		lengths: make([]int32, B)}
	if l.config.Bidirectional {
		g.order = make(reversal, T*B)
	}
	if err := g.compile(g.build); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// build adds the forward pass. It returns the cost and all weights' nodes.
func (g *labelGraph) build(nodes *gorgonia.ExprGraph) (cost *gorgonia.Node,
	weights gorgonia.Nodes, err error) {
	l, c := g.labeller, g.labeller.config
	weight := func(name string, v View) *gorgonia.Node {
		weights = append(weights, leaf(nodes, name, v.of(l.params), v.Shape...))
		return weights[len(weights)-1]
	}
	x := leafIDs(nodes, "ids", g.ids, g.T, g.B)
	if c.Embed > 0 {
		table := find(l.views, embeddingWeight)
		g.embedding = newEmbedding(l.dev, c.Vocab, table.of(l.grads), &l.rows,
			cut(g.memory.embedded, g.T, g.B, c.Embed))
		g.embedding.done = g.finishing(table)
		if x, err = g.embedding.apply(x, weight(embeddingWeight, table)); err != nil {
			return nil, nil, err
		}
		if x, err = g.drop(x, inputDropout, c.DropoutInput, g.embedding.y); err != nil {
			return nil, nil, err
		}
	}
	for k := range c.Layers {
		begin, end := g.span(k)
		w := leaf(nodes, fmt.Sprintf("rnn.l%d.weights", k), l.params[begin:end:end], end-begin)
		weights = append(weights, w)
		layer := g.newLayer(k)
		if x, err = layer.Apply(x, w); err != nil {
			return nil, nil, err
		}
		if x, err = g.drop(x, k, c.Dropout, layer.output()); err != nil {
			return nil, nil, err
		}
	}
	dx := g.inputGradient(0, c.width())
	if c.Pool != PoolNone {
		directions := c.width() / c.Hidden
		g.pool = newPooling(l.dev, c.Pool, g.lengths, directions,
			cut(g.memory.pooled, 1, g.B, c.width()), dx)
		if x, err = g.pool.apply(x); err != nil {
			return nil, nil, err
		}
		dx = cut(g.memory.dpooled, 1, g.B, c.width())
	}
	w, b := find(l.views, outputWeight), find(l.views, outputBias)
	g.output = newCrossEntropy(l.dev, w.of(l.grads), b.of(l.grads), dx)
	g.output.done = g.finishing(b)
	cost, err = g.output.apply(x, weight(outputWeight, w), weight(outputBias, b))
	return cost, weights, err
}

// drop adds dropout of y, the output of a layer or, with inputDropout, of the embedding, unless p
// is 0. x is y's node.
func (g *labelGraph) drop(x *gorgonia.Node, layer int, p float64, y *buffer) (*gorgonia.Node,
	error) {
	if p == 0 {
		return x, nil
	}
	d := &dropout{dev: g.labeller.dev, layer: layer, p: float32(p), keys: make([]uint64, g.B), y: y,
		dy: g.inputGradient(g.labeller.config.Layers-1-layer, y.value.Shape()[2])}
	g.dropouts = append(g.dropouts, d)
	return d.apply(x)
}

// span is recurrent layer k's part of the flat parameters, with both directions.
func (g *labelGraph) span(k int) (begin, end int) {
	begin, end = layerSpan(g.labeller.views, k)
	if g.labeller.config.Bidirectional {
		_, end = direction{layer: k, reverse: true}.span(g.labeller.views)
	}
	return begin, end
}

// newLayer makes recurrent layer k.
func (g *labelGraph) newLayer(k int) stackable {
	l, c := g.labeller, g.labeller.config
	s := c.layerShape(k, g.T, g.B)
	var dx *buffer
	if k > 0 || c.Embed > 0 {
		dx = g.inputGradient(c.Layers-k, s.D)
	}
	y := cut(g.memory.hidden[k], g.T, g.B, c.width())
	if !c.Bidirectional {
		layer := g.newDirection(direction{layer: k}, s, y, k == 0)
		layer.dx = dx
		g.layers = append(g.layers, layer)
		return layer
	}
	begin, end := g.span(k)
	b := &bidirectional{name: fmt.Sprintf("rnn.l%d", k), dev: l.dev, shape: s, order: g.order,
		y: y, dx: dx, dw: dense(l.grads[begin:end:end], end-begin)}
	if dx == nil {
		b.ids = make([]int32, g.T*g.B)
	} else {
		n := g.T * g.B * s.D
		b.reversed = g.memory.reversed[:n:n]
		b.spare = g.inputGradient(c.Layers-1-k, s.D).flat
	}
	g.layers = append(g.layers, b)
	one := cut(g.memory.one, g.T, g.B, c.Hidden)
	b.forward = g.newDirection(direction{layer: k}, s, one, false)
	b.second = g.newDirection(direction{layer: k, reverse: true}, s, one, k == 0)
	return b
}

// newDirection makes one direction of a recurrent layer. last: its gradients are the last ones of
// the recurrent layers.
func (g *labelGraph) newDirection(d direction, s compute.RecurrentShape, y *buffer,
	last bool) *Layer {
	l := g.labeller
	begin, end := d.span(l.views)
	layer := newLayer(l.dev, fmt.Sprintf("rnn.l%d", d.layer), s, l.grads[begin:end:end], y)
	layer.in, layer.out = cutState(s, g.memory.before), cutState(s, g.memory.after)
	g.reports(layer, l.views, d, last)
	return layer
}

// inputGradient is the gradient buffer below this many layers, counted from the last: [T, B,
// width].
func (g *labelGraph) inputGradient(layers, width int) *buffer {
	return cut(g.memory.gradient[layers%2], g.T, g.B, width)
}

// load sets the input of the next run, for both passes or for a prediction.
func (g *labelGraph) load(in Examples, training bool) {
	c := g.labeller.config
	copy(g.lengths, in.Lengths)
	for i := range g.ids {
		g.ids[i] = 0
		if in.inside(i, g.B) {
			g.ids[i] = in.Inputs[i]
		}
	}
	for i := range g.output.targets {
		g.output.targets[i] = -1
		if in.counts(i, g.B, c.Pool) {
			g.output.targets[i] = in.Targets[i]
		}
	}
	g.output.scale = in.Scale
	for _, d := range g.dropouts {
		if training {
			d.load(c.Seed, in.Step, in.Lanes, 0)
		}
	}
	g.order.load(in.Lengths)
	if g.pool != nil {
		g.pool.load()
	}
}

// forward runs only the forward pass, without dropout, and returns the output layer's input.
func (g *labelGraph) forward() []float32 {
	l := g.labeller
	x := compute.RecurrentInput{IDs: g.ids}
	if e := g.embedding; e != nil {
		l.dev.Embed(e.y.flat, l.view(embeddingWeight, l.params), g.ids)
		x = compute.RecurrentInput{X: e.y.flat}
	}
	for k, layer := range g.layers {
		begin, end := g.span(k)
		layer.run(l.params[begin:end:end], x)
		x = compute.RecurrentInput{X: layer.output().flat}
	}
	if g.pool == nil {
		return x.X
	}
	g.pool.run(x.X)
	return g.pool.y.flat
}

func (g *labelGraph) close() {
	g.tape.close()
	for _, layer := range g.layers {
		layer.Close()
	}
	g.layers = nil
}
