package turing

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"rondo/model"
	"rondo/task/tasktest"
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
			params, p := tasktest.Draw(c.Layout(), 1, 0.7), newPass[float64](c)
			p.Forward(params, sequence(c, 9, 2)) // leaves what the next pass must not see
			tasktest.Gradients(t, p, c.Layout(), params, sequence(c, 7, 3), 1e-7)
		})
	}
}

// TestTrace holds the network to PyTorch: see testdata/trace.py.
func TestTrace(t *testing.T) {
	tasktest.Traces(t, 3, 1e-11, func(file []byte) (
		tasktest.Network[Example], []model.View, *Example, error,
	) {
		var trace struct {
			Config
			FeedForward bool `json:"feed_forward"`
			First       int
			X, Y        []float32
		}
		err := json.Unmarshal(file, &trace)
		c := trace.Config
		c.FeedForward = trace.FeedForward
		e := &Example{Inputs: trace.X, Targets: trace.Y, First: trace.First}
		return newPass[float64](c), c.Layout(), e, err
	})
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
