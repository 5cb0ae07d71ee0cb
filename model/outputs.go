package model

import (
	"fmt"

	"rondo/compute"
)

// OutputWidth is W, the width of the output layer's input.
func (m *Model) OutputWidth() int { return m.config.outputWidth() }

// Outputs advances the state over inputs [T, B] like Advance, and copies the output layer's input,
// [T, B, W], and its logits, [T, B, V], to host memory. With Cutoffs these are the logarithms of
// probabilities. It is not for a series.
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
	if e.logits.model == nil {
		e.logits.allocate(m, e.chunk.n)
	}
	for first := 0; first < n; {
		r := e.chunk
		if n-first < r.n {
			r = e.rest
		}
		copy(r.ids, inputs[first:])
		x := r.run(r.ids, e.state)
		e.logits.compute(x, r.n)
		m.dev.Download(hidden[first*W:][:r.n*W], x)
		e.logits.download(logits[first*V:][:r.n*V], r.n)
		first += r.n
	}
	return nil
}
