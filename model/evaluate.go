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
	rows    [2][]float32 // each [T, B, max(E, H)]: a layer reads one and writes the other
	n       int          // T*B
}

// newInference is of T steps of B lanes, and has no workspaces yet.
func newInference(m *Model, T, B int) *inference {
	return &inference{model: m, weights: m.weights(), n: T * B}
}

// allocate makes the workspaces for B lanes.
func (f *inference) allocate(B int) {
	m, c := f.model, f.model.config
	T := f.n / B
	for k := range c.Layers {
		f.kernels = append(f.kernels, m.dev.NewRecurrent(c.layerShape(k, T, B), true))
	}
	for i := range f.rows {
		f.rows[i] = m.dev.Alloc(f.n * max(c.Embed, c.Hidden))
	}
}

// run returns the output layer's input, [T*B, outputWidth], and carries the state on. The memory
// is used again by the next run.
func (f *inference) run(ids []int32, s state) []float32 {
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
		kernel.Forward(f.weights.layers[k], in, s.layers[k], y, s.layers[k])
		in = compute.RecurrentInput{X: y}
	}
	if !c.projects() {
		return in.X
	}
	y := f.rows[1-current][:f.n*c.Embed]
	m.dev.Gemm(false, true, f.n, c.Embed, c.Hidden, 1, in.X, f.weights.projection, 0, y)
	return y
}

func (f *inference) close() {
	for _, k := range f.kernels {
		k.Close()
	}
	f.model.dev.Free(f.rows[0])
	f.model.dev.Free(f.rows[1])
	f.kernels, f.rows = nil, [2][]float32{}
}

// Evaluator computes the loss of a model on text, without dropout and without gradients.
type Evaluator struct {
	model       *Model
	T, B        int
	state       state
	host        []float32 // as state.flat, on its way to State; made when first needed
	chunk, rest *reading  // of Config.Recompute steps or T; of those left at the end, or nil
	recordings  forwards
}

// reading is the forward pass of some steps, of what was copied to ids and targets: [T*B].
type reading struct {
	*inference
	output       compute.Output
	ids, targets []int32
}

func (r *reading) allocate(B int) {
	m := r.model
	r.inference.allocate(B)
	r.ids, r.targets = make([]int32, r.n), make([]int32, r.n)
	r.output = m.dev.NewOutput(
		compute.OutputShape{N: r.n, H: m.config.outputWidth(), V: m.config.Vocab})
}

func (r *reading) close() {
	if r == nil {
		return
	}
	if r.output != nil {
		r.output.Close()
	}
	r.inference.close()
}

// NewEvaluator makes an evaluator for T steps of B lanes at a time, with a state of zeros. It fails
// if the device has no memory for it. Close frees it.
func (m *Model) NewEvaluator(T, B int) (*Evaluator, error) {
	if T < 1 || B < 1 {
		return nil, fmt.Errorf("model: an evaluation of %d steps and %d lanes; each must be at "+
			"least 1", T, B)
	}
	e := &Evaluator{model: m, T: T, B: B, recordings: newForwards(m)}
	if err := e.allocate(m.config.chunk(T)); err != nil {
		e.Close()
		return nil, fmt.Errorf("model: an evaluation of %d steps and %d lanes of %s: %w", T, B,
			m.config.shape(), err)
	}
	return e, nil
}

// allocate makes all that an evaluator has, for k steps at a time. Of what fails, all is there so
// far.
func (e *Evaluator) allocate(k int) (err error) {
	defer compute.Catch(&err)
	e.state = newState(e.model, e.B)
	e.chunk = &reading{inference: newInference(e.model, k, e.B)}
	e.chunk.allocate(e.B)
	if rest := e.T % k; rest > 0 {
		e.rest = &reading{inference: newInference(e.model, rest, e.B)}
		e.rest.allocate(e.B)
	}
	return nil
}

// read runs the forward pass over inputs [T, B], and returns the summed loss of targets [T, B],
// unless they are nil.
func (e *Evaluator) read(inputs, targets []int32) (lossSum float64, err error) {
	defer compute.Catch(&err)
	recordings := e.recordings.of(targets != nil)
	recordings.begin(setting{}, false)
	for first := 0; first < len(inputs); {
		r, p := e.chunk, part{}
		if len(inputs)-first < r.n {
			r, p = e.rest, part{chunk: 1}
		}
		copy(r.ids, inputs[first:])
		if targets != nil {
			copy(r.targets, targets[first:])
		}
		_, err := recordings.do(p, func() (copies, error) {
			x := r.run(r.ids, e.state)
			if targets != nil {
				r.output.Forward(x, r.weights.output, r.weights.bias, r.targets)
			}
			return copies{}, nil
		})
		if err != nil {
			return 0, err
		}
		if targets != nil {
			lossSum += r.output.Sum()
		}
		first += r.n
	}
	recordings.end(setting{})
	return lossSum, nil
}

// Evaluate returns the summed cross-entropy in nats of targets [T, B] after inputs [T, B], and
// how many targets count: those that are -1 do not. The state is carried on to the next call.
func (e *Evaluator) Evaluate(inputs, targets []int32) (lossSum float64, count int, err error) {
	m := e.model
	if n := e.T * e.B; len(inputs) != n || len(targets) != n {
		return 0, 0, fmt.Errorf("model: an evaluation takes %d inputs and targets, not %d and %d",
			n, len(inputs), len(targets))
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
	if lossSum, err = e.read(inputs, targets); err != nil {
		return 0, 0, err
	}
	return lossSum, count, nil
}

// Advance carries the state on over inputs [T, B], as Evaluate does, and computes no loss.
func (e *Evaluator) Advance(inputs []int32) (err error) {
	if n := e.T * e.B; len(inputs) != n {
		return fmt.Errorf("model: an evaluation takes %d inputs, not %d", n, len(inputs))
	}
	if err := e.model.checkIDs("input", inputs, 0); err != nil {
		return err
	}
	_, err = e.read(inputs, nil)
	return err
}

// State copies the state to dst, host memory laid out as in Segment.State.
func (e *Evaluator) State(dst []float32) error {
	if err := e.state.check(dst); err != nil {
		return err
	}
	if e.host == nil {
		e.host = make([]float32, len(dst))
	}
	e.model.dev.Download(e.host, e.state.flat)
	e.state.toLanes(dst, e.host)
	return nil
}

// ZeroState sets the state of all lanes to zero.
func (e *Evaluator) ZeroState() { e.state.zero() }

// Close frees the evaluator's memory; the model stays.
func (e *Evaluator) Close() {
	e.recordings.close()
	e.chunk.close()
	e.rest.close()
	e.state.close()
	e.chunk, e.rest = nil, nil
}
