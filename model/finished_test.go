package model

import (
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// Finished gradients are final: overwriting them does not change the later ones, and all together
// they equal those of a run without Finished.
func TestFinishedGradientsAreFinal(t *testing.T) {
	for name, cfg := range some(shapes()) {
		for _, k := range []int{0, 2} {
			cfg.Recompute = k
			t.Run(name, func(t *testing.T) { checkFinished(t, cfg) })
		}
	}
}

func checkFinished(t *testing.T, cfg Config) {
	const T, B = 5, 3
	m := newModel(t, cfg)
	in := randomInput(rand.New(rand.NewPCG(3, 4)), T, B, cfg.Vocab)
	want := func() []float32 {
		if _, err := newSegment(t, m, T, B).Run(in); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(m.Gradients())
	}()
	got := make([]float32, len(want))
	var ends []int
	in.Finished = func(end int) {
		begin := 0
		if n := len(ends); n > 0 {
			begin = ends[n-1]
		}
		ends = append(ends, end)
		part := m.Gradients()[begin:end]
		copy(got[begin:], part)
		if cfg.TieWeights || end < len(want) { // the next run adds to an embedding's gradient
			for i := range part {
				part[i] *= 3 // as a sum would; padding stays zero
			}
		}
	}
	s := newSegment(t, m, T, B)
	for range 2 {
		ends = nil
		s.ZeroState()
		if _, err := s.Run(in); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Error("the gradients that were told of are not those of a run that tells of none")
		}
		if !slices.Equal(ends, Finishes(cfg)) {
			t.Errorf("told of the ends %v, want %v", ends, Finishes(cfg))
		}
	}
}

// A one-layer model reports seven prefixes: the output layer, W_ih, each gate of W_hh but the last,
// the whole layer, and the embedding.
func TestFinishesOfOneLayer(t *testing.T) {
	cfg := Config{Cell: compute.LSTM, Vocab: 7, Hidden: 5, Layers: 1, Embed: 3}
	views := Layout(cfg)
	hh := find(views, "rnn.weight_hh_l0").Offset
	want := []int{find(views, "rnn.weight_ih_l0").Offset, hh, hh + 25, hh + 50, hh + 75,
		find(views, embeddingWeight).Offset, Span(views)}
	if got := Finishes(cfg); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A device that only queues its work cannot report finished gradients.
func TestFinishedNeedsWorkThatIsDone(t *testing.T) {
	m := newModel(t, shapes()["gru/2/dropout"])
	s := newSegment(t, m, 3, 2)
	in := randomInput(rand.New(rand.NewPCG(5, 6)), 3, 2, m.config.Vocab)
	in.Finished = func(int) { t.Error("told of a gradient that is clipped behind it") }
	in.Behind = func(*compute.Loss) {}
	if _, err := s.Run(in); err == nil {
		t.Error("a run with both Finished and Behind")
	}
}
