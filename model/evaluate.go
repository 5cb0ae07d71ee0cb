package model

import (
	"fmt"

	"rondo/compute"
)

// inference is the forward pass alone, straight on the kernels, up to the output layer's input.
type inference struct {
	model   *Model
	weights weights
	kernels []compute.Recurrent
	states  []compute.RecurrentState
	memory  []float32    // of the states: [L, States, B, H]
	rows    [2][]float32 // each [T, B, max(E, H)]: a layer reads one and writes the other
	n       int          // T*B
}

// newInference makes the workspaces for T steps of B lanes, with a state of zeros.
func newInference(m *Model, T, B int) (*inference, error) {
	if T < 1 || B < 1 {
		return nil, fmt.Errorf("model: %d steps and %d lanes; each must be at least 1", T, B)
	}
	c := m.config
	f := &inference{model: m, weights: m.weights(), n: T * B}
	n := c.Cell.States() * B * c.Hidden
	f.memory = m.dev.Alloc(c.Layers * n)
	for k := range c.Layers {
		shape := c.layerShape(k, T, B)
		f.kernels = append(f.kernels, m.dev.NewRecurrent(shape, true))
		f.states = append(f.states, cutState(shape, f.memory[k*n:(k+1)*n]))
	}
	for i := range f.rows {
		f.rows[i] = m.dev.Alloc(f.n * max(c.Embed, c.Hidden))
	}
	return f, nil
}

// run returns the output layer's input, [T*B, outputWidth], and carries the state on. The memory
// is used again by the next run.
func (f *inference) run(ids []int32) []float32 {
	m, c := f.model, f.model.config
	current := 0 // which of rows the layer's input is
	in := compute.RecurrentInput{IDs: ids}
	if c.Embed > 0 {
		in = compute.RecurrentInput{X: f.rows[current][:f.n*c.Embed]}
		m.dev.Embed(in.X, f.weights.embedding, ids)
	}
	for k, kernel := range f.kernels {
		current = 1 - current
		y := f.rows[current][:f.n*c.Hidden]
		kernel.Forward(f.weights.layers[k], in, f.states[k], y, f.states[k])
		in = compute.RecurrentInput{X: y}
	}
	if !c.projects() {
		return in.X
	}
	y := f.rows[1-current][:f.n*c.Embed]
	m.dev.Gemm(false, true, f.n, c.Embed, c.Hidden, 1, in.X, f.weights.projection, 0, y)
	return y
}

// zeroState sets the state of all lanes to zero.
func (f *inference) zeroState() { f.model.dev.Zero(f.memory) }

func (f *inference) close() {
	for _, k := range f.kernels {
		k.Close()
	}
	f.kernels = nil
	for _, x := range [][]float32{f.memory, f.rows[0], f.rows[1]} {
		f.model.dev.Free(x)
	}
	f.memory, f.rows = nil, [2][]float32{}
}

// Evaluator computes the loss of a model on text, without dropout and without gradients.
type Evaluator struct {
	inference *inference
	output    compute.Output
}

// NewEvaluator makes an evaluator for T steps of B lanes at a time, with a state of zeros. Close
// frees it.
func (m *Model) NewEvaluator(T, B int) (*Evaluator, error) {
	f, err := newInference(m, T, B)
	if err != nil {
		return nil, err
	}
	c := m.config
	return &Evaluator{inference: f, output: m.dev.NewOutput(
		compute.OutputShape{N: T * B, H: c.outputWidth(), V: c.Vocab})}, nil
}

// Evaluate returns the summed cross-entropy in nats of targets [T, B] after inputs [T, B], and
// how many targets count: those that are -1 do not. The state is carried on to the next call.
func (e *Evaluator) Evaluate(inputs, targets []int32) (lossSum float64, count int, err error) {
	f, m := e.inference, e.inference.model
	if len(inputs) != f.n || len(targets) != f.n {
		return 0, 0, fmt.Errorf("model: an evaluation takes %d inputs and targets, not %d and %d",
			f.n, len(inputs), len(targets))
	}
	if err := m.checkIDs("input", inputs, 0); err != nil {
		return 0, 0, err
	}
	if err := m.checkIDs("target", targets, -1); err != nil {
		return 0, 0, err
	}
	for _, id := range targets {
		if id >= 0 {
			count++
		}
	}
	x := f.run(inputs)
	return e.output.Forward(x, f.weights.output, f.weights.bias, targets), count, nil
}

// Advance carries the state on over inputs [T, B], as Evaluate does, and computes no loss.
func (e *Evaluator) Advance(inputs []int32) error {
	if f := e.inference; len(inputs) != f.n {
		return fmt.Errorf("model: an evaluation takes %d inputs, not %d", f.n, len(inputs))
	}
	if err := e.inference.model.checkIDs("input", inputs, 0); err != nil {
		return err
	}
	e.inference.run(inputs)
	return nil
}

// State copies the state to dst, host memory laid out as in Segment.State.
func (e *Evaluator) State(dst []float32) error {
	f := e.inference
	lanes := f.memory // [L, States, B, H]
	size, h := f.model.config.StateSize(), f.model.config.Hidden
	if len(dst) != len(lanes) {
		return fmt.Errorf("model: the state of %d lanes is %d floats, not %d",
			len(lanes)/size, len(lanes), len(dst))
	}
	host := make([]float32, len(lanes))
	f.model.dev.Download(host, lanes)
	count := len(lanes) / size
	for row := range len(lanes) / h { // row: (layer and tensor) * B + lane
		copy(dst[row%count*size+row/count*h:][:h], host[row*h:])
	}
	return nil
}

// ZeroState sets the state of all lanes to zero.
func (e *Evaluator) ZeroState() { e.inference.zeroState() }

// Close frees the evaluator's memory; the model stays.
func (e *Evaluator) Close() {
	if e.output == nil {
		return
	}
	e.output.Close()
	e.output = nil
	e.inference.close()
}
