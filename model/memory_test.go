package model

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// Limits of a training step's memory, in floats.
const (
	// activationFloats bounds the floats per step, lane, and element of H*L+E.
	activationFloats = 14
	// weightFloats bounds the floats per parameter: the parameter, its gradient, a chunk's
	// gradient, and packed copies for forward and backward, with partial blocks.
	weightFloats = 8
	// chunkFloats bounds the floats that do not depend on the shape: logits of some rows, and
	// packing.
	chunkFloats = 24 << 20
)

// stepBytes is the peak memory of a model, its segment and this many steps.
func stepBytes(t testing.TB, cfg Config, p compute.Precision, T, B, steps int) int64 {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1, Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m, err := New(cfg, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSegment(T, B)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range steps {
		run(t, s, randomInput(rand.New(rand.NewPCG(1, 2)), T, B, cfg.Vocab))
	}
	_, peak := dev.Bytes()
	return peak
}

var precisions = []compute.Precision{compute.FP32, compute.BF16}

// TestSize holds what sizes say against what a device counts, of tensors too small for large pages.
func TestSize(t *testing.T) {
	const T, B = 12, 4
	on := cpu.Config{Threads: 1}
	for _, cfg := range []Config{
		{Cell: compute.LSTM, Vocab: 50, Hidden: 40, Layers: 2},
		{Cell: compute.GRU, Vocab: 50, Hidden: 40, Layers: 1, Embed: 24, Recompute: 5},
		{Cell: compute.RNNTanh, Vocab: 50, Hidden: 40, Layers: 2, Embed: 24, TieWeights: true},
		{Cell: compute.LSTM, Vocab: 50, Hidden: 40, Layers: 2, Embed: 24, DeepInput: 2,
			DeepTransition: 1, DeepOutput: 2, Recompute: 5},
	} {
		parameters := on.TensorSize(Span(Layout(cfg)))
		want := parameters.And(parameters).And(cfg.SegmentSize(on, T, B)).Total()
		if got := stepBytes(t, cfg, compute.FP32, T, B, 1); got != want {
			t.Errorf("%s: sizes add up to %d bytes, the device held %d", cfg.shape(), want, got)
		}
	}
}

// TestMemoryGrowsWithTheSegment doubles T. Memory may grow by at most activationFloats for each
// step, lane and element. With Recompute it grows by the state at every K-th step only.
func TestMemoryGrowsWithTheSegment(t *testing.T) {
	for _, cell := range compute.Cells() {
		for _, p := range precisions {
			t.Run(fmt.Sprintf("%v/%v", cell, p), func(t *testing.T) { checkGrowth(t, cell, p) })
		}
	}
}

func checkGrowth(t *testing.T, cell compute.Cell, p compute.Precision) {
	const T, B, K = 32, 8, 8
	cfg := Config{Cell: cell, Vocab: 50, Hidden: 64, Layers: 2, Embed: 32, Dropout: 0.1}
	grown := func() (first, second int64) {
		a, b, c := stepBytes(t, cfg, p, T, B, 1), stepBytes(t, cfg, p, 2*T, B, 2),
			stepBytes(t, cfg, p, 4*T, B, 3)
		return b - a, c - b
	}
	first, second := grown()
	if d := second - 2*first; d < -first/50 || d > first/50 {
		t.Errorf("%d steps more take %d bytes, %d more %d", T, first, 2*T, second)
	}
	limit := int64(4 * activationFloats * 2 * T * B * (cfg.Hidden*cfg.Layers + cfg.Embed))
	if second > limit {
		t.Errorf("%d steps more take %d bytes; at most %d", 2*T, second, limit)
	}
	t.Logf("%.1f floats for each step, lane and element",
		activationFloats*float64(second)/float64(limit))
	cfg.Recompute = K
	state := int64(4 * B * cfg.StateSize())
	if first, second = grown(); first != T/K*state || second != 2*T/K*state {
		t.Errorf("with --recompute %d, %d steps more take %d bytes, %d more %d; a state takes %d",
			K, T, first, 2*T, second, state)
	}
}

// TestMemoryOfDropout expects no extra memory, since dropout works in place.
func TestMemoryOfDropout(t *testing.T) {
	for _, p := range precisions {
		for layers := 1; layers <= 2; layers++ {
			cfg := Config{Cell: compute.GRU, Vocab: 50, Hidden: 64, Layers: layers, Embed: 32}
			want := stepBytes(t, cfg, p, 16, 8, 0)
			cfg.Dropout, cfg.DropoutInput = 0.3, 0.2
			if got := stepBytes(t, cfg, p, 16, 8, 0); got != want {
				t.Errorf("%v, %d layers: %d bytes with dropout, %d without", p, layers, got, want)
			}
		}
	}
}

// TestMemoryOfALargeVocabulary doubles V, and multiplies T. Embedding and output layer may take
// more memory only for their weights and at most a chunk: the logits of a long segment are never
// all in memory.
func TestMemoryOfALargeVocabulary(t *testing.T) {
	const T, many, B, V = 16, 64, 16, 20000
	const chunk = 4 * chunkFloats
	for _, p := range precisions {
		cfg := Config{Vocab: V, Hidden: 16, Layers: 1, Embed: 16}
		twice := cfg
		twice.Vocab = 2 * V
		weights := int64(4 * weightFloats * V * (2*16 + 1))
		for _, steps := range []int{T, many * T} {
			more := stepBytes(t, twice, p, steps, B, 0) - stepBytes(t, cfg, p, steps, B, 0)
			if more > weights+chunk {
				t.Errorf("%v: %d tokens more take %d bytes in a segment of %d steps; at most %d",
					p, V, more, steps, weights+chunk)
			}
		}
		more := stepBytes(t, cfg, p, many*T, B, 0) - stepBytes(t, cfg, p, T, B, 0)
		limit := int64(chunk + 4*activationFloats*(many-1)*T*B*(16+16))
		if logits := int64(4 * (many - 1) * T * B * V); more > limit || logits < 8*limit {
			t.Errorf("%v: %d steps more take %d bytes, at most %d; their logits would take %d", p,
				(many-1)*T, more, limit, logits)
		}
	}
}

// stepShape is a row of BenchmarkStepMemory.
type stepShape struct{ T, B, H, E, L, V, K int }

func (s stepShape) String() string {
	return fmt.Sprintf("T%d/B%d/H%d/E%d/L%d/V%d/K%d", s.T, s.B, s.H, s.E, s.L, s.V, s.K)
}

// stepShapes doubles one dimension after the other, with and without Recompute.
func stepShapes() []stepShape {
	base := stepShape{T: 64, B: 16, H: 128, E: 128, L: 2, V: 10000}
	var all []stepShape
	for _, k := range []int{0, 16} {
		base.K = k
		all = append(all, base)
		for i := range 6 {
			s := base
			*[...]*int{&s.T, &s.B, &s.H, &s.E, &s.L, &s.V}[i] *= 2
			all = append(all, s)
		}
		long := base
		long.T = 2048
		all = append(all, long)
	}
	return all
}

func (s stepShape) config() Config {
	return Config{Cell: compute.LSTM, Vocab: s.V, Hidden: s.H, Embed: s.E, Layers: s.L,
		Recompute: s.K}
}

// limit is the memory bound: O(T*B*(H*L+E)), the weights, and a chunk.
func (s stepShape) limit() int64 {
	steps := s.config().chunk(s.T)
	states := (s.T/steps + 4) * s.B * s.config().StateSize()
	return 4 * int64(activationFloats*steps*s.B*(s.H*s.L+s.E)+states+
		weightFloats*Span(Layout(s.config()))+chunkFloats)
}

// TestMemoryLaw checks the benchmark's shapes against the bound.
func TestMemoryLaw(t *testing.T) {
	for _, s := range stepShapes() {
		s.V, s.H, s.E, s.B, s.T = s.V/8, s.H/4, s.E/4, s.B/4, min(s.T, 512)
		for _, p := range precisions {
			got, limit := stepBytes(t, s.config(), p, s.T, s.B, 1), s.limit()
			if got > limit {
				t.Errorf("%v in %v: %d bytes; at most %d", s, p, got, limit)
			}
		}
	}
}

// BenchmarkStepMemory reports the peak memory of a model and its step, and the part that is neither
// parameters nor gradients.
func BenchmarkStepMemory(b *testing.B) {
	for _, s := range stepShapes() {
		b.Run(s.String(), func(b *testing.B) {
			var peak int64
			for b.Loop() {
				peak = stepBytes(b, s.config(), compute.FP32, s.T, s.B, 1)
			}
			b.ReportMetric(float64(peak)/1e6, "MB")
			b.ReportMetric(float64(peak-8*int64(Span(Layout(s.config()))))/1e6, "MB-work")
		})
	}
}
