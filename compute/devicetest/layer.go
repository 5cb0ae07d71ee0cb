package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
)

// layerProblem is a recurrent layer with all that it reads, in float64; ids or x is set.
type layerProblem struct {
	name               string
	shape              compute.RecurrentShape
	ih, hh             []float64
	biasIH, biasHH     []float64
	peephole           []float64 // nil if the cell has none
	ids                []int32
	x                  []float64
	h, c               []float64 // c is nil but of cells with two states
	dy, doutH, doutC   []float64
	lengths            []int32 // nil: each row has all steps
	gradientFromBehind bool    // doutH and doutC are given; otherwise they are zeros
}

func newLayerProblem(s compute.RecurrentShape, dense, behind bool,
	random *rand.Rand) *layerProblem {
	if s.Cell == compute.Leaky {
		s.Leak = 0.3
	}
	k, state := s.Cell.Gates()*s.H, s.B*s.H
	size := 0.6 / math.Sqrt(float64(s.H))
	draw := func(n int) []float64 { return normal(random, n, 0.6) }
	hidden := s.Cell.HiddenGates() * s.H
	p := &layerProblem{name: fmt.Sprintf("%+v dense=%t behind=%t", s, dense, behind), shape: s,
		ih: normal(random, k*s.D, size), hh: normal(random, hidden*s.H, size),
		biasIH: normal(random, k, size), biasHH: normal(random, hidden, size),
		h: draw(state), dy: draw(s.T * state), gradientFromBehind: behind,
		doutH: make([]float64, state)}
	if n := s.Cell.Peepholes() * s.H; n > 0 {
		p.peephole = draw(n)
	}
	if behind {
		p.doutH = draw(state)
	}
	if s.Cell.States() == 2 {
		p.c, p.doutC = draw(state), make([]float64, state)
		if behind {
			p.doutC = draw(state)
		}
	}
	if dense {
		p.x = draw(s.T * s.B * s.D)
	} else {
		p.ids = ids(random, s.T*s.B, s.D)
	}
	return p
}

// end gives the rows lengths from none to all steps.
func (p *layerProblem) end(random *rand.Rand) *layerProblem {
	p.lengths = ids(random, p.shape.B, p.shape.T+1)
	p.name = fmt.Sprintf("%s lengths=%v", p.name, p.lengths)
	return p
}

// ended reports which rows have ended before step t.
func (p *layerProblem) ended(t int) []bool {
	rows := make([]bool, p.shape.B)
	for b, length := range p.lengths {
		rows[b] = t >= int(length)
	}
	return rows
}

// layerProblems are every cell in random shapes around the sizes of blocks and tiles, some with
// more tokens in the vocabulary than in the segment, a long one, and those given; some have rows
// that end before the segment.
func layerProblems(random *rand.Rand, trials int,
	given []compute.RecurrentShape) []*layerProblem {
	cells, all := compute.Cells(), []*layerProblem{}
	for trial := range trials {
		s := compute.RecurrentShape{Cell: cells[trial%len(cells)], T: 1 + random.IntN(9),
			B: 1 + random.IntN(40), D: 1 + random.IntN(67), H: 1 + random.IntN(67)}
		dense := random.IntN(2) == 0
		if trial%7 == 6 {
			s.T, s.B, s.D, dense = 1+random.IntN(4), 1+random.IntN(9), 300, false
		}
		all = append(all, newLayerProblem(s, dense, random.IntN(2) == 0, random))
	}
	for _, cell := range compute.Cells() {
		all = append(all, newLayerProblem(
			compute.RecurrentShape{Cell: cell, T: 1, B: 1, D: 1, H: 1}, true, true, random))
	}
	for i, cell := range compute.Cells() {
		all = append(all, newLayerProblem(compute.RecurrentShape{Cell: cell, T: 1 + random.IntN(9),
			B: 20, D: 7, H: 36}, i%2 == 0, true, random).end(random))
	}
	all = append(all, newLayerProblem(
		compute.RecurrentShape{Cell: compute.GRU, T: 40, B: 3, D: 5, H: 17}, false, false, random))
	for _, s := range given {
		for _, dense := range []bool{false, true} {
			all = append(all, newLayerProblem(s, dense, dense, random),
				newLayerProblem(s, dense, dense, random).end(random))
		}
	}
	return all
}

// solve runs the oracle. Its results have the names of run's.
func (p *layerProblem) solve(precision compute.Precision) map[string][]float64 {
	s, t := p.shape, newTape(precision)
	wide := s.Cell.Gates() * s.H
	hidden := s.Cell.HiddenGates() * s.H
	w := cellWeights{hh: given(p.hh, hidden, s.H), biasHH: given(p.biasHH, 1, hidden),
		peephole: given(p.peephole, 1, s.Cell.Peepholes()*s.H), periods: s.UnitPeriods()}
	ih, biasIH := given(p.ih, wide, s.D), given(p.biasIH, 1, wide)
	if s.Cell == compute.Leaky {
		w.leak = given(slices.Repeat([]float64{float64(s.Leak)}, s.H), 1, s.H)
	} else if s.Cell == compute.LeakyLearned {
		w.leak = t.sigmoid(w.peephole)
	}
	h0, c0, x := given(p.h, s.B, s.H), given(p.c, s.B, s.H), given(p.x, s.T*s.B, s.D)
	var in *value
	if p.ids != nil {
		in = t.pick(ih, p.ids)
	} else {
		in = t.product(x, ih)
	}
	in = t.add(in, biasIH, 1)
	y, h, c := make([]float64, 0, s.T*s.B*s.H), h0, c0
	steps := make([]*value, s.T)
	for i := range s.T {
		nextH, nextC := t.cell(s.Cell, w, in.part(i*s.B, s.B), h, c)
		h = t.choose(nextH, h, p.ended(i))
		if p.c != nil {
			c = t.choose(nextC, c, p.ended(i))
		}
		y, steps[i] = append(y, h.v...), h
	}
	for i, v := range p.doutH {
		h.g[i] += v
	}
	copy(c.g, p.doutC)
	for i, step := range steps {
		for j := range step.g {
			step.g[j] += p.dy[i*len(step.g)+j]
		}
	}
	t.back()
	all := map[string][]float64{"y": y, "h_T": h.v, "dIH": ih.g, "dHH": w.hh.g,
		"dBiasIH": biasIH.g, "dBiasHH": w.biasHH.g, "dh_0": h0.g}
	if p.c != nil {
		all["c_T"], all["dc_0"] = c.v, c0.g
	}
	if p.peephole != nil {
		all["dPeephole"] = w.peephole.g
	}
	if p.x != nil {
		all["dx"] = x.g
	}
	return all
}

// cellWeights are a step's weights: [K*H, H], and rows of K*H, of P*H and of H.
type cellWeights struct {
	hh, biasHH, peephole, leak *value
	periods                    []float32 // [H]: Clockwork's
}

// working is 1 for the units of a Clockwork layer that work in a step, and 0 for the others.
func (t *tape) working(c *value) *value {
	mask := make([]float64, len(c.v))
	for i, count := range c.v {
		if count < 1 {
			mask[i] = 1
		}
	}
	return given(mask, c.rows, c.cols)
}

// count is the next count of a Clockwork layer's units, which has no gradient.
func (w cellWeights) count(c *value) *value {
	next := make([]float64, len(c.v))
	for i, count := range c.v {
		if next[i] = count + 1; next[i] >= float64(w.periods[i%c.cols]) {
			next[i] = 0
		}
	}
	return given(next, c.rows, c.cols)
}

// cell is a step, from the equations of compute.Cell; in is W_ih x + b_ih.
func (t *tape) cell(cell compute.Cell, w cellWeights, in, h, c *value) (*value, *value) {
	H := h.cols
	gate := func(x *value, k int) *value { return t.columns(x, k*H, H) }
	mix := func(z, n *value) *value { return t.add(n, t.times(z, t.add(h, n, -1)), 1) }
	if cell == compute.MinGRU {
		return t.add(h, t.times(t.sigmoid(gate(in, 0)), t.add(gate(in, 1), h, -1)), 1), c
	}
	if last := cell.Gates() - 1; cell.ResetsBefore() {
		rec := t.add(t.product(h, w.hh.part(0, last*H)), t.columns(w.biasHH, 0, last*H), 1)
		r := t.sigmoid(t.add(gate(in, 0), gate(rec, 0), 1))
		n := t.add(t.product(t.times(r, h), w.hh.part(last*H, H)), gate(w.biasHH, last), 1)
		n = t.tanh(t.add(gate(in, last), n, 1))
		if cell == compute.MGU {
			return t.add(h, t.times(r, t.add(n, h, -1)), 1), c
		}
		return mix(t.sigmoid(t.add(gate(in, 1), gate(rec, 1), 1)), n), c
	}
	rec := t.add(t.product(h, w.hh), w.biasHH, 1)
	if cell == compute.GRU {
		r := t.sigmoid(t.add(gate(in, 0), gate(rec, 0), 1))
		z := t.sigmoid(t.add(gate(in, 1), gate(rec, 1), 1))
		return mix(z, t.tanh(t.add(gate(in, 2), t.times(r, gate(rec, 2)), 1))), c
	}
	sum := t.add(in, rec, 1)
	switch cell {
	case compute.RNNTanh:
		return t.tanh(sum), c
	case compute.RNNReLU:
		return t.relu(sum), c
	case compute.Clockwork:
		return t.add(h, t.times(t.add(t.tanh(sum), h, -1), t.working(c)), 1), w.count(c)
	case compute.Leaky, compute.LeakyLearned:
		return t.add(h, t.times(t.add(t.tanh(sum), h, -1), w.leak), 1), c
	}
	if cell == compute.LSTMCoupled || cell == compute.LSTMNoForget {
		i, g := t.sigmoid(gate(sum, 0)), t.tanh(gate(sum, 1))
		if cell == compute.LSTMCoupled {
			c = t.add(c, t.times(i, t.add(g, c, -1)), 1)
		} else {
			c = t.add(c, t.times(i, g), 1)
		}
		return t.times(t.sigmoid(gate(sum, 2)), t.tanh(c)), c
	}
	see := func(k, hole int, c *value) *value {
		if cell != compute.LSTMPeephole {
			return gate(sum, k)
		}
		return t.add(gate(sum, k), t.times(c, gate(w.peephole, hole)), 1)
	}
	i, f, g := t.sigmoid(see(0, 0, c)), t.sigmoid(see(1, 1, c)), t.tanh(gate(sum, 2))
	c = t.add(t.times(f, c), t.times(i, g), 1)
	return t.times(t.sigmoid(see(3, 2, c)), t.tanh(c)), c
}

// layerArguments are a problem's in device memory.
type layerArguments struct {
	w           compute.RecurrentWeights
	in          compute.RecurrentInput
	state, dout compute.RecurrentState
	dy          []float32
}

func (p *layerProblem) arguments(dev compute.Device) layerArguments {
	a := layerArguments{in: compute.RecurrentInput{IDs: p.ids, X: put(dev, p.x),
		Lengths: p.lengths},
		w: compute.RecurrentWeights{IH: put(dev, p.ih), HH: put(dev, p.hh),
			BiasIH: put(dev, p.biasIH), BiasHH: put(dev, p.biasHH), Peephole: put(dev, p.peephole)},
		state: compute.RecurrentState{H: put(dev, p.h), C: put(dev, p.c)}, dy: put(dev, p.dy)}
	if p.gradientFromBehind {
		a.dout = compute.RecurrentState{H: put(dev, p.doutH), C: put(dev, p.doutC)}
	}
	return a
}

// like makes memory for a state and for weights that is to be overwritten.
func (p *layerProblem) likeState(dev compute.Device) compute.RecurrentState {
	return compute.RecurrentState{H: junk(dev, len(p.h)), C: junk(dev, len(p.c))}
}

func (p *layerProblem) likeWeights(dev compute.Device) compute.RecurrentWeights {
	return compute.RecurrentWeights{IH: junk(dev, len(p.ih)), HH: junk(dev, len(p.hh)),
		BiasIH: junk(dev, len(p.biasIH)), BiasHH: junk(dev, len(p.biasHH)),
		Peephole: junk(dev, len(p.peephole))}
}

// run computes all results of a layer. It runs twice, first with all steps of every row, so that
// the second run is on a used workspace; once without optional arguments; and forward alone, with
// the state in place.
func (p *layerProblem) run(dev compute.Device) []Result {
	a := p.arguments(dev)
	out, dstate, y := p.likeState(dev), p.likeState(dev), junk(dev, len(p.dy))
	dw, dx := p.likeWeights(dev), junk(dev, len(p.x))
	layer := dev.NewRecurrent(p.shape, false)
	defer layer.Close()
	whole := a.in
	whole.Lengths = nil
	for _, in := range []compute.RecurrentInput{whole, a.in} {
		layer.Forward(a.w, in, a.state, y, out)
		layer.Backward(a.dy, a.dout, dw, dx, dstate)
	}
	c := results{dev: dev, problem: p.name}
	c.add("y", y)
	c.add("h_T", out.H)
	c.add("dIH", dw.IH)
	c.add("dHH", dw.HH)
	c.add("dBiasIH", dw.BiasIH)
	c.add("dBiasHH", dw.BiasHH)
	if p.peephole != nil {
		c.add("dPeephole", dw.Peephole)
	}
	c.add("dh_0", dstate.H)
	if p.x != nil {
		c.add("dx", dx)
	}
	alone := p.likeWeights(dev)
	layer.Forward(a.w, a.in, a.state, y, out)
	layer.Backward(a.dy, a.dout, alone, nil, compute.RecurrentState{})
	c.add("dHH", alone.HH)

	inference, again := dev.NewRecurrent(p.shape, true), junk(dev, len(p.dy))
	defer inference.Close()
	inference.Forward(a.w, a.in, a.state, again, a.state)
	c.add("y", again)
	c.add("h_T", a.state.H)
	if p.c != nil {
		c.add("c_T", out.C)
		c.add("dc_0", dstate.C)
		c.add("c_T", a.state.C)
	}
	return c.all
}

// runReporting runs a layer that reports finished gradients, if the device's layers do, and returns
// the gradients as they were when reported. They are overwritten at once, as a sum over the ranks
// would, so later work must not read them.
func (p *layerProblem) runReporting(dev compute.Device) []Result {
	layer := dev.NewRecurrent(p.shape, false)
	defer layer.Close()
	reporter, ok := layer.(compute.ProgressReporter)
	if !ok {
		return nil
	}
	a := p.arguments(dev)
	out, dstate, y := p.likeState(dev), p.likeState(dev), junk(dev, len(p.dy))
	dw, dx := p.likeWeights(dev), junk(dev, len(p.x))
	c := results{dev: dev, problem: p.name}
	var names []string
	var tensors [][]float32
	for i, x := range [][]float32{dw.IH, dw.HH, dw.BiasIH, dw.BiasHH, dw.Peephole} {
		if len(x) > 0 {
			names = append(names, []string{"dIH", "dHH", "dBiasIH", "dBiasHH", "dPeephole"}[i])
			tensors = append(tensors, x)
		}
	}
	heard := make([][]float32, len(tensors))
	hear := func(i, end int) {
		part := tensors[i][len(heard[i]):end]
		heard[i] = append(heard[i], get(dev, part)...)
		dev.Scale(part, 3)
	}
	layer.Forward(a.w, a.in, a.state, y, out)
	reporter.BackwardReporting(a.dy, a.dout, dw, dx, dstate, func(count, rows int) {
		for i := range count {
			hear(i, len(tensors[i]))
		}
		if rows > 0 { // of W_hh
			hear(count, rows*p.shape.H)
		}
	})
	for i, values := range heard {
		c.all = append(c.all, Result{c.problem, names[i], values})
	}
	c.add("dh_0", dstate.H)
	if p.x != nil {
		c.add("dx", dx)
	}
	return c.all
}
