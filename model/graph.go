package model

import (
	"errors"
	"fmt"
	"slices"

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
	*stack
	model      *Model
	weights    weights
	projection *projection
}

// newGraph builds the graph. memory must suffice for T steps of B lanes, and grads is laid out as
// the model's gradients; an untied embedding's part is unused.
func newGraph(m *Model, T, B int, memory *stackMemory, grads []float32) (*graph, error) {
	g := &graph{model: m, weights: m.weights()}
	g.stack = &stack{parameters: &m.parameters, stackConfig: stackConfig{Config: m.config},
		tape: &g.tape, rows: &m.parameters.rows, T: T, B: B, memory: memory, partial: grads}
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
	g.make()
	makePenalties(g.stack)
	leaves := &leaves{parameters: &m.parameters, nodes: nodes}
	var x *gorgonia.Node
	if c.Inputs > 0 {
		x, err = g.deep.apply(leaf(nodes, "rows", g.series(), g.T, g.B, c.Inputs), leaves)
	} else {
		x, err = g.embed(nodes, leaves)
	}
	if err != nil {
		return nil, nil, err
	}
	if x, err = g.apply(x, leaves); err != nil {
		return nil, nil, err
	}
	dx := g.makeDeepOutput(c.deepOutput(g.T*g.B), g.inputGradient(0, c.Hidden))
	if x, err = g.deepOutput.apply(x, leaves); err != nil {
		return nil, nil, err
	}
	if c.projects() {
		v := find(m.views, projectionWeight)
		g.projection = newProjection(m.dev, g.gradientOf(v),
			cut(g.memory.projected, g.T, g.B, c.Embed), dx)
		dx = cut(g.memory.gradient[1], g.T, g.B, c.outputWidth())
		g.projection.done = g.finishing(v)
		if x, err = g.projection.apply(x, leaves.tensor(projectionWeight)); err != nil {
			return nil, nil, err
		}
	}
	// A tied embedding has a second node here. With a single node Gorgonia would add the two
	// gradients, but they share memory, and the embedding's operator has already added them.
	bias := find(m.views, outputBias)
	begin, end := outputSpan(c, m.views)
	g.output = newCrossEntropy(m.newOutput(g.T*g.B, c.LabelSmoothing), m.dev,
		g.gradient(begin, end), g.gradientOf(bias), dx)
	g.output.done = g.finishing(bias)
	w := leaves.part("output:"+c.outputWeights(), begin, end)
	cost, err = g.output.apply(x, w, leaves.tensor(outputBias))
	return cost, leaves.all, err
}

// series is the memory of a series' rows.
func (g *graph) series() []float32 {
	return g.memory.embedded[:g.T*g.B*g.model.config.Inputs]
}

// load sets the input of the next pass: in's steps from first on.
func (g *graph) load(in SegmentInput, first int) {
	c, at, n := g.model.config, first*g.B, g.T*g.B
	copy(g.ids, in.Inputs[at:at+n])
	copy(g.output.targets, in.Targets[at:at+n])
	g.output.scale, g.passScale = in.Scale, in.Scale
	loadTargets(g.output.kernel, g.output.targets)
	if c.Inputs > 0 { // not an operator, since it has no gradient
		g.model.dev.Embed(g.series(), g.weights.embedding, g.ids)
	}
	g.loadDropout(in.Step, in.Lanes, first)
}

// advance runs only the forward pass, up to the last recurrent layer: it computes the state after
// the loaded steps.
func (g *graph) advance(before, after state) {
	g.carry(before, after, state{}, state{})
	var x compute.RecurrentInput
	if g.model.config.Inputs > 0 {
		x.X = g.deep.run(g.series())
	} else {
		x = g.input(true)
	}
	last := g.Layers - 1
	for k := range last {
		x = g.runLayer(k, x, true)
	}
	begin, end := g.span(last)
	g.layers[last].run(g.params[begin:end:end], x)
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
	for k := range g.Layers {
		var dout, dstate compute.RecurrentState
		if dafter.layers != nil {
			dout = dafter.layers[k]
		}
		if dbefore.layers != nil {
			dstate = dbefore.layers[k]
		}
		l := g.sides(k)[0]
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
	g.stack.close()
}

// activations is a graph's working memory besides its kernels' own: the layers' outputs, which
// backward reads, and two buffers for the gradient on its way down. Each operator reads one of
// these and writes the other. Graphs that run in turn share it.
type activations struct {
	dev       compute.Device
	embedded  []float32    // [T, B, E], or the series' rows, [T, B, F]
	hidden    [][]float32  // each layer's output, [T, B, H]
	normed    [][]float32  // with LayerNorm each layer's, [T, B, H]
	stats     [][]float32  // with LayerNorm each layer's, [T*B, 2]
	projected []float32    // [T, B, E]
	temporal  []float32    // with TemporalL2: [T-1, B, H]
	squared   []float32    // with ActivationL2: [T, B, H]
	gradient  [2][]float32 // [T, B, max(E, F, H)]
}

// allocate makes room for T steps of B lanes.
func (a *activations) allocate(c Config, alloc func(n int) []float32, T, B int) {
	n := T * B
	a.embedded = alloc(n * c.rowWidth())
	for range c.Layers {
		a.hidden = append(a.hidden, alloc(n*c.Hidden))
		if c.LayerNorm {
			a.normed = append(a.normed, alloc(n*c.Hidden))
			a.stats = append(a.stats, alloc(2*n))
		}
	}
	if c.projects() {
		a.projected = alloc(n * c.Embed)
	}
	if c.TemporalL2 > 0 {
		a.temporal = alloc((T - 1) * B * c.Hidden)
	}
	if c.ActivationL2 > 0 {
		a.squared = alloc(n * c.Hidden)
	}
	a.gradient[0] = alloc(n * max(c.rowWidth(), c.Hidden))
	if c.rowWidth() > 0 || c.Layers > 1 { // the input of the only other layer has no gradient
		a.gradient[1] = alloc(n * max(c.rowWidth(), c.Hidden))
	}
}

func (a *activations) close() {
	for _, x := range slices.Concat(a.hidden, a.normed, a.stats,
		[][]float32{a.embedded, a.projected, a.temporal, a.squared, a.gradient[0],
			a.gradient[1]}) {
		a.dev.Free(x)
	}
	*a = activations{dev: a.dev}
}
