//go:build unix

package model

import (
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// TestDeviceMemoryIsTheDevices trains, evaluates, generates and moves states on a device whose
// memory faults when the host touches it. The results equal those of host memory.
func TestDeviceMemoryIsTheDevices(t *testing.T) {
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) {
			want, err := exercise(t, cfg, newDevice(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := exercise(t, cfg, devicetest.NewProtected(t, newDevice(t), 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Error("the results differ")
			}
		})
	}
}

// exercise uses everything that a model offers, and returns all resulting numbers.
func exercise(t *testing.T, cfg Config, dev compute.Device) (results []float32, err error) {
	const T, B = 3, 2
	m, err := New(cfg, dev)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	s, err := m.NewSegment(T, B)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	state := make([]float32, B*cfg.StateSize())
	for range 3 {
		in := randomInput(rng, T, B, cfg.Vocab)
		results = append(results, float32(run(t, s, in)))
		dev.Update(compute.Update{LR: 0.5}, m.Params(), m.Gradients(), nil, nil)
		results = append(results, download(m, m.Gradients())...)
		sum, _, err := s.Evaluate(in.Inputs, in.Targets)
		if err != nil {
			return nil, err
		}
		results = append(results, float32(sum))
		if err := s.State(state); err != nil {
			return nil, err
		}
		results = append(results, state...)
		slices.Reverse(state)
		if err := s.SetState(state); err != nil {
			return nil, err
		}
	}
	s.ZeroState()
	g, err := m.NewGenerator(1)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	text, err := g.Generate(t.Context(), []int32{1, 2}, 5, Sampling{Temperature: 1, TopK: 4})
	for _, id := range text {
		results = append(results, float32(id))
	}
	return results, err
}

// TestLabellerMemoryIsTheDevices does the same with labellers.
func TestLabellerMemoryIsTheDevices(t *testing.T) {
	forLabellers(t, func(t *testing.T, c LabellerConfig) {
		want, err := useLabeller(c, newDevice(t), 7, 3)
		if err != nil {
			t.Fatal(err)
		}
		got, err := useLabeller(c, devicetest.NewProtected(t, newDevice(t), 1<<20), 7, 3)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Error("the results differ")
		}
	})
}

// TestTranslatorMemoryIsTheDevices does the same with translators.
func TestTranslatorMemoryIsTheDevices(t *testing.T) {
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		want, err := useTranslator(c, newDevice(t), 7, 5, 3)
		if err != nil {
			t.Fatal(err)
		}
		dev := devicetest.NewProtected(t, newDevice(t), 1<<20)
		got, err := useTranslator(c, dev, 7, 5, 3)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Error("the results differ")
		}
	})
}
