package model

import (
	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// translation is a translator's parts for Ts source steps, Td target steps and B lanes, and its
// training graph once it is compiled.
//
// The graph is one chain, because Gorgonia would add the gradients of a node with two readers in
// memory of its own: encoder, entry, decoder, attention, output. The decoder's layers read the
// encoder's final states, and attention its outputs, in memory that both name, and their gradients
// go the same way back. The entry keeps the two in order.
type translation struct {
	tape
	translator       *Translator
	encoder, decoder *stack
	entry            *entry
	attention        *attention // nil: none follows the decoder's layers
	additive         *additive  // nil: not AttentionBahdanau
}

// translationMemory is the working memory of translations besides their kernels' own. Translations
// that run in turn share it.
type translationMemory struct {
	encoder, decoder stackMemory
	attention        attentionMemory
	steps            stackMemory // of an additive's layers
	additive         []float32
	dstates          []float32 // gradients of the decoder's first states, [L, States, B, H]
}

// on sets the device.
func (m *translationMemory) on(dev compute.Device) {
	m.encoder.dev, m.decoder.dev, m.attention.dev, m.steps.dev = dev, dev, dev, dev
}

// allocate makes room for these steps of B lanes.
func (m *translationMemory) allocate(c TranslatorConfig, alloc func(n int) []float32, source,
	target, B int) {
	m.encoder.allocate(c.encoder(), alloc, source, B)
	d := c.decoder()
	switch {
	case c.Attention.after():
		m.attention.allocate(c, alloc, source, target, B)
	case c.Attention == AttentionBahdanau:
		m.steps.allocate(d, alloc, 1, B)
		m.additive = alloc(c.additiveSize(source, target, B))
		d.Layers, d.attended = 1, 0 // only the last layer's output
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
	m.dstates, m.additive = nil, nil
}

// newTranslation makes the parts but for their kernels.
func newTranslation(t *Translator, source, target, B int, memory *translationMemory) *translation {
	n, c := &translation{translator: t}, t.config
	n.encoder = &stack{parameters: &t.parameters, stackConfig: c.encoder(), tape: &n.tape,
		rows: &t.rows, T: source, B: B, memory: &memory.encoder}
	n.decoder = &stack{parameters: &t.parameters, stackConfig: c.decoder(), tape: &n.tape,
		rows: &t.decoderRows, T: target, B: B, memory: &memory.decoder}
	return n
}

// make makes the parts. On an error of the device it panics, and keeps what was made.
func (n *translation) make(memory *translationMemory) {
	n.encoder.make()
	n.decoder.makeEmbedding()
	c, kind := n.decoder.stackConfig, n.translator.config.Attention
	size := len(memory.dstates) / c.Layers
	var dfirst []compute.RecurrentState
	for k := range c.Layers {
		d := cutState(c.layerShape(k, 1, n.decoder.B), memory.dstates[k*size:])
		dfirst = append(dfirst, d)
		for _, side := range n.encoder.sides(k) {
			side.lengths, side.dout = n.encoder.lengths, d
		}
	}
	n.entry = newEntry(n.encoder, n.decoder)
	n.entry.attended = kind != AttentionNone
	if kind == AttentionBahdanau {
		n.newAdditive(&memory.steps, memory.additive, dfirst)
		return
	}
	n.decoder.makeLayers()
	for k, layer := range n.decoder.layers {
		if !c.stateless {
			layer.(*Layer).in, layer.(*Layer).dstate = n.encoder.sides(k)[0].out, dfirst[k]
		}
	}
	if kind.after() {
		n.attention = newAttention(kind, n.encoder, n.decoder, &memory.attention)
	}
}

// build adds the forward pass. It returns the cost and all weights' nodes.
func (n *translation) build(nodes *gorgonia.ExprGraph) (cost *gorgonia.Node,
	weights gorgonia.Nodes, err error) {
	leaves := &leaves{parameters: n.decoder.parameters, nodes: nodes}
	x, err := n.encoder.embed(nodes, leaves)
	if err != nil {
		return nil, nil, err
	}
	if x, err = n.encoder.apply(x, leaves); err != nil {
		return nil, nil, err
	}
	if x, err = n.entry.apply(x, nodes, leaves); err != nil {
		return nil, nil, err
	}
	dx := n.decoder.inputGradient(0, n.decoder.Hidden)
	if n.additive != nil {
		x, err = n.additive.apply(x, leaves)
		dx = n.decoder.inputGradient(n.decoder.Layers+1, n.decoder.Hidden)
	} else {
		x, err = n.decoder.apply(x, leaves)
	}
	if err == nil && n.attention != nil {
		x, err = n.attention.apply(x, leaves)
		dx = n.decoder.inputGradient(1, n.decoder.Hidden)
	}
	if err != nil {
		return nil, nil, err
	}
	n.output, cost, err = leaves.crossEntropy(x, dx, n.translator.config.LabelSmoothing, &n.tape)
	return cost, leaves.all, err
}

// load sets the input of the next run.
func (n *translation) load(in Pairs, training bool) {
	n.encoder.load(in.source())
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
	n.output.scale = in.Scale
	if n.additive != nil {
		n.additive.in = nil
		if training {
			n.additive.in = &in
		}
	}
	if training {
		n.encoder.loadDropout(in.Step, in.Lanes, 0)
		n.decoder.loadDropout(in.Step, in.Lanes, 0)
	}
}

// encode runs the encoder on the loaded source, without dropout.
func (n *translation) encode() {
	n.encoder.runLayers(n.encoder.input(false))
	n.entry.join()
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
	n.entry.run(false)
	if n.additive != nil {
		return n.additive.run(n.entry.x.flat)
	}
	y := n.decoder.runLayers(compute.RecurrentInput{X: n.entry.x.flat})
	if n.attention != nil {
		return n.attention.run(y)
	}
	return y
}

func (n *translation) close() {
	n.tape.close()
	n.encoder.close()
	n.decoder.close()
	if n.additive != nil && n.additive.step != nil {
		n.additive.step.close()
	}
}

// entry is the operator between encoder and decoder: it makes the first decoder layer's input of
// the target's embedding and, with ContextConcat, the last encoder layer's final hidden state.
type entry struct {
	encoder, decoder *stack
	top              *Layer    // its out is the decoder's last layer's first state
	lanes            []int32   // [Td, B]: each row's lane of the final state
	x                *buffer   // [Td, B, E or E+H]
	scratch          []float32 // [Td, B, E] or [Td, B, H]
	dencoded         *buffer   // gradient of the encoder's output: [Ts, B, W]
	attended         bool      // attention has computed dencoded
}

func newEntry(encoder, decoder *stack) *entry {
	c := decoder.stackConfig
	e := &entry{encoder: encoder, decoder: decoder, top: encoder.sides(c.Layers - 1)[0],
		lanes:    make([]int32, decoder.T*decoder.B),
		x:        cut(decoder.memory.embedded, decoder.T, decoder.B, c.Embed+c.context),
		scratch:  decoder.inputGradient(c.Layers+1, max(c.Embed, c.context)).flat,
		dencoded: encoder.inputGradient(0, encoder.width())}
	for i := range e.lanes {
		e.lanes[i] = int32(i % decoder.B)
	}
	return e
}

// join adds the final states of the second direction to those of the first.
func (e *entry) join() {
	for k := range e.encoder.layers {
		if sides := e.encoder.sides(k); len(sides) == 2 {
			e.encoder.dev.Add(sides[0].out.H, sides[1].out.H)
			if c := sides[0].out.C; c != nil {
				e.encoder.dev.Add(c, sides[1].out.C)
			}
		}
	}
}

// run computes x.
func (e *entry) run(training bool) {
	s, n := e.decoder, e.decoder.T*e.decoder.B
	y := s.input(training).X
	if s.context == 0 {
		return // the embedding is x
	}
	s.dev.CopyRows(e.part(e.x.flat, 0), packed(y, s.Embed), n, s.Embed, nil, false)
	s.dev.CopyRows(e.part(e.x.flat, s.Embed), packed(e.top.out.H, s.context), n, s.context,
		e.lanes, false)
}

// part is the columns of x, or of its gradient, from at on.
func (e *entry) part(x []float32, at int) compute.Columns {
	return compute.Columns{X: x, Stride: e.decoder.Embed + e.decoder.context, At: at}
}

// backward computes the gradients of the table and the encoder's output, and adds the final state's
// to the one that the decoder's layers have computed.
func (e *entry) backward(dx []float32) {
	s, n := e.decoder, e.decoder.T*e.decoder.B
	if s.context > 0 {
		d := e.scratch[:n*s.context]
		s.dev.CopyRows(packed(d, s.context), e.part(dx, s.Embed), n, s.context, nil, false)
		if s.stateless { // no layer has overwritten it
			s.dev.Zero(e.top.dout.H)
		}
		s.dev.EmbedBackward(e.top.dout.H, d, e.lanes)
		d = e.scratch[:n*s.Embed]
		s.dev.CopyRows(packed(d, s.Embed), e.part(dx, 0), n, s.Embed, nil, false)
		dx = d
	}
	if s.dropped != nil {
		s.dropped.drop(cut(dx, s.T, s.B, s.Embed))
	}
	s.embedding.backward(dx, s.ids)
	if !e.attended {
		s.dev.Zero(e.dencoded.flat)
	}
}

// apply adds the operator to the graph of the encoder's output, and returns x's node.
func (e *entry) apply(encoded *gorgonia.Node, nodes *gorgonia.ExprGraph, weights *leaves) (
	*gorgonia.Node, error) {
	s := e.decoder
	forward := &operator{name: "decoder.input", shape: e.x.value.Shape().Clone(),
		wrt: []bool{true, false, true},
		run: func([]gorgonia.Value) (gorgonia.Value, error) {
			e.join()
			e.run(true)
			return e.x.value, nil
		}}
	forward.gradient = func(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		backward := &operator{name: "decoder.input.backward",
			shape: e.dencoded.value.Shape().Clone(),
			run: func(in []gorgonia.Value) (gorgonia.Value, error) {
				dx, err := floats(in[2], len(e.x.flat))
				if err != nil {
					return nil, err
				}
				e.backward(dx)
				return e.dencoded.value, nil
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
