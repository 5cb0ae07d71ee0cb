package model

import (
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// Pairs is a padded batch of B pairs of sequences, one to a lane.
type Pairs struct {
	SourceSteps   int     // Ts, at most the pass's
	Source        []int32 // [Ts, B]: token ids
	SourceLengths []int32 // [B], at most Ts; 0: an empty source
	TargetSteps   int     // Td, at most the pass's
	// Inputs are what the decoder reads: a begin token at the first step, and then the target of
	// the step before. Inputs after a lane's last target have no effect.
	Inputs  []int32 // [Td, B]
	Targets []int32 // [Td, B]; -1 does not count
	// Step, Lanes and Scale are those of Examples.
	Step  int64
	Lanes []int
	Scale float32
}

// source is the pairs' sources as examples.
func (in Pairs) source() Examples {
	return Examples{Steps: in.SourceSteps, Inputs: in.Source, Lengths: in.SourceLengths}
}

// targetLengths are the lanes' steps up to their last target.
func (in Pairs) targetLengths(B int) []int {
	lengths := make([]int, B)
	for i, id := range in.Targets {
		if id >= 0 {
			lengths[i%B] = i/B + 1
		}
	}
	return lengths
}

// TranslationPass trains a translator on batches of up to a number of source and target steps and
// of B lanes. All passes of a translator share its parameters and gradients.
type TranslationPass struct {
	translator *Translator
	memory     translationMemory
	examplePass[*translation]
}

// pairSizes are the source and the target steps of a pass's graphs.
func pairSizes(source, target int) [][]int {
	sizes := [][]int{passSizes(source), passSizes(target)}
	n := max(len(sizes[0]), len(sizes[1]))
	for i, s := range sizes {
		for len(s) < n {
			s = append(s, s[len(s)-1])
		}
		sizes[i] = s
	}
	return sizes
}

// NewPass makes a pass for batches of up to maxSource source and maxTarget target steps of B lanes.
// It fails if the device lacks memory. Close frees the pass.
func (t *Translator) NewPass(maxSource, maxTarget, B int) (*TranslationPass, error) {
	if maxSource < 1 || maxTarget < 1 || B < 1 {
		return nil, fmt.Errorf("model: a pass of %d and %d steps and %d lanes; each must be at "+
			"least 1", maxSource, maxTarget, B)
	}
	p := &TranslationPass{translator: t}
	p.memory.on(t.dev)
	p.examplePass = examplePass[*translation]{B: B, sizes: pairSizes(maxSource, maxTarget),
		shape: t.config.shape(), memory: &p.memory,
		build: func(steps []int) (*translation, error) {
			n := newTranslation(t, steps[0], steps[1], B, &p.memory)
			err := n.compile(func(nodes *gorgonia.ExprGraph) (*gorgonia.Node, gorgonia.Nodes,
				error) {
				n.make(&p.memory)
				return n.build(nodes)
			})
			if err != nil {
				n.close()
			}
			return n, err
		}}
	err := p.open(func() { p.memory.allocate(t.config, t.dev.Alloc, maxSource, maxTarget, B) })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// load checks in and loads it into a graph, for both passes or for the loss.
func (p *TranslationPass) load(in Pairs, training bool) (*translation, error) {
	if err := p.check(in, training); err != nil {
		return nil, err
	}
	n, err := p.graph(in.SourceSteps, in.TargetSteps)
	if err == nil {
		n.load(in, training)
	}
	return n, err
}

// Backward runs both passes: it overwrites the translator's gradients with those of Scale times the
// summed cross-entropy, and returns the unscaled sum in nats. A loss that is not finite is no
// error. It fails on input that does not fit the pass.
func (p *TranslationPass) Backward(in Pairs, hooks Hooks) (lossSum float64, err error) {
	if err := p.translator.checkHooks(hooks); err != nil {
		return 0, err
	}
	n, err := p.load(in, true)
	if err != nil {
		return 0, err
	}
	return p.backward(&p.translator.parameters, &n.tape, hooks)
}

// Loss runs the forward pass without dropout, and returns the summed cross-entropy in nats.
func (p *TranslationPass) Loss(in Pairs) (lossSum float64, err error) {
	t := p.translator
	n, err := p.load(in, false)
	if err != nil {
		return 0, err
	}
	defer compute.Catch(&err)
	n.encode()
	n.output.kernel.Forward(n.decode(), t.view(outputWeight, t.params), t.view(outputBias,
		t.params), n.output.targets)
	return n.output.kernel.Sum(), nil
}

// check returns an error for pairs that do not fit the pass.
func (p *TranslationPass) check(in Pairs, training bool) error {
	c := p.translator.config
	if err := in.source().check(p.sizes[0][0], p.B, p.translator.sources()); err != nil {
		return fmt.Errorf("%w (source)", err)
	}
	n := in.TargetSteps * p.B
	if in.TargetSteps < 1 || in.TargetSteps > p.sizes[1][0] || len(in.Inputs) != n ||
		len(in.Targets) != n {
		return fmt.Errorf("model: a pass of up to %d target steps of %d lanes was given %d inputs "+
			"and %d targets for %d steps", p.sizes[1][0], p.B, len(in.Inputs), len(in.Targets),
			in.TargetSteps)
	}
	lengths := in.targetLengths(p.B)
	if c.Ends == EndLength && slices.Max(lengths) > c.Lengths {
		return fmt.Errorf("model: a target of %d tokens; lengths are below %d",
			slices.Max(lengths)-1, c.Lengths)
	}
	for i, id := range in.Targets {
		if id < -1 || int(id) >= c.TargetVocab {
			return fmt.Errorf("model: target %d of lane %d is token %d; the vocabulary has %d",
				i/p.B, i%p.B, id, c.TargetVocab)
		}
		input := in.Inputs[i]
		if i/p.B < lengths[i%p.B] && (input < 0 || int(input) >= c.TargetVocab) {
			return fmt.Errorf("model: input %d of lane %d is token %d; the vocabulary has %d",
				i/p.B, i%p.B, input, c.TargetVocab)
		}
	}
	return checkLanes(c.network(), in.Lanes, p.B, training)
}
