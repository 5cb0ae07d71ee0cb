package model

import (
	"fmt"

	"rondo/compute"
)

// Examples is a padded batch of B examples, one to a lane.
type Examples struct {
	Steps   int     // T, at most the pass's
	Inputs  []int32 // [T, B]: token ids
	Lengths []int32 // [B], at most T; 0: this lane has no example
	// Targets are labels: [B], [T, B] with PoolNone, or [K, B] with PoolPlaces. -1 does not count,
	// nor does any target outside of an example. Predict takes nil: none.
	Targets []int32
	// Places are the steps that have the labels, [K, B], each at most once in a lane; -1: none.
	// Only PoolPlaces has them.
	Places []int32
	// Step, Lanes (each lane's number in the global batch, [B]) and the labeller's seed determine
	// the dropout masks. They may be omitted without dropout.
	Step  int64
	Lanes []int
	// Scale multiplies the summed loss before differentiation.
	Scale float32
}

// inside reports whether row i of [T, B] is a step of an example.
func (in Examples) inside(i, B int) bool { return i/B < int(in.Lengths[i%B]) }

// counts reports whether target i is one of an example.
func (in Examples) counts(i, B int, pool Pool) bool {
	if pool != PoolNone { // not by steps
		return in.Targets != nil && in.inside(i%B, B)
	}
	return in.Targets != nil && in.inside(i, B)
}

// LabelPass runs a labeller on batches of up to a number of steps and of B lanes. All passes of a
// labeller share its parameters and gradients.
type LabelPass struct {
	labeller *Labeller
	memory   labelMemory
	examplePass[*labelGraph]
}

// NewPass makes a pass for batches of up to maxSteps steps of B lanes. It fails if the device lacks
// memory. Close frees the pass.
func (l *Labeller) NewPass(maxSteps, B int) (*LabelPass, error) {
	if maxSteps < 1 || B < 1 {
		return nil, fmt.Errorf("model: a pass of %d steps and %d lanes; each must be at least 1",
			maxSteps, B)
	}
	p := &LabelPass{labeller: l}
	p.memory.dev = l.dev
	p.examplePass = examplePass[*labelGraph]{B: B, sizes: [][]int{passSizes(maxSteps)},
		shape: l.config.shape(), memory: &p.memory,
		build: func(steps []int) (*labelGraph, error) {
			return newLabelGraph(l, steps[0], B, &p.memory)
		}}
	err := p.open(func() { p.memory.allocate(l.config, l.dev.Alloc, maxSteps, B) })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// load checks in and loads it into a graph, for both passes or for a prediction.
func (p *LabelPass) load(in Examples, training bool) (*labelGraph, error) {
	if err := p.check(in, training); err != nil {
		return nil, err
	}
	g, err := p.graph(in.Steps)
	if err != nil {
		return nil, err
	}
	g.load(in, training)
	return g, nil
}

// Backward runs both passes: it overwrites the labeller's gradients with those of Scale times the
// summed cross-entropy, and returns the unscaled sum in nats. A loss that is not finite is no
// error. It fails on input that does not fit the pass.
func (p *LabelPass) Backward(in Examples, hooks Hooks) (lossSum float64, err error) {
	l := p.labeller
	if err := l.checkHooks(hooks); err != nil {
		return 0, err
	}
	g, err := p.load(in, true)
	if err != nil {
		return 0, err
	}
	return p.backward(&l.parameters, &g.tape, hooks)
}

// Predict runs the forward pass without dropout. It returns the summed cross-entropy of the targets
// in nats and, unless logits is nil, copies the logits to it: host memory, a row of Labels for
// each target. Rows outside of examples mean nothing.
func (p *LabelPass) Predict(in Examples, logits []float32) (lossSum float64, err error) {
	l, c := p.labeller, p.labeller.config
	rows := c.outputRows(in.Steps, p.B)
	if logits != nil && len(logits) != rows*c.Labels {
		return 0, fmt.Errorf("model: %d logits of %d rows and %d labels", len(logits), rows,
			c.Labels)
	}
	g, err := p.load(in, false)
	if err != nil {
		return 0, err
	}
	defer compute.Catch(&err)
	x, w, b := g.forward(), l.view(outputWeight, l.params), l.view(outputBias, l.params)
	if W := c.outputWidth(); logits != nil {
		y := p.memory.logits[:len(logits):len(logits)]
		l.dev.Gemm(false, true, rows, c.Labels, W, 1, x[:rows*W], w, 0, y)
		l.dev.AddBias(y, b)
		l.dev.Download(logits, y)
	}
	g.output.kernel.Forward(x, w, b, g.output.targets)
	return g.output.kernel.Sum(), nil
}

// check returns an error for examples that do not fit the pass.
func (p *LabelPass) check(in Examples, training bool) error {
	c := p.labeller.config
	if err := in.check(p.sizes[0][0], p.B, c.Vocab); err != nil {
		return err
	}
	n := c.outputRows(in.Steps, p.B)
	if len(in.Targets) != n && (training || in.Targets != nil) {
		return fmt.Errorf("model: a pass of %d targets was given %d", n, len(in.Targets))
	}
	for i, id := range in.Targets {
		if in.counts(i, p.B, c.Pool) && (id < -1 || int(id) >= c.Labels) {
			return fmt.Errorf("model: target %d is label %d; there are %d", i, id, c.Labels)
		}
	}
	if len(in.Places) != c.Places*p.B {
		return fmt.Errorf("model: a pass of %d places was given %d", c.Places*p.B, len(in.Places))
	}
	for i, t := range in.Places {
		if t < -1 || t >= in.Lengths[i%p.B] {
			return fmt.Errorf("model: place %d is step %d of an example of %d", i, t,
				in.Lengths[i%p.B])
		}
	}
	return checkLanes(c.network(), in.Lanes, p.B, training)
}

// check returns an error if the inputs do not fit a pass of this many steps and lanes.
func (in Examples) check(steps, B, vocab int) error {
	if in.Steps < 1 || in.Steps > steps || len(in.Inputs) != in.Steps*B || len(in.Lengths) != B {
		return fmt.Errorf("model: a pass of up to %d steps of %d lanes was given %d inputs and %d "+
			"lengths for %d steps", steps, B, len(in.Inputs), len(in.Lengths), in.Steps)
	}
	for b, length := range in.Lengths {
		if length < 0 || int(length) > in.Steps {
			return fmt.Errorf("model: lane %d has an example of %d tokens in %d steps", b, length,
				in.Steps)
		}
	}
	for i, id := range in.Inputs {
		if in.inside(i, B) && (id < 0 || int(id) >= vocab) {
			return fmt.Errorf("model: step %d of lane %d is token %d; the vocabulary has %d",
				i/B, i%B, id, vocab)
		}
	}
	return nil
}

// checkLanes returns an error if dropout lacks the lanes' numbers.
func checkLanes(c Config, lanes []int, B int, training bool) error {
	if c.Dropout+c.DropoutInput+dropoutOf(c, c.Layers-1) > 0 && training && len(lanes) != B {
		return fmt.Errorf("model: a pass of %d lanes was given the numbers of %d", B, len(lanes))
	}
	return nil
}
