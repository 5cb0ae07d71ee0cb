package model

import (
	"fmt"

	"gorgonia.org/gorgonia"
)

// Segment is the training graph of a model for T steps of B lanes, and the state of those lanes.
// Segments of other shapes share the model's parameters and gradients.
type Segment struct {
	model *Model
	T, B  int

	ids        []int32 // [T, B], the graph's input
	embedding  *embedding
	layers     []*Layer
	dropouts   []*dropout // dropouts[l] stands between layers l and l+1
	projection *projection
	output     *crossEntropy
	machine    gorgonia.VM

	host      []float32 // [B, H], for copying states
	evaluator *Evaluator
}

// SegmentInput is what one step reads.
type SegmentInput struct {
	Inputs  []int32 // [T, B]: token ids
	Targets []int32 // [T, B]: the token after each; one that is -1 does not count
	// Scale multiplies the loss before it is differentiated: 1/(G*T) for the mean over G lanes,
	// of which this segment may have a part.
	Scale float32
	// Step and Lanes (each lane's number in the global batch, [B]) determine dropout masks with
	// the model's seed. Without dropout they may be left out.
	Step  int64
	Lanes []int
	// BeforeBackward, if set, is called when the loss is known and the backward pass has not begun.
	// Its error ends the run, which then leaves the state as it was.
	BeforeBackward func() error
}

// NewSegment builds the graph for T steps of B lanes, with a state of zeros. Close frees it.
func (m *Model) NewSegment(T, B int) (*Segment, error) {
	if T < 1 || B < 1 {
		return nil, fmt.Errorf("model: a segment of %d steps and %d lanes; each must be at least 1",
			T, B)
	}
	s := &Segment{model: m, T: T, B: B, ids: make([]int32, T*B),
		host: make([]float32, B*m.config.Hidden)}
	err := Build(func() error {
		g := gorgonia.NewGraph(gorgonia.WithGraphName("segment"))
		cost, weights, err := s.forward(g)
		if err != nil {
			return err
		}
		if _, err := gorgonia.Grad(cost, weights...); err != nil {
			return fmt.Errorf("model: differentiating a segment: %w", err)
		}
		if err := distinct(g); err != nil {
			return err
		}
		s.machine = gorgonia.NewTapeMachine(g)
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// forward adds the forward pass to g. It returns the cost and the nodes of all weights.
func (s *Segment) forward(g *gorgonia.ExprGraph) (cost *gorgonia.Node, weights gorgonia.Nodes,
	err error) {
	m, c := s.model, s.model.config
	weight := func(node, name string) *gorgonia.Node {
		v := find(m.views, name)
		w := leaf(g, node, v.of(m.params), v.Shape...)
		weights = append(weights, w)
		return w
	}
	x := leafIDs(g, "ids", s.ids, s.T, s.B)
	if c.Embed > 0 {
		s.embedding = newEmbedding(m.dev, s.T, s.B, c.Vocab, c.Embed,
			m.view(embeddingWeight, m.grads), c.TieWeights)
		if x, err = s.embedding.apply(x, weight(embeddingWeight, embeddingWeight)); err != nil {
			return nil, nil, err
		}
	}
	for k := range c.Layers {
		begin, end := layerSpan(m.views, k)
		name := fmt.Sprintf("rnn.l%d", k)
		layer, err := NewLayer(m.dev, name, c.layerShape(k, s.T, s.B), m.grads[begin:end:end])
		if err != nil {
			return nil, nil, err
		}
		s.layers = append(s.layers, layer)
		w := leaf(g, name+".weights", m.params[begin:end:end], end-begin)
		weights = append(weights, w)
		if x, err = layer.Apply(x, w); err != nil {
			return nil, nil, err
		}
		if k == c.Layers-1 || c.Dropout == 0 {
			continue
		}
		d := newDropout(m.dev, fmt.Sprintf("dropout.l%d", k), s.T, s.B, c.Hidden, c.Dropout)
		s.dropouts = append(s.dropouts, d)
		if x, err = d.apply(x); err != nil {
			return nil, nil, err
		}
	}
	if c.projects() {
		s.projection = newProjection(m.dev, s.T, s.B, c.Hidden, c.Embed,
			m.view(projectionWeight, m.grads))
		x, err = s.projection.apply(x, weight(projectionWeight, projectionWeight))
		if err != nil {
			return nil, nil, err
		}
	}
	// A tied embedding is a node of its own here. Were it one node, Gorgonia would add the two
	// gradients, which are the same memory, in which the embedding's operator has added them.
	s.output = newCrossEntropy(m.dev, s.T, s.B, c.outputWidth(), c.Vocab,
		m.view(c.outputWeights(), m.grads), m.view(outputBias, m.grads))
	cost, err = s.output.apply(x, weight("output:"+c.outputWeights(), c.outputWeights()),
		weight(outputBias, outputBias))
	return cost, weights, err
}

// Run runs the graph once: it overwrites the model's gradients with those of Scale times the
// summed cross-entropy, carries the state on, and returns the sum, not scaled, in nats. A loss
// that is not finite is returned as it is. It fails on input that does not fit the segment.
func (s *Segment) Run(in SegmentInput) (lossSum float64, err error) {
	if err := s.check(in); err != nil {
		return 0, err
	}
	copy(s.ids, in.Inputs)
	copy(s.output.targets, in.Targets)
	s.output.scale = in.Scale
	s.output.between, s.output.halted = in.BeforeBackward, nil
	for l, d := range s.dropouts {
		for b, lane := range in.Lanes {
			d.keys[b] = DropoutKey(s.model.config.Seed, in.Step, l, lane)
		}
	}
	s.machine.Reset()
	err = s.machine.RunAll()
	s.output.between = nil
	if s.output.halted != nil {
		return 0, s.output.halted
	}
	if err != nil {
		return 0, fmt.Errorf("model: running a segment: %w", err)
	}
	for _, l := range s.layers {
		l.Advance()
	}
	return s.output.sum, nil
}

// check says what does not fit in in.
func (s *Segment) check(in SegmentInput) error {
	if n := s.T * s.B; len(in.Inputs) != n || len(in.Targets) != n {
		return fmt.Errorf("model: a segment of %d steps and %d lanes takes %d inputs and targets,"+
			" not %d and %d", s.T, s.B, n, len(in.Inputs), len(in.Targets))
	}
	if len(s.dropouts) > 0 && len(in.Lanes) != s.B {
		return fmt.Errorf("model: a segment of %d lanes was given the numbers of %d",
			s.B, len(in.Lanes))
	}
	if err := s.model.checkIDs("input", in.Inputs, 0); err != nil {
		return err
	}
	return s.model.checkIDs("target", in.Targets, -1)
}

// DropoutKey is the key of a lane's dropout mask after a layer (0 is the first) at a step: a
// chain of SplitMix64 hashes (Steele, Lea and Flood 2014) over all four.
func DropoutKey(seed uint64, step int64, layer, lane int) uint64 {
	key := seed
	for _, x := range [...]uint64{uint64(step), uint64(layer), uint64(lane)} {
		key += (x + 1) * 0x9E3779B97F4A7C15
		key = (key ^ key>>30) * 0xBF58476D1CE4E5B9
		key = (key ^ key>>27) * 0x94D049BB133111EB
		key ^= key >> 31
	}
	return key
}

// ZeroState sets the state of all lanes to zero.
func (s *Segment) ZeroState() {
	for _, l := range s.layers {
		l.ZeroState()
	}
}

// State copies the state after the last run to dst, host memory of B * StateSize floats: lane by
// lane [B, L, States, H], so that dst[b*StateSize:][:StateSize] is all that lane b carries and
// may be moved to another lane, segment or machine.
func (s *Segment) State(dst []float32) error { return s.copyState(dst, false) }

// SetState sets the state that the next run starts from; src is laid out as in State.
func (s *Segment) SetState(src []float32) error { return s.copyState(src, true) }

// copyState moves the state between the device, [B, H] for each layer and tensor, and host
// memory, lane by lane.
func (s *Segment) copyState(lanes []float32, toDevice bool) error {
	size, h := s.model.config.StateSize(), s.model.config.Hidden
	if len(lanes) != s.B*size {
		return fmt.Errorf("model: the state of %d lanes is %d floats, not %d",
			s.B, s.B*size, len(lanes))
	}
	offset := 0 // in a lane's state
	for _, l := range s.layers {
		state := l.State()
		for _, x := range [...][]float32{state.H, state.C} {
			if x == nil {
				continue
			}
			if !toDevice {
				s.model.dev.Download(s.host, x)
			}
			for b := range s.B {
				lane, row := lanes[b*size+offset:][:h], s.host[b*h:][:h]
				if toDevice {
					copy(row, lane)
				} else {
					copy(lane, row)
				}
			}
			if toDevice {
				s.model.dev.Upload(x, s.host)
			}
			offset += h
		}
	}
	return nil
}

// Evaluate runs the forward pass alone, without dropout, on T steps of B lanes: see
// Evaluator.Evaluate. Its state is its own, not the one that Run carries.
func (s *Segment) Evaluate(inputs, targets []int32) (lossSum float64, count int, err error) {
	if s.evaluator == nil {
		if s.evaluator, err = s.model.NewEvaluator(s.T, s.B); err != nil {
			return 0, 0, err
		}
	}
	return s.evaluator.Evaluate(inputs, targets)
}

// ZeroEvaluationState makes the next Evaluate start from a state of zeros.
func (s *Segment) ZeroEvaluationState() {
	if s.evaluator != nil {
		s.evaluator.ZeroState()
	}
}

// Close frees the segment's memory; the model stays.
func (s *Segment) Close() {
	if s.machine != nil {
		s.machine.Close()
		s.machine = nil
	}
	for _, l := range s.layers {
		l.Close()
	}
	for _, d := range s.dropouts {
		d.close()
	}
	if s.embedding != nil {
		s.embedding.close()
	}
	if s.projection != nil {
		s.projection.close()
	}
	if s.output != nil {
		s.output.close()
	}
	if s.evaluator != nil {
		s.evaluator.Close()
	}
	s.layers, s.dropouts, s.embedding, s.projection = nil, nil, nil, nil
	s.output, s.evaluator = nil, nil
}
