package model

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// fresh returns the gradients of the first run of a new model.
func fresh(t *testing.T, cfg Config, T, B int, in SegmentInput) []float32 {
	t.Helper()
	m := newModel(t, cfg)
	run(t, newSegment(t, m, T, B), in)
	return download(m, m.Gradients())
}

// clip clips the gradients.
func clip(m *Model, by *compute.Clip) {
	clipper := m.dev.NewClipper()
	defer clipper.Close()
	clipper.Clip(m.Gradients(), by, nil)
}

// TestEmbeddingRows runs steps that read few of many ids. The gradients must equal those of a fresh
// model, whatever earlier runs have read and whatever has been done to the gradients since.
func TestEmbeddingRows(t *testing.T) {
	const V, B = 90, 2
	for _, tied := range []bool{false, true} {
		for _, recompute := range []int{0, 2} {
			cfg := Config{Cell: compute.GRU, Vocab: V, Embed: 5, Hidden: 5, Layers: 2, Seed: 7,
				TieWeights: tied, Recompute: recompute}
			m := newModel(t, cfg)
			segments := []*Segment{newSegment(t, m, 5, B), newSegment(t, m, 3, B),
				newSegment(t, m, 60, B)}
			rng := rand.New(rand.NewPCG(5, 6))
			host := make([]float32, len(m.Gradients()))
			for step := range 24 {
				s := segments[step%3]
				in := randomInput(rng, s.T, B, V)
				in.OnlySegments = true
				switch step % 8 {
				case 1: // clipping
					clip(m, &compute.Clip{Limit: 1e-3, ByValue: true, Share: 0.3})
				case 3: // a skipped step
					m.dev.Zero(m.Gradients())
				case 5: // other ranks have read every id
					for i := range host {
						host[i] = rng.Float32()
					}
					m.dev.Upload(m.Gradients(), host)
					in.OnlySegments = false
				case 7: // an interrupted step
					broken := in
					broken.BeforeBackward = func() error { return errors.New("it broke") }
					if _, err := s.Run(broken); err == nil {
						t.Fatal("no error")
					}
				}
				s.ZeroState()
				run(t, s, in)
				got := host
				m.dev.Download(got, m.Gradients())
				if padding := step >= 5; padding { // no gradient overwrites padding
					clearPadding(m, got)
				}
				if !slices.Equal(got, fresh(t, cfg, s.T, B, in)) {
					t.Fatalf("tied %t, recompute %d: step %d has other gradients", tied, recompute,
						step)
				}
			}
		}
	}
}

// clearPadding zeroes the padding in a host copy of gradients.
func clearPadding(m *Model, x []float32) {
	only := make([]float32, len(x))
	for _, v := range m.Layout() {
		copy(v.of(only), v.of(x))
	}
	copy(x, only)
}

// TestEmbeddingRowsAlone checks that the other rows are not written.
func TestEmbeddingRowsAlone(t *testing.T) {
	m := newModel(t, Config{Cell: compute.GRU, Vocab: 90, Embed: 5, Hidden: 5, Layers: 1})
	s := newSegment(t, m, 3, 2)
	in := randomInput(rand.New(rand.NewPCG(5, 6)), 3, 2, 9)
	in.OnlySegments = true
	run(t, s, in)
	gradient, err := m.Gradient("embedding.weight")
	if err != nil {
		t.Fatal(err)
	}
	m.dev.Upload(gradient[5*50:][:1], []float32{7})
	run(t, s, in)
	if got := download(m, gradient)[5*50]; got != 7 {
		t.Errorf("row 50, which nobody reads, was 7 and is %v", got)
	}
	in.OnlySegments = false
	run(t, s, in)
	if got := download(m, gradient)[5*50]; got != 0 {
		t.Errorf("row 50 is %v, and not zero", got)
	}
}
