package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"rondo/compute"
)

// bare is a model's training step composed by hand from the kernels. It is the oracle that
// Gorgonia's graph must equal bit for bit, and the reference for its speed.
type bare struct {
	m        *Model
	T, B     int
	w, g     weights
	kernels  []compute.Recurrent
	in, out  []compute.RecurrentState
	y, dy    [][]float32 // per layer [T, B, H]
	dropped  [][]float32 // what follows reads, per layer: after dropout and a skip connection
	normed   [][]float32 // likewise, after normalisation
	stats    [][]float32
	embedded []float32 // [T, B, E]
	dembed   []float32
	proj     []float32 // [T, B, E]
	dproj    []float32
	output   compute.Output
	keys     []uint64
}

func newBare(t testing.TB, m *Model, T, B int) *bare {
	c := m.config
	s := &bare{m: m, T: T, B: B, w: m.weights(), keys: make([]uint64, B)}
	gradients := *m
	gradients.params = m.grads[:len(m.params)]
	s.g = gradients.weights()
	for k := range c.Layers {
		shape := c.layerShape(k, T, B)
		kernel := compute.NewRecurrent(m.dev, shape, false)
		t.Cleanup(kernel.Close)
		s.kernels = append(s.kernels, kernel)
		n := c.Cell.States() * B * c.Hidden
		s.in = append(s.in, cutState(shape, m.dev.Alloc(n)))
		s.out = append(s.out, cutState(shape, m.dev.Alloc(n)))
		s.y = append(s.y, m.dev.Alloc(T*B*c.Hidden))
		s.dy = append(s.dy, m.dev.Alloc(T*B*c.Hidden))
		s.dropped = append(s.dropped, m.dev.Alloc(T*B*c.Hidden))
		s.normed = append(s.normed, m.dev.Alloc(T*B*c.Hidden))
		s.stats = append(s.stats, m.dev.Alloc(2*T*B))
	}
	s.embedded, s.dembed = m.dev.Alloc(T*B*c.Embed), m.dev.Alloc(T*B*c.Embed)
	s.proj, s.dproj = m.dev.Alloc(T*B*c.Embed), m.dev.Alloc(T*B*c.Embed)
	s.output = m.dev.NewOutput(compute.OutputShape{N: T * B, H: c.outputWidth(), V: c.Vocab})
	t.Cleanup(s.output.Close)
	return s
}

// dropout drops elements of x into y, with the mask of layer k; -1 is the embedding.
func (s *bare) dropout(y, x []float32, k int, in SegmentInput) {
	p := s.m.config.Dropout
	if k < 0 {
		p = s.m.config.DropoutInput
	}
	for b, lane := range in.Lanes {
		s.keys[b] = DropoutKey(s.m.config.Seed, in.Step, k, lane)
	}
	if !s.m.config.DropoutLocked {
		s.m.dev.Dropout(y, x, s.T, float32(p), s.keys)
		return
	}
	n := len(x) / s.T
	for i := 0; i < len(x); i += n { // a step by itself
		s.m.dev.Dropout(y[i:i+n], x[i:i+n], 1, float32(p), s.keys)
	}
}

// after computes what follows layer k with input x, and returns the next layer's input.
func (s *bare) after(k int, x []float32, in SegmentInput) []float32 {
	c, dev, u := s.m.config, s.m.dev, s.dropped[k]
	s.m.dev.Zero(u)
	dev.Add(u, s.y[k])
	if c.Dropout > 0 {
		s.dropout(u, u, k, in)
	}
	if c.Skip && k > 0 {
		dev.Add(u, x)
	}
	if !c.LayerNorm {
		return u
	}
	n := s.norm(k)
	dev.LayerNorm(n)
	return n.Y
}

func (s *bare) norm(k int) compute.LayerNorm {
	n := s.w.norms[k]
	n.X, n.Stats, n.Y = s.dropped[k], s.stats[k], s.normed[k]
	return n
}

// before returns the gradient of layer k's output, and leaves in dy that of what Skip adds it to.
func (s *bare) before(k int, in SegmentInput) []float32 {
	c, dev, dh := s.m.config, s.m.dev, s.y[k]
	if c.LayerNorm {
		dev.LayerNormBackward(s.norm(k), s.dy[k], s.dy[k], s.g.norms[k].Weight, s.g.norms[k].Bias)
	}
	dev.Zero(dh)
	dev.Add(dh, s.dy[k])
	if c.Dropout > 0 {
		s.dropout(dh, dh, k, in)
	}
	return dh
}

// run does what Segment.Run does.
func (s *bare) run(in SegmentInput) float64 {
	c, dev, last := s.m.config, s.m.dev, s.m.config.Layers-1
	x := compute.RecurrentInput{IDs: in.Inputs}
	if c.Embed > 0 {
		dev.Embed(s.embedded, s.w.embedding, in.Inputs)
		s.dropout(s.embedded, s.embedded, -1, in)
		x = compute.RecurrentInput{X: s.embedded}
	}
	for k := range c.Layers {
		s.kernels[k].Forward(s.w.layers[k], x, s.in[k], s.y[k], s.out[k])
		x = compute.RecurrentInput{X: s.after(k, x.X, in)}
	}
	rows, hidden := s.T*s.B, x.X
	dx := s.dy[last]
	if c.projects() {
		dev.Gemm(false, true, rows, c.Embed, c.Hidden, 1, x.X, s.w.projection, 0, s.proj)
		x.X, dx = s.proj, s.dproj
	}
	s.output.ForwardBackward(x.X, s.w.output, s.w.bias, in.Targets, in.Scale, dx,
		s.g.output, s.g.bias)
	if c.projects() {
		dev.Gemm(false, false, rows, c.Hidden, c.Embed, 1, s.dproj, s.w.projection, 0, s.dy[last])
		dev.Gemm(true, false, c.Embed, c.Hidden, rows, 1, s.dproj, hidden, 0, s.g.projection)
	}
	for k := last; k > 0; k-- {
		dh := s.before(k, in)
		s.kernels[k].Backward(dh, compute.RecurrentState{}, s.g.layers[k], s.dy[k-1],
			compute.RecurrentState{})
		if c.Skip {
			dev.Add(s.dy[k-1], s.dy[k])
		}
	}
	var dembed []float32
	if c.Embed > 0 {
		dembed = s.dembed
	}
	s.kernels[0].Backward(s.before(0, in), compute.RecurrentState{}, s.g.layers[0], dembed,
		compute.RecurrentState{})
	if c.Embed > 0 {
		s.dropout(s.dembed, s.dembed, -1, in)
		if !c.TieWeights {
			dev.Zero(s.g.embedding)
		}
		dev.EmbedBackward(s.g.embedding, s.dembed, in.Inputs)
	}
	s.in, s.out = s.out, s.in
	return s.output.Sum()
}

// TestSegmentEqualsBareKernels compares the graph with the hand-composed kernels: loss, gradients
// and states have the same bits over steps that carry the state.
func TestSegmentEqualsBareKernels(t *testing.T) {
	for name, cfg := range plainShapes() {
		t.Run(name, func(t *testing.T) {
			const T, B = 4, 3
			m := newModel(t, cfg)
			s, want := newSegment(t, m, T, B), newBare(t, m, T, B)
			rng := rand.New(rand.NewPCG(1, 2))
			for step := range 3 {
				in := randomInput(rng, T, B, cfg.Vocab)
				in.Step = int64(step)
				wantLoss := want.run(in)
				wantGradient := download(m, m.Gradients())
				m.dev.Zero(m.Gradients())
				if loss := run(t, s, in); loss != wantLoss {
					t.Errorf("step %d: loss %v, the kernels have %v", step, loss, wantLoss)
				}
				got := download(m, m.Gradients())
				for _, v := range m.Layout() {
					if !slices.Equal(v.of(got), v.of(wantGradient)) {
						t.Errorf("step %d: the gradient of %s differs", step, v.Name)
					}
				}
				for k, l := range s.states[0].layers {
					if !slices.Equal(download(m, l.H), download(m, want.in[k].H)) ||
						!slices.Equal(download(m, l.C), download(m, want.in[k].C)) {
						t.Errorf("step %d: the state of layer %d differs", step, k)
					}
				}
				m.dev.Update(compute.Update{LR: 0.5}, m.Params(), m.Gradients(), nil, nil)
			}
		})
	}
}

// maxAllocations bounds a step's allocations, for any model.
const maxAllocations = 200

func TestSegmentAllocations(t *testing.T) {
	for _, name := range []string{"lstm/1/one-hot", "gru/2/embed", "lstm/3/dropout",
		"lstm/3/tied-projected"} {
		cfg := shapes()[name]
		m := newModel(t, cfg)
		s := newSegment(t, m, 4, 3)
		in := randomInput(rand.New(rand.NewPCG(1, 2)), 4, 3, cfg.Vocab)
		got := testing.AllocsPerRun(50, func() { run(t, s, in) })
		t.Logf("%s: %v allocations a step", name, got)
		if got >= maxAllocations {
			t.Errorf("%s: %v allocations a step; want fewer than %d", name, got, maxAllocations)
		}
	}
}

// benchmarks are the textbook's model and a stack of layers.
func benchmarks() map[string]Config {
	base := Config{Cell: compute.LSTM, Vocab: 28, Hidden: 256, Layers: 1, Seed: 1}
	stack := base
	stack.Layers, stack.Embed, stack.Dropout, stack.TieWeights = 2, 256, 0.2, true
	gru := base
	gru.Cell = compute.GRU
	return map[string]Config{"lstm": base, "gru": gru, "stack": stack}
}

// benchmarkSteps runs f for each of the benchmarks' models.
func benchmarkSteps(b *testing.B,
	f func(b *testing.B, graph func(), kernels func(), tokens float64)) {
	const T, B = 35, 32
	for _, name := range []string{"lstm", "gru", "stack"} {
		b.Run(fmt.Sprintf("%s/T%d/B%d", name, T, B), func(b *testing.B) {
			m := newModel(b, benchmarks()[name])
			s, k := newSegment(b, m, T, B), newBare(b, m, T, B)
			in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, m.config.Vocab)
			b.ReportAllocs()
			f(b, func() { run(b, s, in) }, func() { k.run(in) }, T*B)
		})
	}
}

// BenchmarkSegment measures a step through Gorgonia.
func BenchmarkSegment(b *testing.B) {
	benchmarkSteps(b, func(b *testing.B, graph, _ func(), tokens float64) {
		for b.Loop() {
			graph()
		}
		b.ReportMetric(float64(b.N)*tokens/b.Elapsed().Seconds(), "tokens/s")
	})
}

// BenchmarkBareKernels measures the same step without Gorgonia.
func BenchmarkBareKernels(b *testing.B) {
	benchmarkSteps(b, func(b *testing.B, _, kernels func(), tokens float64) {
		for b.Loop() {
			kernels()
		}
		b.ReportMetric(float64(b.N)*tokens/b.Elapsed().Seconds(), "tokens/s")
	})
}

// BenchmarkGraphOverKernels alternates the two steps and reports the graph's speed over the bare
// kernels'. Each counts with its fastest run, since other work on the machine only slows a step.
func BenchmarkGraphOverKernels(b *testing.B) {
	benchmarkSteps(b, func(b *testing.B, graph, kernels func(), _ float64) {
		fastest := [2]time.Duration{math.MaxInt64, math.MaxInt64}
		for b.Loop() {
			for i, step := range []func(){graph, kernels} {
				start := time.Now()
				step()
				fastest[i] = min(fastest[i], time.Since(start))
			}
		}
		b.ReportMetric(float64(fastest[1])/float64(fastest[0]), "graph/kernels")
	})
}
