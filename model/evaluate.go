package model

import (
	"fmt"

	"rondo/compute"
)

// inference is the forward pass up to the output layer's input, without Gorgonia.
type inference struct {
	model   *Model
	weights weights
	kernels []compute.Recurrent
	rows    [2][]float32 // each [T, B, max(E, F, H)]: a layer reads one and writes the other
	n       int          // T*B
}

// newInference makes an inference for T steps of B lanes, without workspaces.
func newInference(m *Model, T, B int) *inference {
	return &inference{model: m, weights: m.weights(), n: T * B}
}

// allocate allocates the workspaces for B lanes.
func (f *inference) allocate(B int) {
	m, c := f.model, f.model.config
	T := f.n / B
	for k := range c.Layers {
		f.kernels = append(f.kernels, compute.NewRecurrent(m.dev,
			c.layerShape(k, T, B), true))
	}
	for i := range f.rows {
		f.rows[i] = m.dev.Alloc(f.n * max(c.rowWidth(), c.Hidden))
	}
}

// run returns the output layer's input, [T*B, outputWidth], and advances the state. The next run
// overwrites the result.
func (f *inference) run(ids []int32, s state) []float32 {
	in := compute.RecurrentInput{IDs: ids}
	if width := f.model.config.rowWidth(); width > 0 {
		in = compute.RecurrentInput{X: f.rows[0][:f.n*width]}
		f.model.dev.Embed(in.X, f.weights.embedding, ids)
	}
	return f.runLayers(in, s)
}

// runLayers is run from the first layer's input on, which is ids or the first of rows.
func (f *inference) runLayers(in compute.RecurrentInput, s state) []float32 {
	m, c := f.model, f.model.config
	current := 0 // index in rows of the layer's input
	deep := func(layers []compute.Linear) {
		for _, l := range layers {
			current = 1 - current
			y := f.rows[current][:f.n*c.Hidden]
			l.Tanh(m.dev, f.n, in.X, y)
			in.X = y
		}
	}
	deep(f.weights.deepInput)
	for k, kernel := range f.kernels {
		current = 1 - current
		y := f.rows[current][:f.n*c.Hidden]
		kernel.Forward(f.weights.layers[k], in, s.layers[k], y, s.layers[k])
		if c.Skip && k > 0 {
			m.dev.Add(y, in.X)
		}
		if c.LayerNorm {
			norm := f.weights.norms[k]
			norm.X, norm.Y = y, y
			m.dev.LayerNorm(norm)
		}
		in = compute.RecurrentInput{X: y}
	}
	deep(f.weights.deepOutput)
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

// Evaluator computes a model's loss on text, without dropout and gradients.
type Evaluator struct {
	model       *Model
	T, B        int
	state       state
	host        []float32  // host copy of state.flat for State; allocated when first needed
	chunk, rest *evalChunk // of Config.Recompute steps, or T; of the last steps, or nil
	recordings  forwards
	logits      logits // of a chunk, for Outputs; allocated when first needed
}

// evalChunk is the forward pass of some steps. It reads ids and targets, [T*B] each.
type evalChunk struct {
	*inference
	output       compute.Output
	predicted    []float32 // [T*B, V]; of a series, which has no output
	ids, targets []int32
}

func (r *evalChunk) allocate(B int) {
	m := r.model
	r.inference.allocate(B)
	r.ids, r.targets = make([]int32, r.n), make([]int32, r.n)
	if m.config.Inputs > 0 {
		r.predicted = m.dev.Alloc(r.n * m.config.Vocab)
		return
	}
	r.output = m.newOutput(r.n, 0)
}

func (r *evalChunk) close() {
	if r == nil {
		return
	}
	if r.output != nil {
		r.output.Close()
	}
	r.model.dev.Free(r.predicted)
	r.inference.close()
}

// NewEvaluator makes an evaluator for T steps of B lanes at a time, with a zero state. It fails if
// the device lacks memory. Close frees it.
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

// allocate allocates the evaluator's parts, with chunks of k steps. On an error the evaluator keeps
// what was allocated before it.
func (e *Evaluator) allocate(k int) (err error) {
	defer compute.Catch(&err)
	e.state = newState(e.model, e.B)
	e.chunk = &evalChunk{inference: newInference(e.model, k, e.B)}
	e.chunk.allocate(e.B)
	if rest := e.T % k; rest > 0 {
		e.rest = &evalChunk{inference: newInference(e.model, rest, e.B)}
		e.rest.allocate(e.B)
	}
	return nil
}

// read runs the forward pass over inputs [T, B]. It returns the summed loss of targets [T, B],
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
			loadTargets(r.output, r.targets)
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

// Evaluate returns the summed cross-entropy, in nats, of targets [T, B] after inputs [T, B], and
// the number of targets that count. A target of -1 does not count. The next call continues from
// this call's state. For a series there is Predict instead.
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

// Advance advances the state over inputs [T, B] like Evaluate, without a loss.
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

// Close frees the evaluator's memory, not the model's.
func (e *Evaluator) Close() {
	e.recordings.close()
	e.chunk.close()
	e.rest.close()
	e.state.close()
	e.logits.close()
	e.chunk, e.rest = nil, nil
}
