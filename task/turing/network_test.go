package turing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/model"
)

// small are networks of every kind.
func small() []Config {
	return []Config{
		{Inputs: 3, Outputs: 2, Hidden: 4, Rows: 5, Width: 3, Heads: 1, Shift: 1, Seed: 1},
		{Inputs: 3, Outputs: 2, Hidden: 4, FeedForward: true, Rows: 5, Width: 3, Heads: 1, Shift: 1,
			Seed: 1},
		{Inputs: 3, Outputs: 2, Hidden: 3, Rows: 6, Width: 2, Heads: 3, Shift: 2, Seed: 2},
	}
}

// drawn are parameters in float64, with biases too.
func drawn(c Config, seed uint64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 5))
	params := make([]float64, model.Span(c.Layout()))
	for _, v := range c.Layout() {
		for i := range v.Len {
			params[v.Offset+i] = 0.7 * rng.NormFloat64()
		}
	}
	return params
}

// sequence is a random sequence whose last steps have targets.
func sequence(c Config, steps, first int) *Example {
	rng := rand.New(rand.NewPCG(3, 4))
	e := &Example{First: first}
	for range steps * c.Inputs {
		e.Inputs = append(e.Inputs, float32(rng.IntN(2)))
	}
	for range (steps - first) * c.Outputs {
		e.Targets = append(e.Targets, float32(rng.IntN(2)))
	}
	return e
}

// TestGradients holds every number of the gradient to finite differences.
func TestGradients(t *testing.T) {
	for i, c := range small() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			params, e := drawn(c, 1), sequence(c, 7, 3)
			p := newPass[float64](c)
			p.Forward(params, sequence(c, 9, 2)) // leaves what the next pass must not see
			p.Forward(params, e)
			got := make([]float64, len(params))
			p.Backward(params, got, 0.5)
			for _, v := range c.Layout() {
				for k := range v.Len {
					const h = 1e-5
					loss := func(by float64) float64 {
						params[v.Offset+k] += by
						defer func() { params[v.Offset+k] -= by }()
						return p.Forward(params, e).Loss
					}
					want := 0.5 * (loss(h) - loss(-h)) / (2 * h)
					if g := got[v.Offset+k]; !(math.Abs(g-want) <= 1e-7*max(1, math.Abs(want))) {
						t.Errorf("%s[%d]: %.9g, want %.9g", v.Name, k, g, want)
					}
				}
			}
		})
	}
}

func BenchmarkPass(b *testing.B) {
	problem, err := ParseProblem("builtin:copy:20", 1, 0)
	if err != nil {
		b.Fatal(err)
	}
	c := Config{Inputs: problem.inputs, Outputs: problem.outputs, Hidden: 100, Rows: 128, Width: 20,
		Heads: 1, Shift: 1, Seed: 1}
	params := make([]float32, model.Span(c.Layout()))
	gradients := make([]float32, len(params))
	c.Initialise(params)
	var e Example
	problem.Fill(0, &e)
	p := c.NewPass()
	for b.Loop() {
		p.Forward(params, &e)
		p.Backward(params, gradients, 1)
	}
}
