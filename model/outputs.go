package model

import (
	"fmt"

	"rondo/compute"
)

// OutputWidth is W, the width of the output layer's input.
func (m *Model) OutputWidth() int { return m.config.outputWidth() }

// Outputs advances the state over inputs [T, B] like Advance, and copies the output layer's input,
// [T, B, W], and its logits, [T, B, V], to host memory. It is not for a series.
func (e *Evaluator) Outputs(inputs []int32, hidden, logits []float32) (err error) {
	m, n := e.model, e.T*e.B
	W, V := m.config.outputWidth(), m.config.Vocab
	if len(inputs) != n || len(hidden) != n*W || len(logits) != n*V {
		return fmt.Errorf("model: outputs of %d inputs of width %d and %d were given %d, %d and %d",
			n, W, V, len(inputs), len(hidden), len(logits))
	}
	if err := m.checkIDs("input", inputs, 0); err != nil {
		return err
	}
	defer compute.Catch(&err)
	if e.logits == nil {
		e.logits = m.dev.Alloc(e.chunk.n * V)
	}
	for first := 0; first < n; {
		r := e.chunk
		if n-first < r.n {
			r = e.rest
		}
		copy(r.ids, inputs[first:])
		x := r.run(r.ids, e.state)
		y := e.logits[:r.n*V]
		m.dev.Gemm(false, true, r.n, V, W, 1, x, r.weights.output, 0, y)
		m.dev.AddBias(y, r.weights.bias)
		m.dev.Download(hidden[first*W:][:r.n*W], x)
		m.dev.Download(logits[first*V:][:r.n*V], y)
		first += r.n
	}
	return nil
}
