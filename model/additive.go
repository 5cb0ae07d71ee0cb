package model

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// additive is the recurrent layers of a decoder with AttentionBahdanau, as one operator: y: [Td, B,
// H] of decoderInput's x: [Td, B, D]. It runs them step by step, because a step's input has the
// context that the last layer's state before it attends to. Its backward pass runs each step
// forward once more, so that it keeps the states alone. Like attention it reads the encoder's
// output, and overwrites its gradient, without a node.
type additive struct {
	*parameters
	tape *tape
	T    int    // Td
	step *stack // the decoder's layers, for one step
	additiveMemory
	keys     []float32                   // wk of the lanes' sources
	of       compute.Attention           // of one query a lane: its keys are the scores, 1 wide
	lanes    []int32                     // [Ts, B]: each row's lane
	states   [][]compute.RecurrentState  // before each step, and after the last: [Td+1][L]
	dstates  [2][]compute.RecurrentState // gradients of those before even and odd steps: [L]
	y, dx    *buffer
	dencoded []float32 // [Ts, B, W]
	in       *Pairs    // of a run with dropout; nil: without
}

// additiveMemory is the working memory of an additive, besides its layers'.
type additiveMemory struct {
	partial         []float32 // one step's gradients of the layers
	after           []float32 // states after each step: [Td, L, States, B, H]
	dafter          []float32 // gradients of the states before odd steps: [L, States, B, H]
	wk, dwk         []float32 // W_k e_s, and its gradient: [Ts, B, H]
	bent            []float32 // tanh(W_q q + W_k e_s), or its gradient: [Ts, B, H]
	wq              []float32 // W_q q, or its gradient: [B, H]
	ones, dones     []float32 // [B]
	scores, dscores []float32 // [Ts, B]
	weights         []float32 // [B, Ts]
	context         []float32 // [B, W]
	dcontext        []float32
	dvalues         []float32 // [Ts, B, W]
}

// cut takes the memory from parts that take gives.
func (m *additiveMemory) cut(c TranslatorConfig, source, target, B int,
	take func(n int) []float32) {
	H, W, state := c.Hidden, c.encoder().width(), B*c.network().StateSize()
	begin, end := c.decoder().layersSpan(c.Layout())
	// These keep their contents, or their padding, so they are at the same place for all steps.
	m.ones, m.partial = take(B), take(end-begin)
	m.after, m.dafter = take(target*state), take(state)
	m.wk, m.dwk, m.bent = take(source*B*H), take(source*B*H), take(source*B*H)
	m.wq, m.dones = take(B*H), take(B)
	m.scores, m.dscores, m.weights = take(source*B), take(source*B), take(B*source)
	m.context, m.dcontext, m.dvalues = take(B*W), take(B*W), take(source*B*W)
}

// additiveSize is how many floats an additiveMemory takes.
func (c TranslatorConfig) additiveSize(source, target, B int) (floats int) {
	new(additiveMemory).cut(c, source, target, B, func(n int) []float32 {
		floats += roundUp(n)
		return nil
	})
	return floats
}

// newAdditive makes the operator. Its memory is a part of flat, and its layers' is steps. dfirst
// takes the gradients of the decoder's first states: [L]. On an error of the device it panics; the
// layers that were made are those of n.additive.step.
func (n *translation) newAdditive(steps *stackMemory, flat []float32,
	dfirst []compute.RecurrentState) {
	e, d, c := n.encoder, n.decoder, n.translator.config
	T, S, B, H, W := d.T, e.T, d.B, c.Hidden, e.width()
	a := &additive{parameters: d.parameters, tape: d.tape, T: T,
		lanes: make([]int32, S*B), y: cut(d.memory.hidden[0], T, B, H),
		dx: d.inputGradient(c.Layers, d.unattendedWidth()), dencoded: e.inputGradient(0, W).flat}
	a.cut(c, S, T, B, func(n int) []float32 {
		part := flat[:n:n]
		flat = flat[roundUp(n):]
		return part
	})
	n.additive, a.keys, a.dstates[0] = a, a.wk, dfirst
	for i := range a.lanes {
		a.lanes[i] = int32(i % B)
	}
	ones := make([]float32, B)
	for b := range ones {
		ones[b] = 1
	}
	a.dev.Upload(a.ones, ones)
	a.of = compute.Attention{T: 1, S: S, B: B, H: 1, W: W, Lengths: e.lengths, Q: a.ones,
		K: a.scores, V: e.outputOf(c.Layers - 1).flat, Weights: a.weights, Y: a.context}
	begin, _ := d.layersSpan(d.views)
	a.step = &stack{parameters: d.parameters, stackConfig: d.stackConfig, tape: new(tape), T: 1,
		B: B, memory: steps, partial: a.partial, begin: begin}
	a.step.makeLayers()
	a.states = make([][]compute.RecurrentState, T+1)
	for k, layer := range a.step.layers {
		l := layer.(*Layer)
		size := c.Cell.States() * B * H
		a.dstates[1] = append(a.dstates[1], cutState(l.shape, a.dafter[k*size:]))
		l.gradientReady = nil
		a.states[0] = append(a.states[0], e.sides(k)[0].out)
		for t := range T {
			a.states[t+1] = append(a.states[t+1],
				cutState(l.shape, a.after[(t*c.Layers+k)*size:]))
		}
	}
}

// project computes the keys of the encoder's output.
func (a *additive) project() {
	of := a.of
	a.dev.Gemm(false, true, of.S*of.B, a.step.Hidden, of.W, 1, of.V, a.view(attentionKeys,
		a.params), 0, a.wk)
}

// query is what step t asks with: the last layer's state before it.
func (a *additive) query(t int) []float32 { return a.states[t][a.step.Layers-1].H }

// attend computes the context of step t.
func (a *additive) attend(t int) {
	H, n, B := a.step.Hidden, a.of.S*a.of.B, a.of.B
	a.dev.Gemm(false, true, B, H, H, 1, a.query(t), a.view(attentionQuery, a.params), 0, a.wq)
	a.dev.CopyRows(packed(a.bent, H), packed(a.keys, H), n, H, nil, false)
	a.dev.CopyRows(packed(a.bent, H), packed(a.wq, H), n, H, a.lanes, true)
	a.dev.Tanh(a.bent)
	a.dev.Gemm(false, true, n, 1, H, 1, a.bent, a.view(attentionScore, a.params), 0, a.scores)
	a.dev.Attend(a.of)
}

// attendBackward computes the gradients of step t's attention, given the context's. It adds the
// query's to dquery, and the others to those of the later steps.
func (a *additive) attendBackward(t int, dquery []float32) {
	H, n, B := a.step.Hidden, a.of.S*a.of.B, a.of.B
	a.dev.AttendBackward(a.of, a.dcontext, a.dones, a.dscores, a.dvalues)
	a.dev.Add(a.dencoded, a.dvalues)
	a.dev.Gemm(true, false, 1, H, n, 1, a.dscores, a.bent, 1, a.view(attentionScore, a.grads))
	// The gradient of bent takes the memory of dvalues, which is at least as large.
	dbent := a.dvalues[:n*H]
	a.dev.Gemm(false, false, n, H, 1, 1, a.dscores, a.view(attentionScore, a.params), 0, dbent)
	a.dev.TanhBackward(dbent, a.bent)
	a.dev.Add(a.dwk, dbent)
	a.dev.Zero(a.wq)
	a.dev.EmbedBackward(a.wq, dbent, a.lanes)
	a.dev.Gemm(true, false, H, H, B, 1, a.wq, a.query(t), 1, a.view(attentionQuery, a.grads))
	a.dev.Gemm(false, false, B, H, H, 1, a.wq, a.view(attentionQuery, a.params), 1, dquery)
}

// forward runs step t and returns the last layer's output.
func (a *additive) forward(t int, x []float32) []float32 {
	s, B := a.step, a.of.B
	a.attend(t)
	wide := s.unattendedWidth()
	in := s.memory.embedded
	a.dev.CopyRows(a.part(in, 0), packed(a.rows(x, t, wide), wide), B, wide, nil, false)
	a.dev.CopyRows(a.part(in, wide), packed(a.context, a.of.W), B, a.of.W, nil, false)
	for k, layer := range s.layers {
		l := layer.(*Layer)
		l.in, l.out = a.states[t][k], a.states[t+1][k]
		if d := s.dropouts[k]; d != nil && a.in != nil {
			d.load(s.Seed, a.in.Step, a.in.Lanes, t)
		}
		in = s.runLayer(k, compute.RecurrentInput{X: in}, a.in != nil).X
	}
	return in
}

// part is the columns of the first layer's input, or of its gradient, from at on.
func (a *additive) part(x []float32, at int) compute.Columns {
	return compute.Columns{X: x, Stride: a.step.layerShape(0, 1, 1).D, At: at}
}

// rows are step t's rows of this width.
func (a *additive) rows(x []float32, t, width int) []float32 {
	n := a.of.B * width
	return x[t*n : (t+1)*n : (t+1)*n]
}

// run computes y.
func (a *additive) run(x []float32) []float32 {
	H, B := a.step.Hidden, a.of.B
	for t := range a.T {
		a.dev.CopyRows(packed(a.rows(a.y.flat, t, H), H), packed(a.forward(t, x), H), B, H, nil,
			false)
	}
	return a.y.flat
}

// backward computes the gradients of x, the weights and the encoder's output.
func (a *additive) backward(x, dy []float32) {
	s, of, H, wide := a.step, a.of, a.step.Hidden, a.step.unattendedWidth()
	begin, end := s.layersSpan(a.views)
	for _, x := range [][]float32{a.dencoded, a.dwk, a.grads[begin:end:end],
		a.view(attentionQuery, a.grads), a.view(attentionScore, a.grads)} {
		a.dev.Zero(x)
	}
	for t := a.T - 1; t >= 0; t-- {
		a.forward(t, x)
		d := s.inputGradient(0, H).flat
		a.dev.CopyRows(packed(d, H), packed(a.rows(dy, t, H), H), of.B, H, nil, false)
		for k := s.Layers - 1; k >= 0; k-- {
			l := s.layers[k].(*Layer)
			if t < a.T-1 {
				l.dout = a.dstates[(t+1)%2][k]
			} else {
				l.dout = compute.RecurrentState{}
			}
			l.dstate = a.dstates[t%2][k]
			if n := s.norms[k]; n != nil {
				n.backward(d)
			}
			if skip := s.skips[k]; skip != nil {
				d = skip.backward(d)
			}
			if drop := s.dropouts[k]; drop != nil && a.in != nil {
				drop.drop(drop.dy)
			}
			l.backward(d, l.dx.flat)
			l.skip.add(l.dx.flat)
			d = l.dx.flat
		}
		a.dev.Add(a.grads[begin:end:end], a.partial)
		a.dev.CopyRows(packed(a.rows(a.dx.flat, t, wide), wide), a.part(d, 0), of.B, wide, nil,
			false)
		a.dev.CopyRows(packed(a.dcontext, of.W), a.part(d, wide), of.B, of.W, nil, false)
		a.attendBackward(t, a.dstates[t%2][s.Layers-1].H)
	}
	steps := of.S * of.B
	a.dev.Gemm(true, false, H, of.W, steps, 1, a.dwk, of.V, 0, a.view(attentionKeys, a.grads))
	a.dev.Gemm(false, false, steps, of.W, H, 1, a.dwk, a.view(attentionKeys, a.params), 1,
		a.dencoded)
	a.tape.finish(end)
}

// apply adds the operator to the graph of x.
func (a *additive) apply(x *gorgonia.Node, weights *leaves) (*gorgonia.Node, error) {
	begin, end := a.step.layersSpan(a.views)
	in := gorgonia.Nodes{x, weights.part("decoder.rnn.weights", begin, end)}
	gradients := []*buffer{a.dx, cut(a.grads[begin:end], end-begin)}
	for _, name := range attentionTensors(AttentionBahdanau) {
		v := find(a.views, name)
		in = append(in, weights.tensor(name))
		gradients = append(gradients, cut(v.of(a.grads), v.Shape...))
	}
	return applyTogether("decoder", in, a.y, gradients, func(x []float32) {
		a.project()
		a.run(x)
	}, a.backward)
}

// applyTogether adds an operator y = run(x), x being the first input, whose gradients backward
// computes at once, given dy, and to the memory of gradients.
func applyTogether(name string, in gorgonia.Nodes, y *buffer, gradients []*buffer,
	run func(x []float32), backward func(x, dy []float32)) (*gorgonia.Node, error) {
	forward := &operator{name: name, shape: y.value.Shape().Clone(), wrt: make([]bool, len(in)),
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			x, err := floats(in[0], in[0].Shape().TotalSize())
			if err == nil {
				run(x)
			}
			return y.value, err
		}}
	for i := range in {
		forward.wrt[i] = true
	}
	forward.gradient = func(in gorgonia.Nodes, out, grad *gorgonia.Node) (gorgonia.Nodes, error) {
		back := &operator{name: name + ".backward", shape: gradients[0].value.Shape().Clone(),
			run: func(in []gorgonia.Value) (gorgonia.Value, error) {
				x, err := floats(in[0], in[0].Shape().TotalSize())
				if err != nil {
					return nil, err
				}
				dy, err := floats(in[2], len(y.flat))
				if err == nil {
					backward(x, dy)
				}
				return gradients[0].value, err
			}}
		dx, err := back.apply(in[0], out, grad)
		all := gorgonia.Nodes{dx}
		for i, g := range gradients[1:] {
			if err != nil {
				return nil, err
			}
			var dw *gorgonia.Node
			dw, err = port(fmt.Sprintf("%s.dw%d", name, i), dx, g.value)
			all = append(all, dw)
		}
		return all, err
	}
	return forward.apply(in...)
}
