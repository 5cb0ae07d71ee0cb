package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute/cpu"
)

// newTestWindow makes a network and a pass of n predictions.
func newTestWindow(t *testing.T, c WindowConfig, n int) (*Window, *WindowPass) {
	t.Helper()
	w, err := NewWindow(c, newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.NewPass(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		w.Close()
	})
	return w, p
}

// TestWindowTrace: loss, gradients and ten steps of SGD are PyTorch's.
func TestWindowTrace(t *testing.T) {
	var cases []struct {
		Vocab, Embed, Hidden, Reads, Layers int
		LR                                  float32
		Tokens                              [][]int32
		Targets                             []int32
		Weights, Gradients                  map[string][]float64
		Losses                              []float64
	}
	readTrace(t, "testdata/window.json", &cases)
	for _, c := range cases {
		w, p := newTestWindow(t, WindowConfig{Vocab: c.Vocab, Embed: c.Embed, Hidden: c.Hidden,
			Layers: c.Layers, Reads: c.Reads}, len(c.Targets))
		if len(w.views) != len(c.Weights) {
			t.Fatalf("%d tensors, PyTorch has %d", len(w.views), len(c.Weights))
		}
		for _, v := range w.views {
			for i, x := range c.Weights[v.Name] {
				v.of(w.params)[i] = float32(x)
			}
		}
		in := WindowInput{Tokens: slices.Concat(c.Tokens...), Targets: c.Targets, Scale: 1}
		for step, want := range c.Losses {
			if score, err := p.Score(in); err != nil || math.Abs(score-want) > 1e-4*want {
				t.Errorf("step %d: score %v, want %v: %v", step, score, want, err)
			}
			var ends []int
			loss, err := p.Backward(in, Hooks{Finished: func(end int) { ends = append(ends, end) }})
			if err != nil || math.Abs(loss-want) > 1e-4*want || !slices.Equal(ends, w.Finishes()) {
				t.Errorf("step %d: loss %v, want %v: %v; finished %v", step, loss, want, err, ends)
			}
			for _, v := range w.views {
				for i, x := range c.Gradients[v.Name] {
					if got := float64(v.of(w.grads)[i]); step == 0 &&
						math.Abs(got-x) > traceTolerance*max(1, math.Abs(x)) {
						t.Errorf("%s %d: gradient %v, want %v", v.Name, i, got, x)
					}
				}
			}
			for i, g := range w.grads {
				w.params[i] -= c.LR * g
			}
		}
	}
}

// TestWindowGradients: every gradient is that of finite differences, and Logits belong to the loss.
func TestWindowGradients(t *testing.T) {
	const n = 7
	c := WindowConfig{Vocab: 6, Embed: 3, Hidden: 4, Layers: 2, Reads: 3, Seed: 4}
	w, p := newTestWindow(t, c, n)
	rng := rand.New(rand.NewPCG(1, 2))
	in := WindowInput{Scale: 0.5, Tokens: make([]int32, n*c.Reads), Targets: make([]int32, n)}
	for i := range in.Tokens {
		in.Tokens[i] = int32(rng.IntN(c.Vocab))
	}
	for i := range in.Targets {
		in.Targets[i] = int32(rng.IntN(c.Vocab+1)) - 1
	}
	if _, err := p.Backward(in, Hooks{}); err != nil {
		t.Fatal(err)
	}
	const step = 1e-2
	for _, v := range w.views {
		for i := range v.of(w.params) {
			x := v.of(w.params)
			at := x[i]
			loss := func(d float32) float64 {
				x[i] = at + d
				score, err := p.Score(in)
				if err != nil {
					t.Fatal(err)
				}
				return score
			}
			// the fourth order, for float32 losses
			slope := (8*(loss(step)-loss(-step)) - loss(2*step) + loss(-2*step)) / (12 * step)
			x[i] = at
			if got := float64(v.of(w.grads)[i]); math.Abs(got-0.5*slope) > 1e-4 {
				t.Errorf("%s %d: gradient %v, want %v", v.Name, i, got, 0.5*slope)
			}
		}
	}
	in.Targets = []int32{2, -1, -1, -1, -1, -1, -1}
	logits, sum := make([]float32, c.Vocab), 0.0
	if err := p.Logits(in.Tokens, logits); err != nil {
		t.Fatal(err)
	}
	for _, x := range logits {
		sum += math.Exp(float64(x))
	}
	want := math.Log(sum) - float64(logits[2])
	if score, err := p.Score(in); err != nil || math.Abs(score-want) > 1e-5 {
		t.Errorf("score %v, by the logits %v: %v", score, want, err)
	}
}

// TestWindowErrors: shapes that cannot be, and tokens that do not fit, are errors.
func TestWindowErrors(t *testing.T) {
	for _, c := range []WindowConfig{{Vocab: 3, Embed: 2, Hidden: 2, Layers: 1},
		{Vocab: 3, Hidden: 2, Layers: 1, Reads: 1}, {Vocab: 3, Embed: 2, Layers: 1, Reads: 1}} {
		if _, err := NewWindow(c, newDevice(t)); err == nil {
			t.Errorf("%+v is no error", c)
		}
	}
	_, p := newTestWindow(t, WindowConfig{Vocab: 3, Embed: 2, Hidden: 2, Layers: 1, Reads: 2}, 1)
	for _, in := range []WindowInput{{}, {Tokens: []int32{1}, Targets: []int32{1}},
		{Tokens: []int32{1, 3}, Targets: []int32{1}}, {Tokens: []int32{1, 2}, Targets: []int32{3}},
		{Tokens: []int32{-1, 2}, Targets: []int32{-1}}} {
		if _, err := p.Score(in); err == nil {
			t.Errorf("%+v is no error", in)
		}
		if _, err := p.Backward(in, Hooks{}); err == nil {
			t.Errorf("%+v is no error", in)
		}
	}
}

// TestWindowSize holds what sizes say against what a device counts.
func TestWindowSize(t *testing.T) {
	const n = 20
	on := cpu.Config{Threads: 1}
	dev, err := cpu.New(on)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c := WindowConfig{Vocab: 48, Embed: 24, Hidden: 40, Layers: 2, Reads: 3}
	w, err := NewWindow(c, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p, err := w.NewPass(n)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in := WindowInput{Tokens: make([]int32, n*c.Reads), Targets: make([]int32, n), Scale: 1}
	if _, err := p.Backward(in, Hooks{}); err != nil {
		t.Fatal(err)
	}
	parameters := on.TensorSize(Span(c.Layout()))
	want := parameters.And(parameters).And(c.PassSize(on, n)).Total()
	if _, got := dev.Bytes(); got != want {
		t.Errorf("sizes add up to %d bytes, the device held %d", want, got)
	}
}
