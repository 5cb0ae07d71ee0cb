package model

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"rondo/compute"
)

// Flow says how far back in time a loss reaches: the vanishing or exploding gradient (Hochreiter
// 1991; Bengio, Simard and Frasconi 1994; Goodfellow, Bengio and Courville, Deep Learning, 10.7).
type Flow struct {
	// Hidden has for each layer and distance d the norm of dL/dh[t-d], L: the loss of the token
	// after t alone, h: the layer's output and state. It is the mean over windows. Cell is the same
	// of c; nil: the cell has none.
	Hidden [][]float64 `json:"hidden"`
	Cell   [][]float64 `json:"cell,omitempty"`
	Gates  []GateUse   `json:"gates"`
}

// GateUse is how a layer's gate is used, over units, windows and the steps of the distances
// (Karpathy et al. 2015, arXiv:1506.02078, section 4.2).
type GateUse struct {
	Layer  int     `json:"layer"` // from 0
	Gate   string  `json:"gate"`
	Mean   float64 `json:"mean"`
	Closed float64 `json:"closed"` // the share below closedGate
	Open   float64 `json:"open"`   // the share above openGate
}

const (
	closedGate = 0.1
	openGate   = 0.9
)

// maxFlowStates bounds the floats of the states that Flow keeps at a time, unless those of one
// window are more.
const maxFlowStates = 1 << 26

// Flow measures windows of a text, from a zero state. inputs is [S, B], S steps of B windows, and
// targets, [B], the tokens after the last ones. The distances are 0 to T-1; the steps before them
// make the state. It measures as many windows at a time as maxFlowStates allows. It fails if the
// network has parts between its layers and the output, or if the device lacks memory.
func (m *Model) Flow(inputs, targets []int32, T int) (f *Flow, err error) {
	c, B := m.config, len(targets)
	if c.LayerNorm || c.Skip || c.SkipThroughTime > 0 || c.DeepInput > 0 || c.DeepOutput > 0 ||
		c.projects() || c.Inputs > 0 {
		return nil, errors.New("the flow of gradients is measured in networks of tokens without " +
			"--layer-norm, --skip-connections, --skip-through-time, --deep-input, --deep-output " +
			"and a projection")
	}
	if B < 1 || T < 1 || len(inputs)%B != 0 || len(inputs)/B < T {
		return nil, fmt.Errorf("model: %d inputs and %d windows, for distances below %d",
			len(inputs), B, T)
	}
	if err := errors.Join(m.checkIDs("input", inputs, 0),
		m.checkIDs("target", targets, 0)); err != nil {
		return nil, err
	}
	together := max(1, maxFlowStates/((len(inputs)/B+1)*c.StateSize()))
	return m.flow(inputs, targets, T, together)
}

// flow measures so many windows at a time.
func (m *Model) flow(inputs, targets []int32, T, together int) (f *Flow, err error) {
	defer compute.Catch(&err)
	c, B := m.config, len(targets)
	f = &Flow{Hidden: make([][]float64, c.Layers), Gates: []GateUse{}}
	if c.Cell.States() == 2 && c.Cell != compute.Clockwork { // whose second state is a clock
		f.Cell = make([][]float64, c.Layers)
	}
	for k := range c.Layers {
		f.Hidden[k] = make([]float64, T)
		if f.Cell != nil {
			f.Cell[k] = make([]float64, T)
		}
	}
	gates := gatesOf(c)
	for first := 0; first < B; first += together {
		n := min(together, B-first)
		p := &flowPass{m: m, weights: m.weights(), B: n, steps: len(inputs) / B, flow: f,
			gates: gates, share: 1 / float64(B)}
		for at := first; at < len(inputs); at += B {
			p.inputs = append(p.inputs, inputs[at:at+n]...)
		}
		p.run(targets[first:first+n], T)
	}
	for _, g := range gates {
		n := float64(T * B * c.Hidden)
		f.Gates = append(f.Gates, GateUse{g.Layer, g.Gate, g.Mean / n, g.Closed / n, g.Open / n})
	}
	return f, nil
}

// flowPass runs a network step by step over some of the windows, and adds their part to a Flow.
// Backward runs each step forward again, so that one workspace serves all.
type flowPass struct {
	m        *Model
	weights  weights
	inputs   []int32
	B, steps int
	flow     *Flow
	gates    []*gateOf
	share    float64 // of a window in the means

	memory  [][]float32
	kernels []compute.Recurrent
	output  compute.Output
	states  []state     // before each step, and after the last
	x       []float32   // [B, E]
	y, dy   [][]float32 // of each layer, [B, H]
	sums    []float32   // [B, K*H]: what a layer's gates are functions of
	columns []float32   // host memory of W_ih of the first layer, [K*H, V], if it reads tokens
	dw      []compute.RecurrentWeights
	dlast   [2][]float32 // of the output layer: [V, H], [V]
	dout    state
	dstate  state
}

func (p *flowPass) alloc(n int) []float32 {
	x := p.m.dev.Alloc(n)
	p.memory = append(p.memory, x)
	return x
}

func (p *flowPass) allocate() {
	m, c := p.m, p.m.config
	for range p.steps + 1 {
		p.states = append(p.states, newState(m, p.B))
	}
	p.dout, p.dstate = newState(m, p.B), newState(m, p.B)
	p.x, p.sums = p.alloc(p.B*c.Embed), p.alloc(p.B*c.Cell.Gates()*c.Hidden)
	for k := range c.Layers {
		shape := c.layerShape(k, 1, p.B)
		p.kernels = append(p.kernels, compute.NewRecurrent(m.dev, shape, false))
		p.y, p.dy = append(p.y, p.alloc(p.B*c.Hidden)), append(p.dy, p.alloc(p.B*c.Hidden))
		p.dw = append(p.dw, shape.Weights(p.alloc))
	}
	p.output = m.newOutput(p.B, 0)
	p.dlast = [2][]float32{p.alloc(len(p.weights.output)), p.alloc(len(p.weights.bias))}
	if c.Embed == 0 {
		p.columns = make([]float32, len(p.weights.layers[0].IH))
		m.dev.Download(p.columns, p.weights.layers[0].IH)
	}
}

func (p *flowPass) close() {
	for _, k := range p.kernels {
		k.Close()
	}
	if p.output != nil {
		p.output.Close()
	}
	for _, s := range append(p.states, p.dout, p.dstate) {
		if s.model != nil {
			s.close()
		}
	}
	for _, x := range p.memory {
		p.m.dev.Free(x)
	}
}

// input is layer k's in step t.
func (p *flowPass) input(t, k int) compute.RecurrentInput {
	ids := p.inputs[t*p.B:][:p.B]
	switch {
	case k > 0:
		return compute.RecurrentInput{X: p.y[k-1]}
	case p.m.config.Embed > 0:
		p.m.dev.Embed(p.x, p.weights.embedding, ids)
		return compute.RecurrentInput{X: p.x}
	}
	return compute.RecurrentInput{IDs: ids}
}

// layer runs layer k in step t.
func (p *flowPass) layer(t, k int) {
	p.kernels[k].Forward(p.weights.layers[k], p.input(t, k), p.states[t].layers[k], p.y[k],
		p.states[t+1].layers[k])
}

// forward runs all layers in step t.
func (p *flowPass) forward(t int) {
	for k := range p.kernels {
		p.layer(t, k)
	}
}

// run measures the windows. It panics if the device lacks memory.
func (p *flowPass) run(targets []int32, T int) {
	defer p.close()
	p.allocate()
	for t := range p.steps {
		p.forward(t)
	}
	p.backward(targets, T)
}

// backward measures the steps from the last on.
func (p *flowPass) backward(targets []int32, T int) {
	c, f := p.m.config, p.flow
	for d := range T {
		t := p.steps - 1 - d
		p.forward(t)
		p.measure(t)
		last := p.dy[c.Layers-1]
		if d == 0 {
			p.output.ForwardBackward(p.y[c.Layers-1], p.weights.output, p.weights.bias, targets, 1,
				last, p.dlast[0], p.dlast[1])
		} else {
			p.m.dev.Zero(last)
		}
		for k := c.Layers - 1; k >= 0; k-- {
			f.Hidden[k][d] += p.norm(p.dy[k], p.dout.layers[k].H)
			if f.Cell != nil {
				f.Cell[k][d] += p.norm(p.dout.layers[k].C)
			}
			var dx []float32
			if k > 0 {
				dx = p.dy[k-1]
			}
			p.kernels[k].Backward(p.dy[k], p.dout.layers[k], p.dw[k], dx, p.dstate.layers[k])
		}
		p.dout, p.dstate = p.dstate, p.dout
	}
}

// norm is the windows' part of the mean norm of a sum of gradients, [B, H] each.
func (p *flowPass) norm(parts ...[]float32) (mean float64) {
	H := p.m.config.Hidden
	host, sum := make([]float32, p.B*H), make([]float64, p.B*H)
	for _, part := range parts {
		p.m.dev.Download(host, part)
		for i, x := range host {
			sum[i] += float64(x)
		}
	}
	for b := range p.B {
		squares := 0.0
		for _, x := range sum[b*H:][:H] {
			squares += x * x
		}
		mean += math.Sqrt(squares) * p.share
	}
	return mean
}

// gateOf is a gate of a layer, and the number of its block of rows in the weights.
type gateOf struct {
	GateUse // sums
	block   int
}

// gatesOf are the layers' gates: values of a logistic function. The others are candidates.
func gatesOf(c Config) (all []*gateOf) {
	names := c.Cell.Text().Gates
	for k := range c.Layers {
		for block, name := range strings.Split(names, ", ") {
			if name != "" && name != "g" && name != "n" {
				all = append(all, &gateOf{GateUse{Layer: k, Gate: name}, block})
			}
		}
	}
	return all
}

// measure adds the activations of step t, which has run, to the gates.
func (p *flowPass) measure(t int) {
	c, dev, gates := p.m.config, p.m.dev, p.gates
	H, rows := c.Hidden, c.Cell.Gates()*c.Hidden
	sums, before, after := make([]float32, p.B*rows), make([]float32, p.B*H), make([]float32, p.B*H)
	var peephole []float32
	for i, g := range gates {
		if i == 0 || gates[i-1].Layer != g.Layer {
			w, in := p.weights.layers[g.Layer], p.input(t, g.Layer)
			dev.Zero(p.sums)
			if in.X != nil {
				dev.Gemm(false, true, p.B, rows, len(in.X)/p.B, 1, in.X, w.IH, 0, p.sums)
			}
			dev.AddBias(p.sums, w.BiasIH)
			if w.HH != nil {
				h := p.states[t].layers[g.Layer].H
				dev.Gemm(false, true, p.B, rows, H, 1, h, w.HH, 1, p.sums)
				dev.AddBias(p.sums, w.BiasHH)
			}
			dev.Download(sums, p.sums)
			if in.X == nil {
				p.addColumns(sums, in.IDs)
			}
			if peephole = nil; c.Cell == compute.LSTMPeephole {
				peephole = make([]float32, len(w.Peephole))
				dev.Download(peephole, w.Peephole)
				dev.Download(before, p.states[t].layers[g.Layer].C)
				dev.Download(after, p.states[t+1].layers[g.Layer].C)
			}
		}
		cell, at := before, map[string]int{"i": 0, "f": 1, "o": 2}[g.Gate]
		if g.Gate == "o" {
			cell = after
		}
		for b := range p.B {
			for h, a := range sums[b*rows+g.block*H:][:H] {
				if peephole != nil {
					a += peephole[at*H+h] * cell[b*H+h]
				}
				g.add(1 / (1 + math.Exp(-float64(a))))
			}
		}
	}
}

// addColumns adds the columns of W_ih that one-hot input selects.
func (p *flowPass) addColumns(sums []float32, ids []int32) {
	V, rows := p.m.config.Vocab, len(sums)/p.B
	for b, id := range ids {
		for r := range rows {
			sums[b*rows+r] += p.columns[r*V+int(id)]
		}
	}
}

// add adds an activation.
func (g *GateUse) add(x float64) {
	g.Mean += x
	if x < closedGate {
		g.Closed++
	}
	if x > openGate {
		g.Open++
	}
}
