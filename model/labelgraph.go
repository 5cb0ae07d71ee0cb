package model

import "gorgonia.org/gorgonia"

// labelGraph is the training graph of a labeller for T steps of B lanes.
type labelGraph struct {
	tape
	*stack
	labeller *Labeller
	pool     *pooling // nil: PoolNone
}

// labelMemory is the working memory of a labeller's graphs besides their kernels' own. Graphs that
// run in turn share it.
type labelMemory struct {
	stackMemory
	pooled  []float32 // [B, W] or [K, B, W]; empty without pooling
	dpooled []float32 // its gradient
	logits  []float32 // [T*B or B, C]
}

// allocate makes room for T steps of B lanes.
func (m *labelMemory) allocate(c LabellerConfig, alloc func(n int) []float32, T, B int) {
	s := c.stack()
	m.stackMemory.allocate(s, alloc, T, B)
	if c.Pool != PoolNone {
		m.pooled = alloc(c.outputRows(T, B) * s.width())
		m.dpooled = alloc(c.outputRows(T, B) * s.width())
	}
	m.logits = alloc(c.outputRows(T, B) * c.Labels)
}

func (m *labelMemory) close() {
	for _, x := range [][]float32{m.pooled, m.dpooled, m.logits} {
		m.dev.Free(x)
	}
	m.stackMemory.close()
	*m = labelMemory{stackMemory: m.stackMemory}
}

// newLabelGraph builds the graph. memory must suffice for T steps of B lanes.
func newLabelGraph(l *Labeller, T, B int, memory *labelMemory) (*labelGraph, error) {
	g := &labelGraph{labeller: l}
	g.stack = &stack{parameters: &l.parameters, stackConfig: l.config.stack(), tape: &g.tape,
		rows: &l.rows, T: T, B: B, memory: &memory.stackMemory}
	build := func(nodes *gorgonia.ExprGraph) (*gorgonia.Node, gorgonia.Nodes, error) {
		return g.build(nodes, memory)
	}
	if err := g.compile(build); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// build adds the forward pass. It returns the cost and all weights' nodes.
func (g *labelGraph) build(nodes *gorgonia.ExprGraph, memory *labelMemory) (cost *gorgonia.Node,
	weights gorgonia.Nodes, err error) {
	l, c, W := g.labeller, g.labeller.config, g.width()
	g.make()
	leaves := &leaves{parameters: &l.parameters, nodes: nodes}
	x, err := g.embed(nodes, leaves)
	if err != nil {
		return nil, nil, err
	}
	if x, err = g.apply(x, leaves); err != nil {
		return nil, nil, err
	}
	dx := g.inputGradient(0, W)
	if c.Pool != PoolNone {
		rows, widths := c.Rows(g.T), []int{c.Hidden}
		if c.Bidirectional {
			widths = append(widths, g.hiddenOf(true))
		}
		g.pool = newPooling(l.dev, c.Pool, g.lengths, widths,
			cut(memory.pooled, rows, g.B, W), dx)
		if x, err = g.pool.apply(x); err != nil {
			return nil, nil, err
		}
		dx = cut(memory.dpooled, rows, g.B, W)
	}
	dx = g.makeDeepOutput(c.deepOutput(c.outputRows(g.T, g.B)), dx)
	if x, err = g.deepOutput.apply(x, leaves); err != nil {
		return nil, nil, err
	}
	g.output, cost, err = leaves.crossEntropy(x, dx, c.LabelSmoothing, &g.tape)
	return cost, leaves.all, err
}

// load sets the input of the next run, for both passes or for a prediction.
func (g *labelGraph) load(in Examples, training bool) {
	c := g.labeller.config
	g.stack.load(in)
	for i := range g.output.targets {
		g.output.targets[i] = -1
		if in.counts(i, g.B, c.Pool) {
			g.output.targets[i] = in.Targets[i]
		}
	}
	g.output.scale = in.Scale
	if training {
		g.loadDropout(in.Step, in.Lanes, 0)
	} else {
		keepWeights(g.stack)
	}
	if g.pool != nil {
		g.pool.load(in.Places)
	}
}

// forward runs only the forward pass, without dropout, and returns the output layer's input.
func (g *labelGraph) forward() []float32 {
	x := g.runLayers(g.input(false))
	if g.pool != nil {
		g.pool.run(x)
		x = g.pool.y.flat
	}
	return g.deepOutput.run(x)
}

func (g *labelGraph) close() {
	g.tape.close()
	g.stack.close()
}
