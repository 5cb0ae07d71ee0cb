package model

import (
	"errors"
	"fmt"

	"rondo/compute"
)

// ContextInput appends a projection of the source's vector to the decoder's embedding at each step
// (Goodfellow, Bengio and Courville, Deep Learning, figure 10.9). Only a translator with
// TranslatorConfig.Vectors has it. With another Context, the projections take the place of the
// encoder's final states.
const ContextInput = ContextState + 1

// vectorWeight projects a vector: A_k is rows [k*H, (k+1)*H).
const vectorWeight = "vector.weight"

// projections is how many A_k there are: one for each layer's first state, or one.
func (c TranslatorConfig) projections() int {
	if c.Context == ContextInput {
		return 1
	}
	return c.Layers
}

// validateVectors checks the parts that depend on Vectors.
func (c TranslatorConfig) validateVectors() error {
	switch {
	case c.Vectors > maxWidth:
		return fmt.Errorf("--vectors: %d columns are more than %d", c.Vectors, maxWidth)
	case c.Vectors > 0 && (c.Bidirectional || c.Attention != AttentionNone):
		return errors.New("--bidirectional and --attention belong to an encoder, and vectors " +
			"have none: leave them out")
	case c.Vectors > 0 && c.Feedback != FeedbackBoth:
		return errors.New("--feedback is not for a network of vectors: leave it out")
	}
	return c.validateEnds()
}

// SetVectors gives a translator with Vectors its sources: [rows, F], in host memory. A source is
// then one id, the number of a row. Call it once, before a pass or a decoder is made.
func (t *Translator) SetVectors(table []float32) (err error) {
	F := t.config.Vectors
	if F == 0 || len(table) == 0 || len(table)%F != 0 {
		return fmt.Errorf("model: %d numbers of vectors of %d columns", len(table), F)
	}
	defer compute.Catch(&err)
	t.vectors = t.dev.Alloc(len(table))
	t.dev.Upload(t.vectors, table)
	return nil
}

// sources is the number of source ids.
func (t *Translator) sources() int {
	if F := t.config.Vectors; F > 0 {
		return len(t.vectors) / F
	}
	return t.config.SourceVocab
}

// Close frees the translator. Close what was made from it first.
func (t *Translator) Close() {
	t.dev.Free(t.vectors)
	t.vectors = nil
	t.parameters.Close()
}

// vectors takes an encoder's place: it projects each lane's vector x to A_k x.
type vectors struct {
	translator *Translator
	B          int
	rows       []int32                  // [B]: of the table
	x          []float32                // [B, F]
	first      []compute.RecurrentState // of the decoder's layers
	y, dy      [][]float32              // the projections, [B, H], and their gradients
	dw         *buffer                  // gradient of the weight
	done       func()                   // called when dw has been queued
}

// vectorsSize is the memory of vectors for B lanes, in floats: x, first, and with ContextInput the
// projection and its gradient, which are no states.
func (c TranslatorConfig) vectorsSize(B int) int {
	n := B*c.Vectors + B*c.network().StateSize()
	if c.Context == ContextInput {
		n += 2 * B * c.Hidden
	}
	return n
}

// newVectors makes the projections, whose gradients are those of the decoder's first states.
func newVectors(t *Translator, B int, memory []float32, dfirst []compute.RecurrentState,
	tape *tape) *vectors {
	c, view := t.config, find(t.views, vectorWeight)
	v := &vectors{translator: t, B: B, rows: make([]int32, B), done: tape.finishing(view),
		dw: cut(view.of(t.grads), view.Shape...)}
	v.x, memory = memory[:B*c.Vectors], memory[B*c.Vectors:]
	size := c.Cell.States() * B * c.Hidden
	for k, d := range dfirst {
		v.first = append(v.first, cutState(c.decoder().layerShape(k, 1, B), memory[k*size:]))
		if c.Context != ContextInput {
			v.y, v.dy = append(v.y, v.first[k].H), append(v.dy, d.H)
		}
	}
	if c.Context == ContextInput {
		rest := memory[len(dfirst)*size:]
		v.y, v.dy = [][]float32{rest[:B*c.Hidden]}, [][]float32{rest[B*c.Hidden:][:B*c.Hidden]}
	}
	return v
}

// load sets the lanes' rows.
func (v *vectors) load(in Examples) {
	for b, length := range in.Lengths {
		v.rows[b] = 0
		if length > 0 {
			v.rows[b] = in.Inputs[b]
		}
	}
}

// each calls f with each projection's part of the flat weight or of its gradient.
func (v *vectors) each(flat []float32, f func(k int, part []float32)) {
	n := len(flat) / len(v.y)
	for k := range v.y {
		f(k, flat[k*n:(k+1)*n:(k+1)*n])
	}
}

// run projects the loaded vectors.
func (v *vectors) run() {
	t := v.translator
	F, H := t.config.Vectors, t.config.Hidden
	t.dev.Embed(v.x, t.vectors, v.rows)
	v.each(t.view(vectorWeight, t.params), func(k int, w []float32) {
		t.dev.Gemm(false, true, v.B, H, F, 1, v.x, w, 0, v.y[k])
	})
	if t.config.Context == ContextInput { // decoderInput adds to it
		t.dev.Zero(v.dy[0])
	}
}

// backward computes the gradient of the weight.
func (v *vectors) backward() {
	t := v.translator
	v.each(v.dw.flat, func(k int, dw []float32) {
		t.dev.Gemm(true, false, t.config.Hidden, t.config.Vectors, v.B, 1, v.dy[k], v.x, 0, dw)
	})
	v.done()
}
