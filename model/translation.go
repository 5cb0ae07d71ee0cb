package model

import (
	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// translation is a translator's parts for Ts source steps, Td target steps and B lanes, and its
// training graph once it is compiled.
//
// The graph is one chain, because Gorgonia would add the gradients of a node with two readers in
// memory of its own: encoder, decoder's input, decoder, attention, output. The decoder's layers
// read the encoder's final states, and attention its outputs, in memory that both name, and their
// gradients go the same way back. The decoder's input keeps the two in order.
type translation struct {
	tape
	translator       *Translator
	encoder, decoder *stack
	vectors          *vectors // in place of the encoder; nil: there is one
	joints           []joint  // of a bidirectional encoder
	input            *decoderInput
	attention        *attention // nil: none follows the decoder's layers
	additive         *additive  // nil: not AttentionBahdanau
	ends             *ends      // nil: EndToken
	dx               *buffer    // gradient of the output layer's input
}

// translationMemory is the working memory of translations besides their kernels' own. Translations
// that run in turn share it.
type translationMemory struct {
	encoder, decoder stackMemory
	attention        attentionMemory
	steps            stackMemory // of an additive's layers
	additive         []float32
	vectors          []float32
	bridge           []float32
	dstates          []float32 // gradients of the decoder's first states, [L, States, B, H]
}

// on sets the device.
func (m *translationMemory) on(dev compute.Device) {
	m.encoder.dev, m.decoder.dev, m.attention.dev, m.steps.dev = dev, dev, dev, dev
}

// allocate makes room for these steps of B lanes.
func (m *translationMemory) allocate(c TranslatorConfig, alloc func(n int) []float32, source,
	target, B int) {
	if c.Vectors > 0 {
		m.vectors = alloc(c.vectorsSize(B))
	} else {
		m.encoder.allocate(c.encoder(), alloc, source, B)
	}
	if n := c.bridgeSize(B); n > 0 {
		m.bridge = alloc(n)
	}
	d := c.decoder()
	switch {
	case c.Attention.after():
		m.attention.allocate(c, alloc, source, target, B)
	case c.Attention == AttentionBahdanau:
		m.steps.allocate(d, alloc, 1, B)
		m.additive = alloc(c.additiveSize(source, target, B))
		d.Layers, d.attended, d.LayerNorm = 1, 0, false // only the last layer's output
	}
	m.decoder.allocate(d, alloc, target, B)
	m.dstates = alloc(B * c.network().StateSize())
}

func (m *translationMemory) close() {
	m.encoder.close()
	m.decoder.close()
	m.attention.close()
	m.steps.close()
	m.decoder.dev.Free(m.dstates)
	m.decoder.dev.Free(m.additive)
	m.decoder.dev.Free(m.vectors)
	m.decoder.dev.Free(m.bridge)
	m.dstates, m.additive, m.vectors, m.bridge = nil, nil, nil, nil
}

// newTranslation makes the parts but for their kernels.
func newTranslation(t *Translator, source, target, B int, memory *translationMemory) *translation {
	n, c := &translation{translator: t}, t.config
	if c.Vectors == 0 {
		n.encoder = &stack{parameters: &t.parameters, stackConfig: c.encoder(), tape: &n.tape,
			rows: &t.rows, T: source, B: B, memory: &memory.encoder}
	}
	n.decoder = &stack{parameters: &t.parameters, stackConfig: c.decoder(), tape: &n.tape,
		rows: &t.decoderRows, T: target, B: B, memory: &memory.decoder}
	return n
}

// make makes the parts. On an error of the device it panics, and keeps what was made.
func (n *translation) make(memory *translationMemory) {
	if n.encoder != nil {
		n.encoder.make()
	}
	n.decoder.makeInput()
	c, kind := n.decoder.stackConfig, n.translator.config.Attention
	size := len(memory.dstates) / c.Layers
	var dfirst []compute.RecurrentState
	for k := range c.Layers {
		d := cutState(c.layerShape(k, 1, n.decoder.B), memory.dstates[k*size:])
		dfirst = append(dfirst, d)
		if n.encoder != nil {
			for _, side := range n.encoder.sides(k) {
				side.lengths, side.dout = n.encoder.lengths, d
			}
		}
	}
	if n.encoder == nil {
		n.vectors = newVectors(n.translator, n.decoder.B, memory.vectors, dfirst, &n.tape)
	} else {
		n.makeJoints(memory.bridge)
	}
	if way := n.translator.config.Ends; way != EndToken {
		n.ends = &ends{translation: n}
		if way == EndLength {
			n.ends.remaining = make([]int32, n.decoder.T*n.decoder.B)
		}
	}
	n.input = newDecoderInput(n)
	n.input.attended = kind != AttentionNone
	gradient := 0
	if kind == AttentionBahdanau {
		n.newAdditive(&memory.steps, memory.additive, dfirst)
		gradient = c.Layers + 1
	} else {
		n.decoder.makeLayers()
	}
	for k, layer := range n.decoder.layers {
		if !c.stateless {
			layer.(*Layer).in, layer.(*Layer).dstate = n.first(k), dfirst[k]
		}
	}
	if kind.after() {
		n.attention = newAttention(kind, n.encoder, n.decoder, &memory.attention)
		gradient = 1
	}
	n.dx = n.decoder.makeDeepOutput(c.deepOutput(n.decoder.T*n.decoder.B),
		n.decoder.inputGradient(gradient, c.Hidden))
}

// first is the state from which the decoder's layer k starts.
func (n *translation) first(k int) compute.RecurrentState {
	if n.vectors != nil {
		return n.vectors.first[k]
	}
	return n.encoder.sides(k)[0].out
}

// source adds the encoder to the graph, and returns what the decoder's input depends on.
func (n *translation) source(nodes *gorgonia.ExprGraph, leaves *leaves) (*gorgonia.Node, error) {
	if n.vectors != nil {
		return leaves.tensor(vectorWeight), nil
	}
	x, err := n.encoder.embed(nodes, leaves)
	if err != nil {
		return nil, err
	}
	return n.encoder.apply(x, leaves)
}

// build adds the forward pass. It returns the cost and all weights' nodes.
func (n *translation) build(nodes *gorgonia.ExprGraph) (cost *gorgonia.Node,
	weights gorgonia.Nodes, err error) {
	leaves := &leaves{parameters: n.decoder.parameters, nodes: nodes}
	x, err := n.source(nodes, leaves)
	if err != nil {
		return nil, nil, err
	}
	if x, err = n.input.apply(x, nodes, leaves); err != nil {
		return nil, nil, err
	}
	if n.additive != nil {
		x, err = n.additive.apply(x, leaves)
	} else {
		x, err = n.decoder.apply(x, leaves)
	}
	if err == nil && n.attention != nil {
		x, err = n.attention.apply(x, leaves)
	}
	if err == nil {
		x, err = n.decoder.deepOutput.apply(x, leaves)
	}
	if err != nil {
		return nil, nil, err
	}
	n.output, cost, err = leaves.crossEntropy(x, n.dx, n.translator.config.LabelSmoothing, &n.tape)
	if n.ends != nil && err == nil {
		n.addEnds()
	}
	return cost, leaves.all, err
}

// load sets the input of the next run.
func (n *translation) load(in Pairs, training bool) {
	n.loadSource(in.source())
	lengths, B := in.targetLengths(n.decoder.B), n.decoder.B
	for i := range n.decoder.ids {
		n.decoder.ids[i], n.output.targets[i] = 0, -1
		if i/B < lengths[i%B] {
			n.decoder.ids[i], n.output.targets[i] = in.Inputs[i], in.Targets[i]
			if n.translator.config.Feedback == FeedbackHidden {
				n.decoder.ids[i] = in.Inputs[i%B]
			}
		}
	}
	if n.ends != nil {
		n.ends.load(lengths)
	}
	n.output.scale = in.Scale
	if n.additive != nil {
		n.additive.in = nil
		if training {
			n.additive.in = &in
		}
	}
	if training {
		if n.encoder != nil {
			n.encoder.loadDropout(in.Step, in.Lanes, 0)
		}
		n.decoder.loadDropout(in.Step, in.Lanes, 0)
	}
}

// loadSource sets the source of the next run.
func (n *translation) loadSource(in Examples) {
	if n.vectors != nil {
		n.vectors.load(in)
	} else {
		n.encoder.load(in)
	}
}

// encode runs the encoder on the loaded source, without dropout.
func (n *translation) encode() {
	if n.encoder != nil {
		n.encoder.runLayers(n.encoder.input(false))
	}
	n.makeFirst()
	if n.attention != nil {
		n.attention.project()
	} else if n.additive != nil {
		n.additive.project()
	}
}

// attends is the attention, whose V and Lengths are of the lanes' sources, and their keys; nil:
// there is none.
func (n *translation) attends() (of *compute.Attention, keys *[]float32) {
	switch {
	case n.attention != nil:
		return &n.attention.of, &n.attention.of.K
	case n.additive != nil:
		return &n.additive.of, &n.additive.keys
	}
	return nil, nil
}

// decode runs the decoder on the loaded tokens, without dropout, and returns the output layer's
// input: [Td, B, H].
func (n *translation) decode() []float32 {
	n.input.run(false)
	var y []float32
	if n.additive != nil {
		y = n.additive.run(n.input.x.flat)
	} else {
		y = n.decoder.runLayers(compute.RecurrentInput{X: n.input.x.flat})
	}
	if n.attention != nil {
		y = n.attention.run(y)
	}
	return n.decoder.deepOutput.run(y)
}

func (n *translation) close() {
	n.tape.close()
	if n.encoder != nil {
		n.encoder.close()
	}
	n.decoder.close()
	if n.additive != nil && n.additive.step != nil {
		n.additive.step.close()
	}
}

// decoderInput is the operator between encoder and decoder: it makes the first decoder layer's
// input of the target's embedding, or the deep input's output, and, unless with ContextState, the
// context: the last encoder layer's final hidden state, or the last projection of a vector.
type decoderInput struct {
	*translation
	context, dcontext []float32 // [B, H], and its gradient
	lanes             []int32   // [Td, B]: each row's lane of the context
	x                 *buffer   // [Td, B, D]: D is E, with a deep input H; with a context H more
	scratch           []float32 // [Td, B, D] without the context's columns, or these
	dencoded          *buffer   // gradient of the encoder's output: [Ts, B, W]; or vectors.dw
	attended          bool      // attention has computed dencoded
}

func newDecoderInput(n *translation) *decoderInput {
	decoder := n.decoder
	c := decoder.stackConfig
	di := &decoderInput{translation: n, lanes: make([]int32, decoder.T*decoder.B),
		scratch: decoder.inputGradient(c.Layers+1, max(c.inputWidth(0), c.context)).flat}
	if decoder.deep != nil && c.context == 0 {
		di.x = decoder.deep.y
	} else {
		di.x = cut(decoder.memory.embedded, decoder.T, decoder.B, c.unattendedWidth())
	}
	if v := n.vectors; v != nil {
		last := len(v.y) - 1
		di.context, di.dcontext, di.dencoded = v.y[last], v.dy[last], v.dw
	} else {
		top := n.encoder.sides(c.Layers - 1)[0]
		di.context, di.dcontext = top.out.H, top.dout.H
		di.dencoded = n.encoder.inputGradient(0, n.encoder.width())
	}
	for i := range di.lanes {
		di.lanes[i] = int32(i % decoder.B)
	}
	return di
}

// makeFirst makes the states from which the decoder starts: it joins the final states of the
// encoder's directions, or projects vectors.
func (n *translation) makeFirst() {
	if n.vectors != nil {
		n.vectors.run()
	}
	for _, j := range n.joints {
		j.run()
	}
}

// embedded computes the target's embedding.
func (di *decoderInput) embedded(training bool) []float32 {
	y := di.decoder.embedded(training)
	di.ends.embed(y)
	return y
}

// run computes x.
func (di *decoderInput) run(training bool) {
	s, n, wide := di.decoder, di.decoder.T*di.decoder.B, di.decoder.inputWidth(0)
	y := s.deep.run(di.embedded(training))
	if s.context == 0 {
		return // y is x
	}
	s.dev.CopyRows(di.part(di.x.flat, 0), packed(y, wide), n, wide, nil, false)
	s.dev.CopyRows(di.part(di.x.flat, wide), packed(di.context, s.context), n, s.context,
		di.lanes, false)
}

// part is the columns of x, or of its gradient, from at on.
func (di *decoderInput) part(x []float32, at int) compute.Columns {
	return compute.Columns{X: x, Stride: di.decoder.unattendedWidth(), At: at}
}

// backward computes the gradients of the table, the deep input and the encoder's output, and adds
// the final state's to the one that the decoder's layers have computed.
func (di *decoderInput) backward(dx []float32) {
	s, n, wide := di.decoder, di.decoder.T*di.decoder.B, di.decoder.inputWidth(0)
	if s.context > 0 {
		d := di.scratch[:n*s.context]
		s.dev.CopyRows(packed(d, s.context), di.part(dx, wide), n, s.context, nil, false)
		if s.stateless { // no layer has overwritten it
			s.dev.Zero(di.dcontext)
		}
		s.dev.EmbedBackward(di.dcontext, d, di.lanes)
		d = di.scratch[:n*wide]
		s.dev.CopyRows(packed(d, wide), di.part(dx, 0), n, wide, nil, false)
		dx = d
	}
	if s.deep != nil { // others have used the embedding's memory since, which may be dx's
		d := s.deep.kernel.Gradient()
		s.dev.CopyRows(packed(d, wide), packed(dx, wide), n, wide, nil, false)
		s.deep.backward(di.embedded(true), d)
		dx = s.deep.dx.flat
	}
	di.ends.backward(dx)
	if s.dropped != nil {
		s.dropped.drop(cut(dx, s.T, s.B, s.Embed))
	}
	s.embedding.backward(dx, s.ids)
	di.joinBackward()
	if di.vectors != nil {
		di.vectors.backward()
	} else if !di.attended {
		s.dev.Zero(di.dencoded.flat)
	}
}

// apply adds the operator to the graph of the encoder's output, and returns x's node.
func (di *decoderInput) apply(encoded *gorgonia.Node, nodes *gorgonia.ExprGraph, weights *leaves) (
	*gorgonia.Node, error) {
	s := di.decoder
	forward := &operator{name: "decoder.input", shape: di.x.value.Shape().Clone(),
		wrt: []bool{true, false, true},
		run: func([]gorgonia.Value) (gorgonia.Value, error) {
			di.makeFirst()
			di.run(true)
			return di.x.value, nil
		}}
	forward.gradient = func(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		backward := &operator{name: "decoder.input.backward",
			shape: di.dencoded.value.Shape().Clone(),
			run: func(in []gorgonia.Value) (gorgonia.Value, error) {
				dx, err := floats(in[2], len(di.x.flat))
				if err != nil {
					return nil, err
				}
				di.backward(dx)
				return di.dencoded.value, nil
			}}
		dencoded, err := backward.apply(in[0], y, dy)
		if err != nil {
			return nil, err
		}
		dtable, err := port("decoder.embedding.dw", dencoded, s.embedding.dw)
		return gorgonia.Nodes{dencoded, nil, dtable}, err
	}
	ids := leafIDs(nodes, s.prefix+"ids", s.ids, s.T, s.B)
	return forward.apply(encoded, ids, weights.tensor(s.prefix+embeddingWeight))
}
