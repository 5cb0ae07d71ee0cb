package model

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// recomputeTolerance bounds the relative difference of gradients summed in another order.
const recomputeTolerance = 2e-6

// runs is the result of three steps that carry the state and update the parameters.
type runs struct {
	losses    []float64
	gradients [][]float32
	state     []float32
}

// threeSteps runs cfg's model with Recompute k.
func threeSteps(t *testing.T, cfg Config, p compute.Precision, T, B, k int) runs {
	t.Helper()
	cfg.Recompute = k
	m := newModelOn(t, cfg, newDeviceOf(t, p))
	s := newSegment(t, m, T, B)
	rng := rand.New(rand.NewPCG(5, 6))
	r := runs{state: make([]float32, B*cfg.StateSize())}
	for step := range 3 {
		in := randomInput(rng, T, B, cfg.Vocab)
		in.Step = int64(step)
		r.losses = append(r.losses, run(t, s, in))
		r.gradients = append(r.gradients, download(m, m.Gradients()))
		checkPadding(t, "gradients", m.Layout(), m.Gradients())
		m.dev.Update(compute.Update{LR: 0.5}, m.Params(), m.Gradients(), nil, nil)
	}
	if err := s.State(r.state); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRecompute compares segments that keep every K-th state with one that keeps all: losses,
// gradients and states agree for every K, dropout included.
func TestRecompute(t *testing.T) {
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) { checkRecompute(t, cfg, compute.FP32) })
	}
	// Values are rounded to bfloat16 alike, whatever the order of the sums.
	for _, name := range []string{"lstm/2/dropout", "gru/3/tied-projected"} {
		t.Run(name+"/bf16", func(t *testing.T) { checkRecompute(t, shapes()[name], compute.BF16) })
	}
}

func checkRecompute(t *testing.T, cfg Config, p compute.Precision) {
	const T, B = 7, 3
	want := threeSteps(t, cfg, p, T, B, 0)
	for k := 1; k <= T+1; k++ {
		got := threeSteps(t, cfg, p, T, B, k)
		if e := relative(got.gradients[0], want.gradients[0]); e > recomputeTolerance {
			t.Errorf("K %d: gradients differ by %.2g", k, e)
		}
		if k >= T && !slices.Equal(got.gradients[2], want.gradients[2]) {
			t.Errorf("K %d: nothing is recomputed, and the gradients differ", k)
		}
		for step, loss := range got.losses {
			e := math.Abs(loss-want.losses[step]) / want.losses[step]
			if later := p == compute.BF16 && step > 0; e > 1e-5 && !(later && e < 1e-3) {
				t.Errorf("K %d, step %d: loss %v, want %v", k, step, loss, want.losses[step])
			}
		}
		if p == compute.BF16 {
			continue // updated parameters may round differently
		}
		if e := relative(got.gradients[2], want.gradients[2]); e > 10*recomputeTolerance {
			t.Errorf("K %d: the third gradients differ by %.2g", k, e)
		}
		if e := relative(got.state, want.state); e > 1e-5 {
			t.Errorf("K %d: states differ by %.2g", k, e)
		}
	}
}

// TestRecomputeKeepsTheHook checks that BeforeBackward is called once, before any gradient is
// written. Its error leaves the state and the segment unchanged.
func TestRecomputeKeepsTheHook(t *testing.T) {
	cfg := shapes()["lstm/2/embed"]
	cfg.Recompute = 2
	const T, B = 5, 3
	m := newModel(t, cfg)
	s := newSegment(t, m, T, B)
	rng := rand.New(rand.NewPCG(5, 6))
	run(t, s, randomInput(rng, T, B, cfg.Vocab))
	before, after := make([]float32, B*cfg.StateSize()), make([]float32, B*cfg.StateSize())
	if err := s.State(before); err != nil {
		t.Fatal(err)
	}
	in := randomInput(rng, T, B, cfg.Vocab)
	broken, calls := errors.New("it broke"), 0
	in.BeforeBackward = func() error {
		calls++
		if m.dev.SumSquares(m.Gradients()) != 0 {
			t.Error("the backward pass has begun")
		}
		return broken
	}
	m.dev.Zero(m.Gradients())
	if _, err := s.Run(in); !errors.Is(err, broken) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if err := s.State(after); err != nil || !slices.Equal(before, after) {
		t.Errorf("the state is another (%v)", err)
	}
	in.BeforeBackward = func() error { calls++; return nil }
	first := run(t, s, in)
	if calls != 2 {
		t.Errorf("%d calls in two runs", calls)
	}
	if err := s.SetState(before); err != nil {
		t.Fatal(err)
	}
	if second := run(t, s, in); second != first {
		t.Errorf("loss %v after an error, then %v", first, second)
	}
}

// TestEvaluateInParts evaluates a long text in chunks of every size: loss and state equal those
// without chunks.
func TestEvaluateInParts(t *testing.T) {
	const T, B = 7, 2
	cfg := shapes()["lstm/2/tied-projected"]
	var want float64
	var wantState []float32
	for k := range T + 1 {
		cfg.Recompute = k
		m := newModel(t, cfg)
		e, err := m.NewEvaluator(T, B)
		if err != nil {
			t.Fatal(err)
		}
		in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, cfg.Vocab)
		got, _, err := e.Evaluate(in.Inputs, in.Targets)
		state := make([]float32, B*cfg.StateSize())
		if err := errors.Join(err, e.State(state)); err != nil {
			t.Fatal(err)
		}
		e.Close()
		if k == 0 {
			want, wantState = got, state
		}
		if math.Abs(got-want) > 1e-6*want || relative(state, wantState) > 1e-6 {
			t.Errorf("K %d: loss %v and state %v, want %v and %v", k, got, state, want, wantState)
		}
	}
}

// BenchmarkRecompute measures a long segment with all activations and with fewer.
func BenchmarkRecompute(b *testing.B) {
	const T, B = 1024, 8
	for _, k := range []int{0, 128, 32} {
		b.Run(fmt.Sprintf("K%d", k), func(b *testing.B) {
			cfg := benchmarks()["stack"]
			cfg.Recompute = k
			m := newModel(b, cfg)
			s := newSegment(b, m, T, B)
			in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, cfg.Vocab)
			for b.Loop() {
				run(b, s, in)
			}
			b.ReportMetric(float64(b.N)*T*B/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
