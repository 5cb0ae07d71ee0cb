package model

import (
	"context"
	"fmt"
)

// LabelGenerator continues text with a labeller whose labels are the next tokens. A network that
// reads in both directions has no state to go on from, so each token takes a pass over the last
// ones.
type LabelGenerator struct {
	pass   *LabelPass
	logits []float32 // [steps, V]
}

// NewGenerator makes a generator that chooses each token from a pass over the last ones, at most
// steps of them. It fails if the device lacks memory. Close frees it.
func (l *Labeller) NewGenerator(steps int) (*LabelGenerator, error) {
	V := l.config.Labels
	if V != l.config.Vocab || l.config.Pool != PoolNone {
		return nil, fmt.Errorf("model: the labels of %s are no tokens", l.config.shape())
	}
	pass, err := l.NewPass(steps, 1)
	if err != nil {
		return nil, err
	}
	return &LabelGenerator{pass, make([]float32, steps*V)}, nil
}

// Generate returns n tokens that follow the prefix: see Generator.Generate.
func (g *LabelGenerator) Generate(ctx context.Context, prefix []int32, n int, s Sampling) (
	[]int32, error) {
	V := g.pass.labeller.config.Labels
	return Continue(ctx, prefix, n, V, s, func(text []int32) ([]float32, error) {
		read := text[max(0, len(text)-len(g.logits)/V):]
		logits := g.logits[:len(read)*V]
		_, err := g.pass.Predict(Examples{Steps: len(read), Inputs: read,
			Lengths: []int32{int32(len(read))}}, logits)
		return logits[len(logits)-V:], err
	})
}

// Close frees the generator's memory, not the labeller's.
func (g *LabelGenerator) Close() { g.pass.Close() }
