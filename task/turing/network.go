package turing

import (
	"math"
	"math/rand/v2"

	"rondo/compute"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/memory"
	"rondo/train"
)

// Config is a network's shape. T: steps; D: inputs; O: outputs; H: the controller's units; N: rows
// of the memory; M: their width; R: reading heads, and as many writing ones; S: shifts.
type Config struct {
	Inputs, Outputs int // D, O
	Hidden          int // H
	FeedForward     bool
	Rows, Width     int // N, M
	Heads           int // R
	Shift           int // a head moves by up to so many rows in a step: S = 2 Shift + 1
	Seed            uint64
}

func (c Config) shifts() int { return 2*c.Shift + 1 }

// reads is the width of what the heads read.
func (c Config) reads() int { return c.Heads * c.Width }

// address is the width of what addresses a head.
func (c Config) address() int { return c.Width + 3 + c.shifts() }

// raw is the number of outputs of the controller for its heads: addresses, and erase and add
// vectors.
func (c Config) raw() int { return c.Heads * (2*c.address() + 2*c.Width) }

// gates is the number of the controller's gates.
func (c Config) gates() int {
	if c.FeedForward {
		return 1
	}
	return 4
}

// The tensors, in the order of the parameters.
const (
	inputWeight     = iota // [4H, D+RM]: i, f, g, o; [H, D+RM] of a feed-forward controller
	recurrentWeight        // [4H, H]; a feed-forward controller has none
	controllerBias         // [4H] or [H]
	headsWeight            // [P, H]: the reading heads', then the writing heads'
	headsBias              // [P]
	outputWeight           // [O, H+RM]
	outputBias             // [O]
)

// Layout returns the tensors' places in the flat parameters. Those of a feed-forward controller
// lack recurrentWeight.
func (c Config) Layout() []model.View {
	G, P := c.gates()*c.Hidden, c.Heads*(2*c.address()+2*c.Width)
	tensors := []compute.Tensor{
		{Name: "controller.weight_ih", Shape: []int{G, c.Inputs + c.reads()}},
		{Name: "controller.weight_hh", Shape: []int{G, c.Hidden}},
		{Name: "controller.bias", Shape: []int{G}},
		{Name: "heads.weight", Shape: []int{P, c.Hidden}},
		{Name: "heads.bias", Shape: []int{P}},
		{Name: "output.weight", Shape: []int{c.Outputs, c.Hidden + c.reads()}},
		{Name: "output.bias", Shape: []int{c.Outputs}},
	}
	if c.FeedForward {
		tensors = append(tensors[:recurrentWeight], tensors[recurrentWeight+1:]...)
	}
	return count.Place(tensors...)
}

// split returns the tensors' parts of flat, by their numbers.
func split[F memory.Float](c Config, views []model.View, flat []F) (parts [outputBias + 1][]F) {
	number := 0
	for _, v := range views {
		if c.FeedForward && number == recurrentWeight {
			number++
		}
		parts[number] = flat[v.Offset:][:v.Len]
		number++
	}
	return parts
}

// stream is the random stream of initial values.
const stream = 0x747572696e67 // "turing"

// Initialise draws weights from U(±sqrt(3/inputs)) and sets biases to zero.
func (c Config) Initialise(params []float32) {
	clear(params)
	rng := rand.New(rand.NewPCG(c.Seed, stream))
	for _, v := range c.Layout() {
		if len(v.Shape) != 2 {
			continue
		}
		bound := math.Sqrt(3 / float64(v.Shape[1]))
		for i := range v.Len {
			params[v.Offset+i] = float32(bound * (2*rng.Float64() - 1))
		}
	}
}

// Workspace is the floats of a pass over a sequence of so many steps.
func (c Config) Workspace(steps int) int {
	in, top := c.Inputs+c.reads(), c.Hidden+c.reads()
	step := in + c.gates()*c.Hidden + c.Hidden + top + c.raw() + c.Rows*c.Width + c.Outputs
	return (steps + 1) * (step + 2*c.Heads*5*c.Rows)
}

// initialMemory is every number of the memory before the first step.
const initialMemory = 1e-6

// step is what a step has computed.
type step[F memory.Float] struct {
	in     []F // [D+RM]: x, and what the step before has read
	gates  []F // [4H]: i, f, g, o, after their functions; of a feed-forward controller nil
	cell   []F // [H]
	top    []F // [H+RM]: the controller's output, and what is read
	raw    []F // [P]
	memory []F // [N, M], after writing
	read   []*head[F]
	write  []*head[F]
	logits []F // [O]
}

// pass is a pass over a sequence. It implements memory.Pass.
type pass[F memory.Float] struct {
	Config
	views  []model.View
	steps  []*step[F] // the first is the state before the sequence
	length int
	e      *Example
	score  train.Score

	dmemory, dlast    []F   // [N, M]: of the memory after and before a step
	dread, dwrite     [][]F // [N] for each head: of the weights of the step before
	dtop, dcell, draw []F
	dgates, din       []F
	dweights, dkept   []F
	scratch           *scratch[F]
}

func newPass[F memory.Float](c Config) *pass[F] {
	p := &pass[F]{Config: c, views: c.Layout(), scratch: newScratch[F](c)}
	p.score.Counts = make([]int64, counters)
	zeros, N := memory.Zeros[F], c.Rows
	p.dmemory, p.dlast = zeros(N*c.Width), zeros(N*c.Width)
	p.dweights, p.dkept = zeros(N), zeros(c.Width)
	for range c.Heads {
		p.dread, p.dwrite = append(p.dread, zeros(N)), append(p.dwrite, zeros(N))
	}
	p.dtop, p.dcell = zeros(c.Hidden+c.reads()), zeros(c.Hidden)
	p.draw = zeros(c.raw())
	p.dgates, p.din = zeros(c.gates()*c.Hidden), zeros(c.Inputs+c.reads())
	first := p.newStep()
	for i := range first.memory {
		first.memory[i] = initialMemory
	}
	for _, h := range append(first.read, first.write...) {
		h.weights[0] = 1
	}
	p.steps = append(p.steps, first)
	return p
}

func (p *pass[F]) newStep() *step[F] {
	zeros := memory.Zeros[F]
	s := &step[F]{in: zeros(len(p.din)), gates: zeros(len(p.dgates)), cell: zeros(p.Hidden),
		top: zeros(len(p.dtop)), raw: zeros(len(p.draw)), memory: zeros(len(p.dmemory)),
		logits: zeros(p.Outputs)}
	for range p.Heads {
		s.read = append(s.read, newHead[F](p.Config, false))
		s.write = append(s.write, newHead[F](p.Config, true))
	}
	return s
}

// Forward implements memory.Pass.
func (p *pass[F]) Forward(params []F, e *Example) train.Score {
	w := split(p.Config, p.views, params)
	p.e, p.length = e, len(e.Inputs)/p.Inputs
	for len(p.steps) <= p.length {
		p.steps = append(p.steps, p.newStep())
	}
	clear(p.score.Counts)
	p.score.Loss, p.score.Targets = 0, int64(len(e.Targets))
	for t := range p.length {
		p.forward(w, p.steps[t], p.steps[t+1], e.Inputs[t*p.Inputs:][:p.Inputs])
		if t >= e.First {
			p.measure(p.steps[t+1].logits, e.Targets[(t-e.First)*p.Outputs:][:p.Outputs])
		}
	}
	if p.score.Counts[countWrong] == 0 {
		p.score.Counts[countRight] = 1
	}
	p.score.Counts[countSequences] = 1
	return p.score
}

// measure adds the loss of a step.
func (p *pass[F]) measure(logits []F, targets []float32) {
	for i, y := range logits {
		if targets[i] > 0 {
			y = -y
		}
		p.score.Loss += float64(memory.Softplus(y))
		if y >= 0 {
			p.score.Counts[countWrong]++
		}
	}
}

// forward computes a step.
func (p *pass[F]) forward(w [outputBias + 1][]F, before, s *step[F], x []float32) {
	H := p.Hidden
	for i, v := range x {
		s.in[i] = F(v)
	}
	copy(s.in[p.Inputs:], before.top[H:])
	copy(s.gates, w[controllerBias])
	memory.Multiply(s.gates, w[inputWeight], s.in)
	h := s.top[:H]
	if p.FeedForward {
		for i, a := range s.gates {
			h[i] = memory.Tanh(a)
		}
	} else {
		memory.Multiply(s.gates, w[recurrentWeight], before.top[:H])
		i, f, g, o := quarters(s.gates)
		for k := range h {
			i[k], f[k] = memory.Sigmoid(i[k]), memory.Sigmoid(f[k])
			g[k], o[k] = memory.Tanh(g[k]), memory.Sigmoid(o[k])
			s.cell[k] = f[k]*before.cell[k] + i[k]*g[k]
			h[k] = o[k] * memory.Tanh(s.cell[k])
		}
	}
	copy(s.raw, w[headsBias])
	memory.Multiply(s.raw, w[headsWeight], h)
	reading, writing := p.parts(s.raw)
	for k, head := range s.write {
		head.address(writing[k], before.memory, before.write[k].weights)
		head.prepare()
	}
	p.write(before.memory, s)
	for k, head := range s.read {
		head.address(reading[k], s.memory, before.read[k].weights)
		read := s.top[H+k*p.Width:][:p.Width]
		clear(read)
		memory.MultiplyTransposed(read, s.memory, head.weights)
	}
	copy(s.logits, w[outputBias])
	memory.Multiply(s.logits, w[outputWeight], s.top)
}

// quarters are the gates of an LSTM.
func quarters[F any](x []F) (i, f, g, o []F) {
	H := len(x) / 4
	return x[:H], x[H : 2*H], x[2*H : 3*H], x[3*H:]
}

// parts divides what the heads have of the controller.
func (p *pass[F]) parts(raw []F) (reading, writing [][]F) {
	for range p.Heads {
		reading, raw = append(reading, raw[:p.address()]), raw[p.address():]
	}
	for range p.Heads {
		n := p.address() + 2*p.Width
		writing, raw = append(writing, raw[:n]), raw[n:]
	}
	return reading, writing
}

// prepare computes what a head writes.
func (h *head[F]) prepare() {
	rest := h.raw[len(h.raw)-2*len(h.erase):]
	for i := range h.erase {
		h.erase[i] = memory.Sigmoid(rest[i])
		h.add[i] = memory.Tanh(rest[len(h.erase)+i])
	}
}

// write erases and adds: equations 3 and 4. All heads erase before one adds.
func (p *pass[F]) write(before []F, s *step[F]) {
	M := p.Width
	for i := range p.Rows {
		row := s.memory[i*M:][:M]
		copy(row, before[i*M:])
		for _, h := range s.write {
			for k := range row {
				row[k] *= 1 - h.weights[i]*h.erase[k]
			}
		}
		for _, h := range s.write {
			memory.AddScaled(row, h.weights[i], h.add)
		}
	}
}

// Backward implements memory.Pass.
func (p *pass[F]) Backward(params, gradients []F, scale F) {
	w, d := split(p.Config, p.views, params), split(p.Config, p.views, gradients)
	clear(p.dmemory)
	clear(p.dcell)
	clear(p.dtop)
	for k := range p.dread {
		clear(p.dread[k])
		clear(p.dwrite[k])
	}
	for t := p.length - 1; t >= 0; t-- {
		s := p.steps[t+1]
		if t >= p.e.First {
			targets := p.e.Targets[(t-p.e.First)*p.Outputs:]
			for i, y := range s.logits {
				s.logits[i] = scale * (memory.Sigmoid(y) - F(targets[i]))
			}
			memory.Add(d[outputBias], s.logits)
			memory.AddOuter(d[outputWeight], s.logits, s.top)
			memory.MultiplyTransposed(p.dtop, w[outputWeight], s.logits)
		}
		p.backward(w, d, p.steps[t], s)
	}
}

// backward computes a step's part. dtop, dcell, dmemory, dread and dwrite are the gradients of
// the step's results, and become those of the step before.
func (p *pass[F]) backward(w, d [outputBias + 1][]F, before, s *step[F]) {
	H := p.Hidden
	clear(p.draw)
	reading, writing := p.parts(p.draw)
	for k, h := range s.read {
		dread := p.dtop[H+k*p.Width:][:p.Width]
		dweights := p.dweights
		copy(dweights, p.dread[k])
		memory.Multiply(dweights, s.memory, dread)
		memory.AddOuter(p.dmemory, h.weights, dread)
		clear(p.dread[k])
		h.addressBackward(p.scratch, dweights, s.memory, before.read[k].weights, reading[k],
			p.dmemory, p.dread[k])
	}
	p.writeBackward(before, s, writing)
	dh := p.dtop[:H]
	memory.MultiplyTransposed(dh, w[headsWeight], p.draw)
	memory.Add(d[headsBias], p.draw)
	memory.AddOuter(d[headsWeight], p.draw, s.top[:H])
	if p.FeedForward {
		for i, y := range s.top[:H] {
			p.dgates[i] = dh[i] * (1 - y*y)
		}
	} else {
		p.gatesBackward(before, s, dh)
	}
	memory.Add(d[controllerBias], p.dgates)
	memory.AddOuter(d[inputWeight], p.dgates, s.in)
	clear(p.din)
	memory.MultiplyTransposed(p.din, w[inputWeight], p.dgates)
	clear(dh)
	if !p.FeedForward {
		memory.AddOuter(d[recurrentWeight], p.dgates, before.top[:H])
		memory.MultiplyTransposed(dh, w[recurrentWeight], p.dgates)
	}
	copy(p.dtop[H:], p.din[p.Inputs:])
}

// gatesBackward computes the gates' gradients, and the cell's of the step before.
func (p *pass[F]) gatesBackward(before, s *step[F], dh []F) {
	i, f, g, o := quarters(s.gates)
	di, df, dg, do := quarters(p.dgates)
	for k, d := range dh {
		y := memory.Tanh(s.cell[k])
		dc := p.dcell[k] + d*o[k]*(1-y*y)
		do[k] = d * y * o[k] * (1 - o[k])
		di[k] = dc * g[k] * i[k] * (1 - i[k])
		df[k] = dc * before.cell[k] * f[k] * (1 - f[k])
		dg[k] = dc * i[k] * (1 - g[k]*g[k])
		p.dcell[k] = dc * f[k]
	}
}

// writeBackward goes from the gradient of the memory after a step to that before it.
func (p *pass[F]) writeBackward(before, s *step[F], draw [][]F) {
	M := p.Width
	for k, h := range s.write {
		dweights, raw := p.dwrite[k], draw[k][p.address():]
		derase, dadd := raw[:M], raw[M:]
		for i, weight := range h.weights {
			row, d, dlast := before.memory[i*M:][:M], p.dmemory[i*M:][:M], p.dlast[i*M:][:M]
			dweights[i] += memory.Dot(d, h.add)
			memory.AddScaled(dadd, weight, d)
			copy(p.dkept, d)
			for other, o := range s.write {
				for m := range d {
					if other != k {
						p.dkept[m] *= 1 - o.weights[i]*o.erase[m]
					}
				}
			}
			for m, x := range p.dkept { // d times what the other heads keep
				dweights[i] -= x * row[m] * h.erase[m]
				derase[m] -= x * row[m] * weight
				dlast[m] = x * (1 - weight*h.erase[m]) // the same for each head
			}
		}
		for m := range M {
			derase[m] *= h.erase[m] * (1 - h.erase[m])
			dadd[m] *= 1 - h.add[m]*h.add[m]
		}
	}
	for k, h := range s.write {
		copy(p.dweights, p.dwrite[k])
		clear(p.dwrite[k])
		h.addressBackward(p.scratch, p.dweights, before.memory, before.write[k].weights, draw[k],
			p.dlast, p.dwrite[k])
	}
	p.dmemory, p.dlast = p.dlast, p.dmemory
}
