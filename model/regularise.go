package model

import (
	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// Regularisers of training beside dropout of activations. Each is made of operations that every
// device has, and is absent from evaluations.

// The numbers that take the place of a layer's and of a lane's in the keys of masks which are the
// same for all lanes.
const (
	wordLayer     = -2 // added to the number of the first layer; the lane is the token
	weightLane    = -1 // of a layer's W_hh
	weightReverse = -2 // of its second direction's
)

// wordDropout drops tokens: a dropped one's row of the embedding counts as zero.
type wordDropout struct {
	p     float32
	layer int
	ids   []int32 // of each place, [T, B], the token; -1: it is dropped
	rows  []int32 // of each place its number; -1: its token is dropped
}

func newWordDropout(p float64, first, places int) *wordDropout {
	return &wordDropout{p: float32(p), layer: first + wordLayer, ids: make([]int32, places),
		rows: make([]int32, places)}
}

// load draws the masks of a training step. Nil does nothing.
func (d *wordDropout) load(seed uint64, step int64, ids []int32) {
	if d == nil {
		return
	}
	for i, id := range ids {
		d.ids[i], d.rows[i] = id, int32(i)
		if !compute.DropoutKeep(DropoutKey(seed, step, d.layer, int(id)), 0, d.p) {
			d.ids[i], d.rows[i] = -1, -1
		}
	}
}

// copyRows sets y: [T, B, E] to the rows ids of src, divided by 1-p, and to zero where an id is -1.
func (d *wordDropout) copyRows(dev compute.Device, y *buffer, src []float32, ids []int32) {
	E := y.value.Shape()[2]
	dev.CopyRows(packed(y.flat, E), packed(src, E), len(ids), E, ids, false)
	dev.Scale(y.flat, 1/(1-d.p))
}

// weightDrop is a recurrent layer with DropConnect of W_hh (Wan et al. 2013; Merity et al. 2018,
// arXiv:1708.02182, section 2): the layer computes with W_hh ⊙ mask / (1-p). The mask is a function
// of seed, step and layer, so that all lanes and ranks have the same one.
type weightDrop struct {
	compute.Recurrent
	dev     compute.Device
	p       float32
	rows    int // of W_hh
	layer   int
	reverse bool
	keys    []uint64  // one; load sets it
	hh      []float32 // W_hh with the mask
	off     bool      // all weights take part
}

// newWeightDrop wraps the kernel of a layer, which it closes.
func newWeightDrop(dev compute.Device, s compute.RecurrentShape, kernel compute.Recurrent,
	p float64) *weightDrop {
	d := &weightDrop{dev: dev, p: float32(p), rows: weightDropFloats(s) / s.H,
		keys: make([]uint64, 1)}
	defer func() {
		if d.Recurrent == nil { // no memory for it
			kernel.Close()
		}
	}()
	d.hh = dev.Alloc(weightDropFloats(s))
	d.Recurrent = kernel
	return d
}

// weightDropFloats is the length of W_hh.
func weightDropFloats(s compute.RecurrentShape) int { return s.Cell.HiddenGates() * s.H * s.H }

// load draws the mask of a training step.
func (d *weightDrop) load(seed uint64, step int64) {
	lane := weightLane
	if d.reverse {
		lane = weightReverse
	}
	d.keys[0], d.off = DropoutKey(seed, step, d.layer, lane), false
}

// drop sets dst to src: [K*H, H], without the weights that are dropped.
func (d *weightDrop) drop(dst, src []float32) { d.dev.Dropout(dst, src, d.rows, d.p, d.keys) }

// Forward implements compute.Recurrent.
func (d *weightDrop) Forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	if !d.off {
		d.drop(d.hh, w.HH)
		w.HH = d.hh
	}
	d.Recurrent.Forward(w, in, state, y, out)
}

// Backward implements compute.Recurrent.
func (d *weightDrop) Backward(dy []float32, dout compute.RecurrentState,
	dw compute.RecurrentWeights, dx []float32, dstate compute.RecurrentState) {
	d.Recurrent.Backward(dy, dout, dw, dx, dstate)
	d.drop(dw.HH, dw.HH)
}

// Close implements compute.Recurrent.
func (d *weightDrop) Close() {
	d.Recurrent.Close()
	d.dev.Free(d.hh)
	d.hh = nil
}

// penalty adds the gradient of an L2 penalty on y, [T, B, H], to y's (Merity et al. 2017,
// arXiv:1708.01009, equations 1 and 2; h is y before dropout):
//
//	activation: α mean(y²), over all elements
//	temporal:   β mean((h[t+1] - h[t])²), over t from 0 to T-2
//
// The means are over the elements of all lanes, as the loss is over their targets, and count like
// it. The loss that is reported is without them.
type penalty struct {
	dev      compute.Device
	name     string
	weight   float64
	scale    *float32 // of the pass: 1 / targets
	temporal bool
	y        *buffer
	dy       *buffer   // that the gradient of y is in
	grad     []float32 // of the penalty: [T, B, H], or of the differences: [T-1, B, H]
}

// makePenalties makes the penalties on the last layer's output.
func makePenalties(s *stack) {
	k := s.Layers - 1
	y, rows := s.layers[k].output(), s.B*s.width()
	dy := s.inputGradient(0, s.width())
	if s.skips[k] != nil {
		dy = y
	}
	made := func(name string, weight float64, grad []float32) *penalty {
		return &penalty{dev: s.dev, name: name, weight: weight, scale: &s.passScale, y: y, dy: dy,
			grad: grad}
	}
	if n := (s.T - 1) * rows; s.TemporalL2 > 0 && n > 0 {
		s.penalties[0] = made("temporal_l2", s.TemporalL2, s.memory.temporal[:n])
		s.penalties[0].temporal = true
	}
	if s.ActivationL2 > 0 {
		s.penalties[1] = made("activation_l2", s.ActivationL2, s.memory.squared[:s.T*rows])
	}
}

// applyDropout adds layer k's dropout and the last layer's penalties to the graph.
func applyDropout(s *stack, k int, x *gorgonia.Node) (_ *gorgonia.Node, err error) {
	if k == s.Layers-1 {
		if x, err = s.penalties[0].apply(x); err != nil {
			return nil, err
		}
	}
	if d := s.dropouts[k]; d != nil {
		if x, err = d.apply(x); err != nil {
			return nil, err
		}
	}
	if k == s.Layers-1 {
		x, err = s.penalties[1].apply(x)
	}
	return x, err
}

// apply adds the penalty to the graph, and returns a node of y. Nil adds nothing.
func (p *penalty) apply(y *gorgonia.Node) (*gorgonia.Node, error) {
	if p == nil {
		return y, nil
	}
	return applyTogether(p.name, gorgonia.Nodes{y}, p.y, []*buffer{p.dy},
		func([]float32) { p.forward() }, func(_, dy []float32) { p.add(dy) })
}

// forward computes the gradient from y, which later operators change in place.
func (p *penalty) forward() {
	s := p.y.value.Shape() // [T, B, H]
	y, n := p.y.flat, len(p.grad)
	p.dev.CopyRows(packed(p.grad, s[2]), packed(y[:n], s[2]), n/s[2], s[2], nil, false)
	factor := 2 * p.weight * float64(*p.scale) / float64(s[2])
	if p.temporal {
		p.dev.Scale(p.grad, -1)
		p.dev.Add(p.grad, y[len(y)-n:])
		factor *= float64(s[0]) / float64(s[0]-1)
	}
	p.dev.Scale(p.grad, float32(factor))
}

// add adds it to the gradient of y.
func (p *penalty) add(dy []float32) {
	n := len(p.grad)
	p.dev.Add(dy[len(dy)-n:], p.grad)
	if p.temporal {
		p.dev.Scale(p.grad, -1)
		p.dev.Add(dy[:n], p.grad)
	}
}

// loadDropout sets the keys of the next training run, whose steps are a sequence's from first on.
func (s *stack) loadDropout(step int64, lanes []int, first int) {
	for _, d := range append(s.dropouts, s.dropped) {
		if d != nil {
			d.load(s.Seed, step, lanes, first)
		}
	}
	for _, d := range s.weightDrops {
		d.load(s.Seed, step)
	}
	if s.embedding != nil {
		s.embedding.words.load(s.Seed, step, s.ids)
	}
}

// keepWeights makes the next run compute with all weights.
func keepWeights(s *stack) {
	for _, d := range s.weightDrops {
		d.off = true
	}
}
