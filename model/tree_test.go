package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute/cpu"
)

// newTestTree makes a network and a pass of at most so many nodes.
func newTestTree(t *testing.T, c TreeConfig, nodes int) (*Tree, *TreePass) {
	t.Helper()
	tree, err := NewTree(c, newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	p, err := tree.NewPass(nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		tree.Close()
	})
	return tree, p
}

// TestTreeTrace: loss, gradients and ten steps of SGD are PyTorch's, which computes node by node.
func TestTreeTrace(t *testing.T) {
	var cases []struct {
		Cell                         string
		Vocab, Embed, Hidden, Labels int
		LR                           float32
		Children, Words, Targets     []int32
		Weights, Gradients           map[string][]float64
		Losses                       []float64
	}
	readTrace(t, "testdata/tree.json", &cases)
	for _, c := range cases {
		cell, err := ParseTreeCell(c.Cell)
		if err != nil {
			t.Fatal(err)
		}
		tree, p := newTestTree(t, TreeConfig{Cell: cell, Vocab: c.Vocab, Embed: c.Embed,
			Hidden: c.Hidden, Labels: c.Labels}, len(c.Children)+3)
		if len(tree.views) != len(c.Weights) {
			t.Fatalf("%d tensors, PyTorch has %d", len(tree.views), len(c.Weights))
		}
		for _, v := range tree.views {
			if len(c.Weights[v.Name]) != v.Len {
				t.Fatalf("%s has %d numbers, not %d", v.Name, len(c.Weights[v.Name]), v.Len)
			}
			for i, x := range c.Weights[v.Name] {
				v.of(tree.params)[i] = float32(x)
			}
		}
		in := Trees{Children: c.Children, Words: c.Words, Targets: c.Targets}
		for step, want := range c.Losses {
			if score, err := p.Score(in); err != nil || math.Abs(score-want) > 1e-5*want {
				t.Errorf("%s, step %d: score %v, want %v: %v", c.Cell, step, score, want, err)
			}
			var ends []int
			loss, err := p.Backward(in, 1,
				Hooks{Finished: func(end int) { ends = append(ends, end) }})
			if err != nil || math.Abs(loss-want) > 1e-5*want ||
				!slices.Equal(ends, tree.Finishes()) {
				t.Errorf("%s, step %d: loss %v, want %v: %v; finished %v", c.Cell, step, loss,
					want, err, ends)
			}
			for _, v := range tree.views {
				for i, x := range c.Gradients[v.Name] {
					if got := float64(v.of(tree.grads)[i]); step == 0 &&
						math.Abs(got-x) > traceTolerance*max(1, math.Abs(x)) {
						t.Errorf("%s, %s %d: gradient %v, want %v", c.Cell, v.Name, i, got, x)
					}
				}
			}
			for i, g := range tree.grads {
				tree.params[i] -= c.LR * g
			}
		}
	}
}

// grow appends a random tree with so many leaves, and at most so many children of a node.
func grow(in *Trees, rng *rand.Rand, leaves, most int, c TreeConfig) {
	children := 0
	for left := leaves; leaves > 1 && left > 0; children++ {
		part := 1 + rng.IntN(left)
		switch {
		case children == most-1:
			part = left
		case children == 0:
			part = 1 + rng.IntN(left-1)
		}
		grow(in, rng, part, most, c)
		left -= part
	}
	in.Children = append(in.Children, int32(children))
	in.Words = append(in.Words, int32(rng.IntN(c.Vocab)))
	in.Targets = append(in.Targets, int32(rng.IntN(c.Labels+1)-1))
}

// TestTreeGradients: every gradient of every cell is that of finite differences.
func TestTreeGradients(t *testing.T) {
	for cell := TreeLSTM; cell <= TreeBag; cell++ {
		rng := rand.New(rand.NewPCG(1, uint64(cell)))
		c := TreeConfig{Cell: cell, Vocab: 6, Embed: 3, Hidden: 4, Labels: 3, Seed: 4}
		most := 4
		if cell.Binary() {
			most = 2
		}
		var in Trees
		for _, leaves := range []int{5, 1, 9} {
			grow(&in, rng, leaves, most, c)
		}
		tree, p := newTestTree(t, c, len(in.Children))
		if _, err := p.Backward(in, 0.5, Hooks{}); err != nil {
			t.Fatal(err)
		}
		const step = 1e-2
		for _, v := range tree.views {
			for i := range v.of(tree.params) {
				x := v.of(tree.params)
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
				if got := float64(v.of(tree.grads)[i]); math.Abs(got-0.5*slope) > 2e-4 {
					t.Errorf("%v, %s %d: gradient %v, want %v", cell, v.Name, i, got, 0.5*slope)
				}
			}
		}
	}
}

// TestTreesTogether: a pass over trees has the loss, the gradient and the predictions of passes
// over each, also after larger trees, over none, and with labels in several parts.
func TestTreesTogether(t *testing.T) {
	for cell := TreeLSTM; cell <= TreeBag; cell++ {
		c := TreeConfig{Cell: cell, Vocab: 20, Embed: 5, Hidden: 7, Labels: 4, Seed: 2}
		tree, p := newTestTree(t, c, 400)
		_, parted := newTestTree(t, c, 400)
		parted.room.labelsAtOnce = 3
		rng := rand.New(rand.NewPCG(3, uint64(cell)))
		for range 3 {
			var all Trees
			var sum float64
			var predicted []int32
			gradient := make([]float64, len(tree.Gradients()))
			for range rng.IntN(4) {
				var one Trees
				grow(&one, rng, 1+rng.IntN(40), 2, c)
				all.Children = append(all.Children, one.Children...)
				all.Words = append(all.Words, one.Words...)
				all.Targets = append(all.Targets, one.Targets...)
				loss, err := p.Backward(one, 2, Hooks{})
				if err != nil {
					t.Fatal(err)
				}
				sum += loss
				labels, probabilities := p.Predicted()
				if predicted = append(predicted, labels...); len(labels) != len(probabilities) {
					t.Errorf("%d labels, %d probabilities", len(labels), len(probabilities))
				}
				for i, g := range tree.Gradients() {
					gradient[i] += float64(g)
				}
			}
			for _, pass := range []*TreePass{p, parted} {
				loss, err := pass.Backward(all, 2, Hooks{})
				if labels, _ := pass.Predicted(); err != nil || math.Abs(loss-sum) > 1e-5*sum ||
					!slices.Equal(labels, predicted) {
					t.Errorf("%v: loss %v of all, %v of each: %v", cell, loss, sum, err)
				}
				for i, g := range pass.tree.Gradients() {
					if math.Abs(float64(g)-gradient[i]) > 1e-3 {
						t.Errorf("%v: gradient %d is %v, want %v", cell, i, g, gradient[i])
					}
				}
			}
		}
	}
}

// TestTreeErrors: shapes that cannot be, and nodes that do not fit, are errors.
func TestTreeErrors(t *testing.T) {
	good := TreeConfig{Vocab: 3, Embed: 2, Hidden: 2, Labels: 2}
	for _, change := range []func(*TreeConfig){func(c *TreeConfig) { c.Embed = 0 },
		func(c *TreeConfig) { c.Labels = 0 }, func(c *TreeConfig) { c.Hidden = 0 },
		func(c *TreeConfig) { c.Cell = TreeBag + 1 }} {
		c := good
		change(&c)
		if _, err := NewTree(c, newDevice(t)); err == nil {
			t.Errorf("%+v is no error", c)
		}
	}
	if _, err := ParseTreeCell("gru"); err == nil || !strings.Contains(err.Error(), "child-sum") {
		t.Error(err)
	}
	_, p := newTestTree(t, good, 3)
	one := []int32{0}
	for _, in := range []Trees{{Children: one}, {Children: one, Words: one},
		{Children: one, Words: []int32{3}, Targets: one},
		{Children: one, Words: []int32{-1}, Targets: one},
		{Children: one, Words: one, Targets: []int32{2}},
		{Children: one, Words: one, Targets: []int32{-2}},
		{Children: []int32{2}, Words: one, Targets: one},
		{Children: []int32{-1}, Words: one, Targets: one},
		{Children: []int32{0, 1}, Words: []int32{0, 0}, Targets: []int32{0, 0}},
		{Children: make([]int32, 4), Words: make([]int32, 4), Targets: make([]int32, 4)},
	} {
		if _, err := p.Score(in); err == nil {
			t.Errorf("%+v is no error", in)
		}
		if _, err := p.Backward(in, 1, Hooks{}); err == nil {
			t.Errorf("%+v is no error", in)
		}
	}
	three := Trees{Children: []int32{0, 0, 0, 3}, Words: make([]int32, 4),
		Targets: make([]int32, 4)}
	_, p = newTestTree(t, good, 4)
	if _, err := p.Score(three); err == nil {
		t.Error("a TreeLSTM of two children reads three")
	}
}

// TestTreeSize: a device takes no more than sizes say, and hardly less.
func TestTreeSize(t *testing.T) {
	for cell := TreeLSTM; cell <= TreeBag; cell++ {
		on := cpu.Config{Threads: 1}
		dev, err := cpu.New(on)
		if err != nil {
			t.Fatal(err)
		}
		c := TreeConfig{Cell: cell, Vocab: 48, Embed: 24, Hidden: 40, Labels: 5}
		tree, err := NewTree(c, dev)
		if err != nil {
			t.Fatal(err)
		}
		p, err := tree.NewPass(201)
		if err != nil {
			t.Fatal(err)
		}
		var in Trees
		grow(&in, rand.New(rand.NewPCG(1, 2)), 101, 2, c)
		if _, err := p.Backward(in, 1, Hooks{}); err != nil {
			t.Fatal(err)
		}
		parameters := on.TensorSize(Span(c.Layout()))
		most := parameters.And(parameters).And(c.PassSize(on, 201)).Total()
		if _, got := dev.Bytes(); got > most || got < most*9/10 {
			t.Errorf("%v: sizes add up to %d bytes, the device held %d", cell, most, got)
		}
		p.Close()
		tree.Close()
		dev.Close()
	}
}
