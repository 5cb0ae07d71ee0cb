package model

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// stackConfig is an embedding and recurrent layers of one or two directions. The Config's other
// parts do not matter.
type stackConfig struct {
	Config
	bidirectional bool
	prefix        string // of the tensors' names
	context       int    // columns of the first layer's input that follow the embedding's
	attended      int    // columns that follow these, of AttentionBahdanau's context
	stateless     bool   // every step starts from a zero state: T*B lanes of one step
	// first is the number of the first layer in the keys of dropout. The embedding's is one less.
	first int
}

// width is W, the width of a layer's output.
func (c stackConfig) width() int {
	if c.bidirectional {
		return c.Hidden + c.hiddenOf(true)
	}
	return c.Hidden
}

// hiddenOf is the width of a direction.
func (c stackConfig) hiddenOf(reverse bool) int {
	if reverse && c.HiddenBackward > 0 {
		return c.HiddenBackward
	}
	return c.Hidden
}

// layerShape is the shape of one direction of recurrent layer k for T steps of B lanes.
func (c stackConfig) layerShape(k, T, B int) compute.RecurrentShape {
	if c.stateless {
		T, B = 1, T*B
	}
	s := c.Config.layerShape(k, T, B)
	if s.D += c.context + c.attended; k > 0 {
		s.D = c.width()
	}
	return s
}

// unattendedWidth is the width of the first layer's input without the columns of attention.
func (c stackConfig) unattendedWidth() int { return c.inputWidth(0) + c.context }

// directionShape is the shape of a direction of a layer.
func (c stackConfig) directionShape(d direction, T, B int) compute.RecurrentShape {
	s := c.layerShape(d.layer, T, B)
	s.H = c.hiddenOf(d.reverse)
	return s
}

// direction returns a direction of layer k.
func (c stackConfig) direction(k int, reverse bool) direction {
	return direction{prefix: c.prefix, layer: k, reverse: reverse}
}

// directions are the layers' directions, in the order in which backward finishes their gradients.
func (c stackConfig) directions() (all []direction) {
	for k := c.Layers - 1; k >= 0; k-- {
		all = append(all, c.direction(k, false))
		if c.bidirectional {
			all = append(all, c.direction(k, true))
		}
	}
	return all
}

// layersSpan is the layers' part of the flat parameters, with what is between them: [begin, end).
func (c stackConfig) layersSpan(views []View) (begin, end int) {
	all := c.directions()
	begin, _ = all[0].span(views)
	if c.LayerNorm {
		begin = find(views, c.normName(c.Layers-1, "weight")).Offset
	}
	_, end = all[len(all)-1].span(views)
	return begin, end
}

// layout adds the tensors.
func (c stackConfig) layout(l *layouter) {
	for _, d := range c.directions() {
		if c.LayerNorm && !d.reverse {
			l.add(roleNormWeight, c.normName(d.layer, "weight"), c.width())
			l.add(roleNormBias, c.normName(d.layer, "bias"), c.width())
		}
		l.layer(c.directionShape(d, 1, 1), d.name)
	}
	l.perceptron(c.prefix+deepInput, c.DeepInput, c.rowWidth(), c.Hidden)
	if c.Embed > 0 {
		l.add(roleEmbedding, c.prefix+embeddingWeight, c.Vocab, c.Embed)
	}
}

// layerName is the name of layer k's operator.
func (c stackConfig) layerName(k int) string { return fmt.Sprintf("%srnn.l%d", c.prefix, k) }

// normName names a tensor of the normalisation behind layer k.
func (c stackConfig) normName(k int, what string) string {
	return fmt.Sprintf("%snorm.%d.%s", c.prefix, k, what)
}

// finishes are the ends of the gradient prefixes that a backward pass finishes in turn.
func (c stackConfig) finishes(views []View) []int {
	ends := c.recurrentEnds(views)
	if c.DeepInput > 0 {
		ends = append(ends, find(views, denseEnd(c.prefix+deepInput)).end())
	}
	if c.Embed > 0 {
		ends = append(ends, find(views, c.prefix+embeddingWeight).end())
	}
	return ends
}

// kernelSize is of the workspaces for T steps of B lanes.
func (c stackConfig) kernelSize(on compute.Sizer, T, B int) compute.Size {
	size := c.layersSize(on, T, B)
	if c.DeepInput > 0 {
		size = size.And(compute.PerceptronSize(on, c.deepInput(T*B)))
	}
	return size
}

// layersSize is of those of the recurrent layers.
func (c stackConfig) layersSize(on compute.Sizer, T, B int) (size compute.Size) {
	for _, d := range c.directions() {
		ids := d.layer == 0 && c.Embed == 0
		shape := c.directionShape(d, T, B)
		size = size.And(compute.RecurrentSize(on, shape, false, ids))
		if c.WeightDrop > 0 {
			size = size.And(on.TensorSize(weightDropFloats(shape)))
		}
	}
	return size
}

// stackMemory is the working memory of stacks besides their kernels' own. Stacks that run in turn
// share it.
type stackMemory struct {
	activations           // W for H; embedded is the first layer's input
	one         []float32 // one direction's output, or its gradient: [T, B, its width]
	reversed    []float32 // a layer's input, reversed: [T, B, D]
	before      []float32 // states before a sequence, [States, B, H]: zeros
	after       []float32 // the directions' states after it, [L*directions, States, B, H]
}

// allocate makes room for T steps of B lanes.
func (m *stackMemory) allocate(c stackConfig, alloc func(n int) []float32, T, B int) {
	wide := c.Config
	if more := c.context + c.attended; more > 0 {
		wide.Embed = max(c.Embed, c.inputWidth(0)+more)
	}
	wide.Hidden = c.width()
	m.activations.allocate(wide, alloc, T, B)
	if c.bidirectional {
		m.one = alloc(T * B * max(c.Hidden, c.hiddenOf(true)))
		widest := wide.Embed
		if c.Layers > 1 || c.DeepInput > 0 {
			widest = max(widest, c.width())
		}
		m.reversed = alloc(T * B * widest)
	}
	n := c.states() * c.layerShape(0, T, B).B * max(c.Hidden, c.HiddenBackward)
	m.before = alloc(n)
	m.after = alloc(len(c.directions()) * n)
}

func (m *stackMemory) close() {
	for _, x := range [][]float32{m.one, m.reversed, m.before, m.after} {
		m.dev.Free(x)
	}
	m.activations.close()
	*m = stackMemory{activations: m.activations}
}

// stack is an embedding and recurrent layers over a padded batch of T steps of B lanes.
type stack struct {
	*parameters
	stackConfig
	tape   *tape         // that the gradients are reported to
	rows   *gradientRows // of an embedding that is not tied
	T, B   int
	memory *stackMemory

	// partial takes the gradients from grads[begin:] on in its place, but for those of an embedding
	// that is not tied. nil: grads takes all.
	partial []float32
	begin   int

	ids     []int32 // [T, B]
	lengths []int32 // [B]

	embedding *embedding  // nil: one-hot
	dropped   *dropout    // of the embedding, or nil
	deep      *perceptron // the deep input, or nil
	layers    []stackable
	dropouts  []*dropout // of each layer, or nil
	skips     []*skip    // likewise
	norms     []*norm    // likewise
	order     reversal
	// of W_hh: none, or of each direction
	weightDrops []*weightDrop
	penalties   [2]*penalty // before and after the last layer's dropout, or nil
	// passScale is the factor of the loss in this pass: Config.Omega's too.
	passScale float32

	deepOutput *perceptron // what follows the layers, or nil
}

// make makes the stack's parts. memory must suffice for T steps of B lanes. On an error of the
// device it panics, and the stack keeps what was made.
func (s *stack) make() {
	s.makeInput()
	s.makeLayers()
}

// makeInput makes the embedding and the deep input.
func (s *stack) makeInput() {
	c := s.stackConfig
	s.ids, s.lengths = make([]int32, s.T*s.B), make([]int32, s.B)
	if c.Embed > 0 {
		table := find(s.views, c.prefix+embeddingWeight)
		y := cut(s.memory.embedded, s.T, s.B, c.Embed)
		if c.context > 0 { // the memory is for both
			y = s.inputGradient(c.Layers+1, c.Embed)
		}
		grad, rows := table.of(s.grads), s.rows
		if c.TieWeights {
			grad, rows = s.gradientOf(table), nil
		}
		s.embedding = newEmbedding(s.dev, c.prefix+"embedding", c.Vocab, grad, rows, y)
		s.embedding.done = s.tape.finishing(table)
		if c.DropoutWords > 0 {
			s.embedding.words = newWordDropout(c.DropoutWords, s.first, s.T*s.B)
		}
		s.dropped = s.newDropout(-1, c.DropoutInput, s.embedding.y)
	}
	if c.DeepInput > 0 {
		s.deep = s.newPerceptron(c.prefix+deepInput, c.deepInput(s.T*s.B),
			s.inputGradient(c.Layers, c.rowWidth()))
	}
}

func (s *stack) makeLayers() {
	c := s.stackConfig
	if c.bidirectional {
		s.order = make(reversal, s.T*s.B)
	}
	for k := range c.Layers {
		s.skips = append(s.skips, s.newSkip(k, cut(s.memory.hidden[k], s.T, s.B, c.width())))
		s.addLayer(k)
		s.dropouts = append(s.dropouts,
			s.newDropout(k, dropoutOf(c.Config, k), s.layers[k].output()))
		s.norms = append(s.norms, s.newNorm(k))
	}
}

// addLayer makes recurrent layer k.
func (s *stack) addLayer(k int) {
	c := s.stackConfig
	shape := c.layerShape(k, s.T, s.B)
	var dx *buffer
	if k > 0 || c.rowWidth() > 0 {
		dx = s.inputGradient(c.Layers-k, shape.D)
	}
	y := cut(s.memory.hidden[k], s.T, s.B, c.width())
	if !c.bidirectional {
		layer := s.newDirection(c.direction(k, false), shape, y, k, k == 0)
		layer.dx, layer.rows, layer.skip = dx, tensor.Shape{s.T, s.B}, s.skips[k]
		s.layers = append(s.layers, layer)
		return
	}
	begin, end := s.span(k)
	b := &bidirectional{name: s.layerName(k), dev: s.dev, shape: shape, order: s.order,
		skip: s.skips[k], y: y, dx: dx, dw: dense(s.grads[begin:end:end], end-begin)}
	if dx == nil {
		b.ids = make([]int32, s.T*s.B)
	} else {
		n := s.T * s.B * shape.D
		b.reversed = s.memory.reversed[:n:n]
		if b.spare = s.inputGradient(c.Layers-1-k, shape.D).flat; b.skip != nil {
			b.spare = y.flat
		}
	}
	s.layers = append(s.layers, b)
	side := func(d direction, at int) *Layer {
		shape := c.directionShape(d, s.T, s.B)
		return s.newDirection(d, shape, cut(s.memory.one, s.T, s.B, shape.H), at,
			d.reverse && k == 0)
	}
	b.forward = side(c.direction(k, false), 2*k)
	b.second = side(c.direction(k, true), 2*k+1)
}

// newDirection makes one direction of a recurrent layer, whose state is the memory's at this place
// unless the memory has none.
// last: its gradients are the last ones of the recurrent layers.
func (s *stack) newDirection(d direction, shape compute.RecurrentShape, y *buffer, at int,
	last bool) *Layer {
	begin, end := d.span(s.views)
	layer := newLayer(s.dev, s.layerName(d.layer), shape, s.gradient(begin, end), y)
	if s.Omega > 0 {
		layer.kernel = newOmega(s.dev, shape, layer.kernel, s.Omega, &s.passScale)
	}
	if s.WeightDrop > 0 {
		drop := newWeightDrop(s.dev, shape, layer.kernel, s.WeightDrop)
		layer.kernel, s.weightDrops = drop, append(s.weightDrops, drop)
		drop.layer, drop.reverse = s.first+d.layer, d.reverse
	}
	if s.memory.before != nil {
		layer.in = cutState(shape, s.memory.before)
		layer.out = cutState(shape, s.memory.after[at*len(s.memory.before):])
	}
	s.tape.reports(layer, s.views, d, last)
	return layer
}

// gradient is the memory of the gradients [begin, end).
func (s *stack) gradient(begin, end int) []float32 {
	if s.partial != nil {
		return s.partial[begin-s.begin : end-s.begin : end-s.begin]
	}
	return s.grads[begin:end:end]
}

// gradientOf is the memory of a tensor's gradient.
func (s *stack) gradientOf(v View) []float32 { return s.gradient(v.Offset, v.Offset+v.Len) }

// span is recurrent layer k's part of the flat parameters, with both directions.
func (s *stack) span(k int) (begin, end int) {
	begin, end = s.direction(k, false).span(s.views)
	if s.bidirectional {
		_, end = s.direction(k, true).span(s.views)
	}
	return begin, end
}

// inputGradient is the gradient buffer below this many layers, counted from the last: [T, B,
// width].
func (s *stack) inputGradient(layers, width int) *buffer {
	return cut(s.memory.gradient[layers%2], s.T, s.B, width)
}

// embed adds the embedding, its dropout and the deep input to the graph, and returns the first
// layer's input.
func (s *stack) embed(nodes *gorgonia.ExprGraph, weights *leaves) (*gorgonia.Node, error) {
	x := leafIDs(nodes, s.prefix+"ids", s.ids, s.T, s.B)
	if s.embedding == nil {
		return x, nil
	}
	x, err := s.embedding.apply(x, weights.tensor(s.prefix+embeddingWeight))
	if err == nil && s.dropped != nil {
		x, err = s.dropped.apply(x)
	}
	if err != nil {
		return nil, err
	}
	return s.deep.apply(x, weights)
}

// apply adds the layers and what follows each to the graph of x, and returns the last one's output.
func (s *stack) apply(x *gorgonia.Node, weights *leaves) (_ *gorgonia.Node, err error) {
	for k, layer := range s.layers {
		begin, end := s.span(k)
		w := weights.part(s.layerName(k)+".weights", begin, end)
		if x, err = layer.Apply(x, w); err != nil {
			return nil, err
		}
		if x, err = applyDropout(s, k, x); err != nil {
			return nil, err
		}
		if skip := s.skips[k]; skip != nil {
			if x, err = skip.apply(x); err != nil {
				return nil, err
			}
		}
		if norm := s.norms[k]; norm != nil {
			if x, err = norm.apply(x, weights); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

// sides are layer k's directions.
func (s *stack) sides(k int) []*Layer {
	if b, ok := s.layers[k].(*bidirectional); ok {
		return []*Layer{b.forward, b.second}
	}
	return []*Layer{s.layers[k].(*Layer)}
}

// load sets the input of the next run.
func (s *stack) load(in Examples) {
	copy(s.lengths, in.Lengths)
	for i := range s.ids {
		s.ids[i] = 0
		if in.inside(i, s.B) {
			s.ids[i] = in.Inputs[i]
		}
	}
	s.order.load(in.Lengths)
}

// input runs the embedding and the deep input, and returns the first layer's input.
func (s *stack) input(training bool) compute.RecurrentInput {
	if s.embedding == nil {
		return compute.RecurrentInput{IDs: s.ids}
	}
	return compute.RecurrentInput{X: s.deep.run(s.embedded(training))}
}

// embedded runs the embedding, with its dropout in training.
func (s *stack) embedded(training bool) []float32 {
	table := s.view(s.prefix+embeddingWeight, s.params)
	if training {
		s.embedding.lookUp(table, s.ids)
	} else {
		s.dev.Embed(s.embedding.y.flat, table, s.ids)
	}
	if s.dropped != nil && training {
		s.dropped.drop(s.dropped.y)
	}
	return s.embedding.y.flat
}

// runLayer runs layer k and what follows it, dropout only in training, and returns the next layer's
// input.
func (s *stack) runLayer(k int, x compute.RecurrentInput, training bool) compute.RecurrentInput {
	begin, end := s.span(k)
	s.layers[k].run(s.params[begin:end:end], x)
	if d := s.dropouts[k]; d != nil && training {
		d.drop(d.y)
	}
	if s.skips[k] != nil {
		s.skips[k].run()
	}
	if s.norms[k] != nil {
		s.norms[k].run()
	}
	return compute.RecurrentInput{X: s.outputOf(k).flat}
}

// runLayers runs the layers, without dropout, and returns the last one's output.
func (s *stack) runLayers(x compute.RecurrentInput) []float32 {
	for k := range s.layers {
		x = s.runLayer(k, x, false)
	}
	return x.X
}

func (s *stack) close() {
	s.deep.close()
	s.deepOutput.close()
	for _, layer := range s.layers {
		layer.Close()
	}
	s.layers = nil
}
