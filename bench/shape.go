// Package bench measures how fast a device trains: whole steps (Train) and the parts of a step
// (Kernels), in tokens a second, in floating-point operations a second beside the device's measured
// peak, and in bytes. It has the shapes to measure, so that all commands measure the same. It does
// not print.
//
// It may import everything.
package bench

import (
	"errors"
	"fmt"
	"math"

	"rondo/compute"
	"rondo/model"
	"rondo/train"
)

// Limits of a Shape, beyond those that model.Config has.
const (
	maxBatch = 65536
	maxBPTT  = 65536
)

// A Shape is a language model and its batch.
type Shape struct {
	Cell   compute.Cell
	Hidden int // H
	Layers int // L
	Batch  int // B
	BPTT   int // T
	Vocab  int // V
	Embed  int // E; 0 is one-hot input
	// Recompute is the length of the parts of a segment; one part's activations are held at a time.
	// 0: those of the whole segment.
	Recompute int
	// Adaptive is where the tails of an adaptive softmax begin, as in compute.ParseCutoffs; empty:
	// there is none.
	Adaptive string
}

// String is the shape in one line, for people and for finding it.
func (s Shape) String() string {
	text := fmt.Sprintf("%v H%d L%d B%d T%d V%d E%d", s.Cell, s.Hidden, s.Layers, s.Batch, s.BPTT,
		s.Vocab, s.Embed)
	if s.Recompute > 0 {
		text += fmt.Sprintf(" R%d", s.Recompute)
	}
	if s.Adaptive != "" {
		text += " A" + s.Adaptive
	}
	return text
}

// Tokens is how many a step reads.
func (s Shape) Tokens() int { return s.Batch * s.BPTT }

// Validate returns an error of one line that names the wrong flag.
func (s Shape) Validate() error {
	if s.Vocab < 2 {
		return fmt.Errorf("--vocab %d: must be at least 2", s.Vocab)
	}
	if s.Batch < 1 || s.Batch > maxBatch {
		return fmt.Errorf("--batch %d: must be 1 to %d", s.Batch, maxBatch)
	}
	if s.BPTT < 1 || s.BPTT > maxBPTT {
		return fmt.Errorf("--bptt %d: must be 1 to %d", s.BPTT, maxBPTT)
	}
	if _, err := compute.ParseCutoffs(s.Adaptive); err != nil {
		return fmt.Errorf("--adaptive-softmax %w", err)
	}
	return s.config().Validate()
}

// cutoffs are where the tails begin, of a valid shape.
func (s Shape) cutoffs() []int {
	cutoffs, _ := compute.ParseCutoffs(s.Adaptive) // Validate reports the error
	return cutoffs
}

// config is the model, which starts as torch.nn's do.
func (s Shape) config() model.Config {
	return model.Config{Cell: s.Cell, Vocab: s.Vocab, Embed: s.Embed, Hidden: s.Hidden,
		Layers: s.Layers, Init: model.Init{Kind: model.Uniform}, Seed: 1,
		GradientTail: train.Tail, Recompute: s.Recompute, Cutoffs: s.cutoffs()}
}

// inputWidth is D of a layer's product with its input; 0 where the input is one-hot, which a row of
// the weights answers.
func (s Shape) inputWidth(layer int) int {
	if layer == 0 {
		return s.Embed
	}
	return s.Hidden
}

// Flops is the number of floating-point operations in the products of a step for each token,
// forward and backward: 6 K H (H + D) in each layer (D is 0 where the input is one-hot; without
// W_hh it is 6 K H D), and 6 H V in the output layer. A product of [m, k] by [k, n] takes 2mkn, and
// its gradient with respect to each operand takes as many. Gates, loss, update and recomputation do
// not count, so their time lowers the fraction of the peak. Of an adaptive softmax the head counts,
// and each tail for its share of the tokens (see newBatches).
func (s Shape) Flops() float64 {
	k, hidden, h := float64(s.Cell.Gates()), float64(s.Cell.HiddenGates()), float64(s.Hidden)
	sum := 6 * h * s.outputs()
	for l := range s.Layers {
		sum += 6 * h * (hidden*h + k*float64(s.inputWidth(l)))
	}
	return sum
}

// outputs is the number of products of H numbers that the output layer computes for a token; with
// an adaptive softmax the mean.
func (s Shape) outputs() float64 {
	cutoffs := s.cutoffs()
	if len(cutoffs) == 0 {
		return float64(s.Vocab)
	}
	sum := float64(cutoffs[0] + len(cutoffs))
	for i, begin := range cutoffs {
		end, width := s.Vocab, max(1, s.Hidden>>(2*(i+1)))
		if i+1 < len(cutoffs) {
			end = cutoffs[i+1]
		}
		share := math.Log(float64(end+1)/float64(begin+1)) / math.Log(float64(s.Vocab+1))
		sum += share * float64(width) * (1 + float64(end-begin)/float64(s.Hidden))
	}
	return sum
}

// Textbook is Dive into Deep Learning's setting: 28 symbols, one-hot, hidden 256, batch 32, 35
// steps.
func Textbook() []Shape {
	at := func(cell compute.Cell, layers int) Shape {
		return Shape{Cell: cell, Hidden: 256, Layers: layers, Batch: 32, BPTT: 35, Vocab: 28}
	}
	return []Shape{at(compute.LSTM, 1), at(compute.GRU, 1), at(compute.GRUResetBefore, 1),
		at(compute.LSTM, 2), at(compute.RNNTanh, 1)}
}

// Large are word models of three sizes: batch 64, 64 steps, 10,000 words, an embedding as wide as
// the hidden state.
func Large() []Shape {
	var all []Shape
	for _, size := range []struct{ hidden, layers int }{{512, 1}, {1024, 2}, {2048, 1}} {
		for _, cell := range []compute.Cell{compute.LSTM, compute.GRU, compute.GRUResetBefore,
			compute.RNNTanh} {
			all = append(all, Shape{Cell: cell, Hidden: size.hidden, Layers: size.layers,
				Batch: 64, BPTT: 64, Vocab: 10000, Embed: size.hidden})
		}
	}
	return all
}

// Lists are values to combine, each with each.
type Lists struct {
	Cells                                                []compute.Cell
	Hidden, Layers, Batch, BPTT, Vocab, Embed, Recompute []int
	Adaptive                                             string // of all shapes
}

// maxShapes bounds the number of combinations.
const maxShapes = 1000

// Shapes returns every combination, the last list changing fastest.
func (l Lists) Shapes() ([]Shape, error) {
	shapes := make([]Shape, 0, len(l.Cells))
	for _, c := range l.Cells {
		shapes = append(shapes, Shape{Cell: c, Adaptive: l.Adaptive})
	}
	for _, list := range []struct {
		values []int
		set    func(s *Shape, v int)
	}{
		{l.Hidden, func(s *Shape, v int) { s.Hidden = v }},
		{l.Layers, func(s *Shape, v int) { s.Layers = v }},
		{l.Batch, func(s *Shape, v int) { s.Batch = v }},
		{l.BPTT, func(s *Shape, v int) { s.BPTT = v }},
		{l.Vocab, func(s *Shape, v int) { s.Vocab = v }},
		{l.Embed, func(s *Shape, v int) { s.Embed = v }},
		{l.Recompute, func(s *Shape, v int) { s.Recompute = v }},
	} {
		if n := len(shapes) * len(list.values); n > maxShapes {
			return nil, fmt.Errorf("the lists combine to %d shapes or more; at most %d", n,
				maxShapes)
		}
		var next []Shape
		for _, s := range shapes {
			for _, v := range list.values {
				list.set(&s, v)
				next = append(next, s)
			}
		}
		shapes = next
	}
	if len(shapes) == 0 {
		return nil, errors.New("no shape to measure: give each flag of the shape a value")
	}
	for _, s := range shapes {
		if err := s.Validate(); err != nil {
			return nil, err
		}
	}
	return shapes, nil
}
