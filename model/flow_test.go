package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// flowInputs are S steps of B windows of V tokens, with targets.
func flowInputs(S, B, V int) (inputs, targets []int32) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range S * B {
		inputs = append(inputs, int32(rng.IntN(V)))
	}
	for range B {
		targets = append(targets, int32(rng.IntN(V)))
	}
	return inputs, targets
}

// TestFlow: the norms of all layers and distances are those of finite differences, for each cell.
func TestFlow(t *testing.T) {
	const S, B, V, H, T = 6, 2, 5, 4, 4
	for _, cell := range compute.Cells() {
		for _, embed := range []int{0, 3} {
			t.Run(fmt.Sprintf("%v/%d", cell, embed), func(t *testing.T) {
				m, err := New(Config{Cell: cell, Vocab: V, Embed: embed, Hidden: H, Layers: 2,
					Seed: 3, DeepTransition: embed / 3}, newDevice(t))
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				inputs, targets := flowInputs(S, B, V)
				f, err := m.Flow(inputs, targets, T)
				if err != nil {
					t.Fatal(err)
				}
				if (f.Cell != nil) != (cell.States() == 2 && cell != compute.Clockwork) {
					t.Errorf("norms of c: %v", f.Cell)
				}
				for d := range T {
					for k := range 2 {
						want := slopes(m, inputs, targets, k, S-1-d, false)
						if got := f.Hidden[k][d]; math.Abs(got-want) > 2e-3*want+1e-4 {
							t.Errorf("h of layer %d, distance %d: %v, want %v", k, d, got, want)
						}
						if f.Cell == nil || d == 0 {
							continue
						}
						want = slopes(m, inputs, targets, k, S-1-d, true)
						if got := f.Cell[k][d]; math.Abs(got-want) > 2e-3*want+1e-4 {
							t.Errorf("c of layer %d, distance %d: %v, want %v", k, d, got, want)
						}
					}
				}
			})
		}
	}
}

// slopes is the mean over windows of the norm of the loss's gradient by h, or c, of layer k after
// step t, by finite differences.
func slopes(m *Model, inputs, targets []int32, k, t int, ofCell bool) (mean float64) {
	B, H := len(targets), m.config.Hidden
	p := &flowPass{m: m, weights: m.weights(), inputs: inputs, B: B, steps: len(inputs) / B}
	defer p.close()
	p.allocate()
	loss := func(b, i int, by float32) float64 {
		for s := range p.steps {
			for layer := range p.kernels {
				if p.layer(s, layer); s != t || layer != k {
					continue
				}
				state := p.states[s+1].layers[k]
				if ofCell {
					state.C[b*H+i] += by
				} else {
					state.H[b*H+i] += by
					p.y[k][b*H+i] += by
				}
			}
		}
		p.output.Forward(p.y[len(p.y)-1], p.weights.output, p.weights.bias, targets)
		return p.output.Sum()
	}
	step := float32(2e-2)
	if m.config.Cell == compute.RNNReLU { // it has kinks
		step = 2e-3
	}
	for b := range B {
		squares := 0.0
		for i := range H { // the fourth order, for float32 losses
			slope := (8*(loss(b, i, step)-loss(b, i, -step)) - loss(b, i, 2*step) +
				loss(b, i, -2*step)) / float64(12*step)
			squares += slope * slope
		}
		mean += math.Sqrt(squares) / float64(B)
	}
	return mean
}

// TestFlowInParts: windows that are measured one, two or three at a time have the same means.
func TestFlowInParts(t *testing.T) {
	m, err := New(Config{Cell: compute.LSTM, Vocab: 5, Embed: 3, Hidden: 4, Layers: 2, Seed: 3},
		newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	inputs, targets := flowInputs(6, 3, 5)
	numbers := func(f *Flow) []float64 {
		all := slices.Concat(slices.Concat(f.Hidden...), slices.Concat(f.Cell...))
		for _, g := range f.Gates {
			all = append(all, g.Mean, g.Closed, g.Open)
		}
		return all
	}
	whole, err := m.Flow(inputs, targets, 4)
	if err != nil {
		t.Fatal(err)
	}
	want := numbers(whole)
	for together := 1; together < 3; together++ {
		parts, err := m.flow(inputs, targets, 4, together)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range numbers(parts) {
			if math.Abs(x-want[i]) > 1e-5*want[i] {
				t.Errorf("%d together: number %d is %v, want %v", together, i, x, want[i])
			}
		}
	}
}

// TestGateUse: an LSTM whose biases hold gates open or closed says so, for each gate that it has.
func TestGateUse(t *testing.T) {
	for _, embed := range []int{0, 3} {
		m, err := New(Config{Cell: compute.LSTM, Vocab: 5, Embed: embed, Hidden: 4, Layers: 2,
			Seed: 3}, newDevice(t))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		bias := m.view(layerName("bias_hh", 1), m.params)
		for i := range 4 {
			bias[i], bias[4+i] = -9, 9 // i, f
		}
		inputs, targets := flowInputs(5, 3, 5)
		f, err := m.Flow(inputs, targets, 5)
		if err != nil || len(f.Gates) != 6 {
			t.Fatalf("%+v, %v", f, err)
		}
		for _, g := range f.Gates {
			closed, open := 0.0, 0.0
			if g.Layer == 1 && g.Gate == "i" {
				closed = 1
			} else if g.Layer == 1 && g.Gate == "f" {
				open = 1
			}
			if g.Closed != closed || g.Open != open || !(g.Mean > 0 && g.Mean < 1) {
				t.Errorf("%+v", g)
			}
		}
	}
}

// TestGateActivations: the mean of a gate is that of the equations, by the twin's cell.
func TestGateActivations(t *testing.T) {
	m, err := New(Config{Cell: compute.GRU, Vocab: 5, Hidden: 3, Layers: 1, Seed: 8}, newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	f, err := m.Flow([]int32{2, 4}, []int32{1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	w, h := m.weights().layers[0], make([]float64, 3)
	sum := map[int]float64{}
	for _, id := range []int{2, 4} {
		a := func(row int) (in, hidden float64) {
			hidden = float64(w.BiasHH[row])
			for j, x := range h {
				hidden += float64(w.HH[row*3+j]) * x
			}
			return float64(w.IH[row*5+id]) + float64(w.BiasIH[row]), hidden
		}
		σ := func(x, y float64) float64 { return 1 / (1 + math.Exp(-x-y)) }
		next := make([]float64, 3)
		for i := range 3 {
			r, z := σ(a(i)), σ(a(3+i))
			in, hidden := a(6 + i)
			next[i] = (1-z)*math.Tanh(in+r*hidden) + z*h[i]
			sum[0], sum[1] = sum[0]+r/6, sum[1]+z/6
		}
		h = next
	}
	for i, g := range f.Gates {
		if math.Abs(g.Mean-sum[i]) > 1e-6 || g.Gate != []string{"r", "z"}[i] {
			t.Errorf("%+v, want %v", g, sum[i])
		}
	}
}

// TestFlowErrors: networks with parts that are not measured, and inputs that do not fit, are
// errors.
func TestFlowErrors(t *testing.T) {
	for _, c := range []Config{{LayerNorm: true}, {Skip: true, Layers: 2}, {DeepOutput: 1},
		{Embed: 2, TieWeights: true}} {
		c.Cell, c.Vocab, c.Hidden, c.Layers = compute.GRU, 4, 3, max(1, c.Layers)
		m, err := New(c, newDevice(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Flow([]int32{1}, []int32{1}, 1); err == nil {
			t.Errorf("%+v is no error", c)
		}
		m.Close()
	}
	m, err := New(Config{Cell: compute.GRU, Vocab: 4, Hidden: 3, Layers: 1}, newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range [][2][]int32{{{1}, nil}, {{1, 2, 3}, {1, 2}}, {{1}, {4}}, {{4, 1}, {1}}} {
		if _, err := m.Flow(c[0], c[1], 1); err == nil {
			t.Errorf("%v is no error", c)
		}
	}
	if _, err := m.Flow([]int32{1}, []int32{1}, 2); err == nil {
		t.Error("a distance beyond the window is no error")
	}
}
