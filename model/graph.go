package model

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// tape is a compiled graph that ends in an output layer.
type tape struct {
	output  *crossEntropy
	machine gorgonia.VM

	// finished, if set, is called in a run when the gradients up to end, in the network's layout,
	// have been queued. Set before a run.
	finished func(end int)
}

// compile builds a graph and its derivative. build adds the forward pass to nodes. It returns the
// cost and all weights' nodes.
func (t *tape) compile(build func(nodes *gorgonia.ExprGraph) (cost *gorgonia.Node,
	weights gorgonia.Nodes, err error)) error {
	return Build(func() (err error) {
		defer compute.Catch(&err)
		nodes := gorgonia.NewGraph(gorgonia.WithGraphName("segment"))
		cost, weights, err := build(nodes)
		if err != nil {
			return err
		}
		if _, err := gorgonia.Grad(cost, weights...); err != nil {
			return fmt.Errorf("model: differentiating a segment: %w", err)
		}
		if err := distinct(nodes); err != nil {
			return err
		}
		t.machine = gorgonia.NewTapeMachine(nodes)
		return nil
	})
}

// run runs forward and backward. between is called before the backward pass; its error is returned
// unchanged. The loss is the output kernel's sum.
func (t *tape) run(between func() error) error {
	t.output.between, t.output.halted = between, nil
	t.machine.Reset()
	err := t.machine.RunAll()
	t.output.between = nil
	if t.output.halted != nil {
		return t.output.halted
	}
	if err != nil {
		return fmt.Errorf("model: running a segment: %w", unwrapVM(err))
	}
	return nil
}

// finishing returns a callback for when the gradient of this tensor, and of all tensors before it,
// has been queued.
func (t *tape) finishing(v View) func() { return func() { t.finish(v.end()) } }

// finish reports that the gradients up to end have been queued.
func (t *tape) finish(end int) {
	if t.finished != nil {
		t.finished(end)
	}
}

// reports makes the layer of a direction report its gradients. eachGate: also W_hh's, gate by gate.
func (t *tape) reports(l *Layer, views []View, d direction, eachGate bool) {
	begin, _ := d.span(views)
	l.gradientReady = func(tensors, rows int) {
		if rows == 0 {
			t.finish(begin + l.views[tensors-1].end())
		} else if eachGate {
			t.finish(begin + l.views[tensors].Offset + rows*l.views[tensors].Shape[1])
		}
	}
}

func (t *tape) close() {
	if t.machine != nil {
		t.machine.Close()
		t.machine = nil
	}
	if t.output != nil {
		t.output.kernel.Close()
		t.output = nil
	}
}

// graph is the training graph of a model for T steps of B lanes. It keeps no state.
type graph struct {
	tape
	model  *Model
	T, B   int
	memory *activations
	grads  []float32 // laid out as the model's gradients; an untied embedding's part is unused

	weights    weights
	ids        []int32 // [T, B], the graph's input
	embedding  *embedding
	layers     []*Layer
	dropouts   []*dropout // of the embedding's and the layers' outputs, if there is dropout
	projection *projection
}

// newGraph builds the graph. memory must suffice for T steps of B lanes, and grads is laid out as
// the model's gradients.
func newGraph(m *Model, T, B int, memory *activations, grads []float32) (*graph, error) {
	g := &graph{model: m, T: T, B: B, memory: memory, grads: grads, weights: m.weights(),
		ids: make([]int32, T*B)}
	if err := g.compile(g.build); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// build adds the forward pass. It returns the cost and all weights' nodes.
func (g *graph) build(nodes *gorgonia.ExprGraph) (cost *gorgonia.Node, weights gorgonia.Nodes,
	err error) {
	m, c := g.model, g.model.config
	weight := func(node, name string) *gorgonia.Node {
		v := find(m.views, name)
		w := leaf(nodes, node, v.of(m.params), v.Shape...)
		weights = append(weights, w)
		return w
	}
	x := leafIDs(nodes, "ids", g.ids, g.T, g.B)
	if c.Inputs > 0 {
		x = leaf(nodes, "rows", g.memory.embedded[:g.T*g.B*c.Inputs], g.T, g.B, c.Inputs)
	}
	if c.Embed > 0 {
		rows := &m.rows
		if c.TieWeights {
			rows = nil
		}
		g.embedding = newEmbedding(m.dev, "embedding", c.Vocab, g.gradient(embeddingWeight), rows,
			cut(g.memory.embedded, g.T, g.B, c.Embed))
		g.embedding.done = g.finishing(find(m.views, embeddingWeight))
		if x, err = g.embedding.apply(x, weight(embeddingWeight, embeddingWeight)); err != nil {
			return nil, nil, err
		}
	}
	if c.DropoutInput > 0 {
		if x, err = g.drop(x, inputDropout, c.DropoutInput, g.embedding.y); err != nil {
			return nil, nil, err
		}
	}
	x, recurrent, err := g.recurrent(nodes, x)
	if err != nil {
		return nil, nil, err
	}
	weights = append(weights, recurrent...)
	if c.projects() {
		g.projection = newProjection(m.dev, g.gradient(projectionWeight),
			cut(g.memory.projected, g.T, g.B, c.Embed), g.inputGradient(0, c.Hidden))
		g.projection.done = g.finishing(find(m.views, projectionWeight))
		x, err = g.projection.apply(x, weight(projectionWeight, projectionWeight))
		if err != nil {
			return nil, nil, err
		}
	}
	// A tied embedding has a second node here. With a single node Gorgonia would add the two
	// gradients, but they share memory, and the embedding's operator has already added them.
	g.output = newCrossEntropy(g.newOutput(), m.dev, g.gradient(c.outputWeights()),
		g.gradient(outputBias),
		cut(g.memory.gradient[g.outputGradientIndex()], g.T, g.B, c.outputWidth()))
	g.output.done = g.finishing(find(m.views, outputBias))
	cost, err = g.output.apply(x, weight("output:"+c.outputWeights(), c.outputWeights()),
		weight(outputBias, outputBias))
	return cost, weights, err
}

// recurrent adds the recurrent layers and their dropout. It returns the last layer's output and all
// layers' weight nodes.
func (g *graph) recurrent(nodes *gorgonia.ExprGraph, x *gorgonia.Node) (y *gorgonia.Node,
	weights gorgonia.Nodes, err error) {
	m, c := g.model, g.model.config
	for k := range c.Layers {
		begin, end := layerSpan(m.views, k)
		w := leaf(nodes, fmt.Sprintf("rnn.l%d.weights", k), m.params[begin:end:end], end-begin)
		weights = append(weights, w)
		layer := g.newLayer(k)
		g.layers = append(g.layers, layer)
		if x, err = layer.Apply(x, w); err != nil {
			return nil, nil, err
		}
		if c.Dropout > 0 {
			if x, err = g.drop(x, k, c.Dropout, layer.y); err != nil {
				return nil, nil, err
			}
		}
	}
	return x, weights, nil
}

// drop adds dropout of y, the output of a layer or, with inputDropout, of the embedding. x is y's
// node.
func (g *graph) drop(x *gorgonia.Node, layer int, p float64, y *buffer) (*gorgonia.Node, error) {
	width := y.value.Shape()[2]
	d := &dropout{dev: g.model.dev, layer: layer, p: float32(p), keys: make([]uint64, g.B), y: y,
		dy: g.inputGradient(g.model.config.Layers-1-layer, width)}
	g.dropouts = append(g.dropouts, d)
	return d.apply(x)
}

// newLayer makes recurrent layer k.
func (g *graph) newLayer(k int) *Layer {
	m, c := g.model, g.model.config
	begin, end := layerSpan(m.views, k)
	l := newLayer(m.dev, fmt.Sprintf("rnn.l%d", k), c.layerShape(k, g.T, g.B),
		g.grads[begin:end:end], cut(g.memory.hidden[k], g.T, g.B, c.Hidden))
	g.reports(l, m.views, direction{layer: k}, k == 0)
	if k > 0 || c.rowWidth() > 0 {
		l.dx = g.inputGradient(c.Layers-k, c.inputWidth(k))
	}
	return l
}

// newOutput makes the output layer's kernel.
func (g *graph) newOutput() compute.Output {
	c := g.model.config
	s := compute.OutputShape{N: g.T * g.B, H: c.outputWidth(), V: c.Vocab,
		Smoothing: float32(c.LabelSmoothing)}
	if c.Inputs > 0 {
		return compute.NewSquares(g.model.dev, s, g.model.series.negated)
	}
	return g.model.dev.NewOutput(s)
}

// gradient returns the memory of a tensor's gradient.
func (g *graph) gradient(name string) []float32 {
	if name == embeddingWeight && !g.model.config.TieWeights {
		return g.model.view(name, g.model.grads)
	}
	return g.model.view(name, g.grads)
}

// inputGradient is the gradient buffer below this many layers, counted from the last: [T, B,
// width].
func (g *graph) inputGradient(layers, width int) *buffer {
	return cut(g.memory.gradient[layers%2], g.T, g.B, width)
}

// outputGradientIndex is the buffer that the output layer writes its input's gradient to. The last
// recurrent layer then reads inputGradient(0).
func (g *graph) outputGradientIndex() int {
	if g.model.config.projects() {
		return 1
	}
	return 0
}

// load sets the input of the next pass: in's steps from first on.
func (g *graph) load(in SegmentInput, first int) {
	c, at, n := g.model.config, first*g.B, g.T*g.B
	copy(g.ids, in.Inputs[at:at+n])
	copy(g.output.targets, in.Targets[at:at+n])
	g.output.scale = in.Scale
	if c.Inputs > 0 { // not an operator, since it has no gradient
		g.model.dev.Embed(g.memory.embedded[:n*c.Inputs], g.weights.embedding, g.ids)
	}
	for _, d := range g.dropouts {
		d.load(c.Seed, in.Step, in.Lanes, first)
	}
}

// advance runs only the forward pass, up to the last recurrent layer: it computes the state after
// the loaded steps.
func (g *graph) advance(before, after state) {
	in := compute.RecurrentInput{IDs: g.ids}
	if e := g.embedding; e != nil {
		e.dev.Embed(e.y.flat, g.weights.embedding, g.ids)
		g.dropForward(inputDropout)
		in = compute.RecurrentInput{X: e.y.flat}
	} else if F := g.model.config.Inputs; F > 0 {
		in = compute.RecurrentInput{X: g.memory.embedded[:g.T*g.B*F]}
	}
	for k, l := range g.layers {
		l.kernel.Forward(g.weights.layers[k], in, before.layers[k], l.y.flat, after.layers[k])
		if k < len(g.layers)-1 { // no operator here reads the last layer's output
			g.dropForward(k)
		}
		in = compute.RecurrentInput{X: l.y.flat}
	}
}

// dropForward applies the dropout of a layer's output, or with inputDropout of the embedding's, if
// there is any.
func (g *graph) dropForward(layer int) {
	for _, d := range g.dropouts {
		if d.layer == layer {
			d.drop(d.y)
		}
	}
}

// run runs forward and backward over the loaded steps. It computes the state after from the state
// before. dafter, if not zero, is the gradient of after from the later steps; dbefore, if not zero,
// receives the gradient of before. between is that of tape.run.
func (g *graph) run(before, after, dafter, dbefore state, between func() error) error {
	g.carry(before, after, dafter, dbefore)
	return g.tape.run(between)
}

// carry sets the recurrent layers' states and, as in run, their gradients.
func (g *graph) carry(before, after, dafter, dbefore state) {
	for k := range g.model.config.Layers {
		var dout, dstate compute.RecurrentState
		if dafter.layers != nil {
			dout = dafter.layers[k]
		}
		if dbefore.layers != nil {
			dstate = dbefore.layers[k]
		}
		l := g.layers[k]
		l.in, l.out, l.dout, l.dstate = before.layers[k], after.layers[k], dout, dstate
	}
}

// unwrapVM returns the MemoryError or DeviceError that an operator raised, without Gorgonia's
// register dump. Other errors pass unchanged.
func unwrapVM(err error) error {
	inner := err
	if machine, ok := err.(interface{ Err() error }); ok { // the type has no Unwrap
		inner = machine.Err()
	}
	if lack, ok := errors.AsType[*compute.MemoryError](inner); ok {
		return lack
	}
	if failed, ok := errors.AsType[*compute.DeviceError](inner); ok {
		return failed
	}
	return err
}

func (g *graph) close() {
	g.tape.close()
	for _, l := range g.layers {
		l.Close()
	}
	g.layers = nil
}

// activations is a graph's working memory besides its kernels' own: the layers' outputs, which
// backward reads, and two buffers for the gradient on its way down. Each operator reads one of
// these and writes the other. Graphs that run in turn share it.
type activations struct {
	dev       compute.Device
	embedded  []float32    // [T, B, E], or the series' rows, [T, B, F]
	hidden    [][]float32  // each layer's output, [T, B, H]
	projected []float32    // [T, B, E]
	gradient  [2][]float32 // [T, B, max(E, F, H)]
}

// allocate makes room for T steps of B lanes.
func (a *activations) allocate(c Config, alloc func(n int) []float32, T, B int) {
	n := T * B
	a.embedded = alloc(n * c.rowWidth())
	for range c.Layers {
		a.hidden = append(a.hidden, alloc(n*c.Hidden))
	}
	if c.projects() {
		a.projected = alloc(n * c.Embed)
	}
	a.gradient[0] = alloc(n * max(c.rowWidth(), c.Hidden))
	if c.rowWidth() > 0 || c.Layers > 1 { // the input of the only other layer has no gradient
		a.gradient[1] = alloc(n * max(c.rowWidth(), c.Hidden))
	}
}

func (a *activations) close() {
	for _, x := range append(a.hidden, a.embedded, a.projected, a.gradient[0], a.gradient[1]) {
		a.dev.Free(x)
	}
	*a = activations{dev: a.dev}
}
