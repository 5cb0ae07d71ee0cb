package model

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// At BeforeBackward the loss is known and no gradient is written. Its error ends the run; the state
// is unchanged, and the segment can run again.
func TestBeforeBackward(t *testing.T) {
	m := newModel(t, Config{Cell: compute.LSTM, Vocab: 7, Hidden: 5, Layers: 2, Seed: 3})
	const T, B = 4, 3
	s, err := m.NewSegment(T, B)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, 7)
	want, err := s.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	gradients := slices.Clone(m.Gradients())
	fresh := make([]float32, B*m.Config().StateSize())
	s.ZeroState()

	broken := errors.New("it broke")
	recurrent, err := m.Gradient("rnn.weight_hh_l0")
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	halt := in
	halt.BeforeBackward = func() error {
		calls++
		for _, g := range recurrent {
			if g != 0 {
				t.Fatal("the backward pass has begun")
			}
		}
		return broken
	}
	m.Device().Zero(m.Gradients())
	if _, err := s.Run(halt); !errors.Is(err, broken) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if err := s.State(fresh); err != nil || slices.ContainsFunc(fresh,
		func(x float32) bool { return x != 0 }) {
		t.Errorf("a run that was ended has left the state %v", fresh)
	}
	got, err := s.Run(in)
	if err != nil || got != want || !slices.Equal(m.Gradients(), gradients) || calls != 1 {
		t.Errorf("the next run's loss is %v, not %v: %v; %d calls", got, want, err, calls)
	}
}

// An evaluator that only advances reaches the same state as a segment.
func TestAdvance(t *testing.T) {
	for _, cell := range []compute.Cell{compute.GRU, compute.LSTM} {
		m := newModel(t, Config{Cell: cell, Vocab: 7, Hidden: 5, Layers: 2, Embed: 4, Seed: 3})
		const T, B = 4, 3
		s, err := m.NewSegment(T, B)
		if err != nil {
			t.Fatal(err)
		}
		e, err := m.NewEvaluator(T, B)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range 3 {
			in := randomInput(rng, T, B, 7)
			if _, err := s.Run(in); err != nil {
				t.Fatal(err)
			}
			if err := e.Advance(in.Inputs); err != nil {
				t.Fatal(err)
			}
		}
		want := make([]float32, B*m.Config().StateSize())
		got := slices.Clone(want)
		if err := errors.Join(s.State(want), e.State(got)); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if d := want[i] - got[i]; d > 1e-6 || d < -1e-6 || want[i] == 0 {
				t.Fatalf("cell %d: element %d is %v, in a segment %v", cell, i, got[i], want[i])
			}
		}
		if e.State(got[1:]) == nil || e.Advance(make([]int32, 3)) == nil ||
			e.Advance(slices.Repeat([]int32{9}, T*B)) == nil {
			t.Error("an evaluator takes what does not fit")
		}
		e.Close()
		s.Close()
	}
}

// Initialise restores the initial weights.
func TestInitialise(t *testing.T) {
	m := newModel(t, Config{Cell: compute.GRU, Vocab: 7, Hidden: 5, Layers: 1, Seed: 3})
	want := slices.Clone(m.Params())
	m.Device().Zero(m.Params())
	if m.Initialise(); !slices.Equal(m.Params(), want) {
		t.Error("they are others")
	}
}
