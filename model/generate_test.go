package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/compute"
)

// TestGenerateGreedy compares greedy text with the twin's most probable token, computed from the
// beginning for each token.
func TestGenerateGreedy(t *testing.T) {
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) {
			cfg.Init = Init{Kind: Normal, Value: 1} // well separated logits
			m := newModel(t, cfg)
			g, err := m.NewGenerator(1)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			text := []int32{2, 5, 1}
			w := newTwin(m)
			for range 6 {
				best, least := int32(-1), math.Inf(1)
				for token := range int32(cfg.Vocab) {
					in := SegmentInput{Inputs: text, Targets: slices.Repeat([]int32{-1}, len(text))}
					in.Targets[len(text)-1] = token
					loss, _ := w.loss(in, len(text), 1, make([]float64, cfg.StateSize()), false)
					if loss < least {
						best, least = token, loss
					}
				}
				text = append(text, best)
			}
			got, err := g.Generate(t.Context(), text[:3], 6, Sampling{Greedy: true})
			if err != nil || !slices.Equal(got, text[3:]) {
				t.Errorf("got %v, want %v (%v)", got, text[3:], err)
			}
		})
	}
}

// TestGenerateSeed checks that text depends on the seed alone, and restarts at each call.
func TestGenerateSeed(t *testing.T) {
	m := newModel(t, shapes()["lstm/2/embed"])
	g, err := m.NewGenerator(1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	text := func(seed uint64) []int32 {
		got, err := g.Generate(t.Context(), []int32{1}, 40, Sampling{Temperature: 1, Seed: seed})
		if err != nil || len(got) != 40 {
			t.Fatalf("%d tokens: %v", len(got), err)
		}
		return got
	}
	if a := text(1); !slices.Equal(a, text(1)) || slices.Equal(a, text(2)) {
		t.Error("the text does not go by the seed")
	}
}

func TestGenerateErrors(t *testing.T) {
	m := newModel(t, shapes()["gru/1/one-hot"])
	g, err := m.NewGenerator(1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for want, c := range map[string]struct {
		prefix []int32
		n      int
		s      Sampling
	}{
		"--prefix is empty":     {nil, 1, Sampling{Greedy: true}},
		"prefix 1 is token 6":   {[]int32{0, 6}, 1, Sampling{Greedy: true}},
		"--tokens -1":           {[]int32{0}, -1, Sampling{Greedy: true}},
		"--temperature 0: must": {[]int32{0}, 1, Sampling{}},
		"--temperature NaN":     {[]int32{0}, 1, Sampling{Temperature: math.NaN()}},
		"--top-p 1.5":           {[]int32{0}, 1, Sampling{Temperature: 1, TopP: 1.5}},
		"--top-k -2":            {[]int32{0}, 1, Sampling{Temperature: 1, TopK: -2}},
	} {
		if _, err := g.Generate(t.Context(), c.prefix, c.n, c.s); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Generate(ctx, []int32{0}, 1, Sampling{Greedy: true}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	x, _, err := m.Param("output.bias")
	if err != nil {
		t.Fatal(err)
	}
	m.dev.Upload(x, []float32{0, float32(math.Inf(1)), 0, 0, 0, 0})
	if _, err := g.Generate(t.Context(), []int32{0}, 1, Sampling{Greedy: true}); err == nil ||
		!strings.Contains(err.Error(), "token 1 is +Inf") {
		t.Errorf("weights that are not finite: %v", err)
	}
}

// TestChoose checks frequencies against softmax(logits / temperature) over the top K and the top P
// of these. Ties go to the smaller token.
func TestChoose(t *testing.T) {
	const draws = 40000
	logits := []float32{1, 3, 2, 3, -1, 2}
	c := chooser{order: make([]int32, len(logits)), weight: make([]float64, len(logits))}
	for _, s := range []Sampling{{Temperature: 1}, {Temperature: 0.5}, {Temperature: 3},
		{Temperature: 1, TopK: 1}, {Temperature: 2, TopK: 3}, {Temperature: 1, TopK: 6},
		{Temperature: 1, TopP: 0.5}, {Temperature: 1, TopK: 4, TopP: 0.95},
		{Temperature: 1, TopP: 1},
		{Temperature: 1e-9}, {Greedy: true}} {
		allowed := []int{1, 3, 2, 5, 0, 4} // by logit, then by token
		if s.TopK > 0 {
			allowed = allowed[:s.TopK]
		}
		want, sum := make([]float64, len(logits)), 0.0
		for _, token := range allowed {
			want[token] = math.Exp((float64(logits[token]) - 3) / s.Temperature)
			sum += want[token]
		}
		if s.TopP > 0 {
			mass, before := s.TopP*sum, 0.0
			for _, token := range allowed {
				if before >= mass {
					sum -= want[token]
					want[token] = 0
				} else {
					before += want[token]
				}
			}
		}
		if s.Greedy {
			want, sum = []float64{0, 1, 0, 0, 0, 0}, 1
		}
		rng := rand.New(rand.NewPCG(1, 2))
		got := make([]float64, len(logits))
		for range draws {
			token, err := c.choose(logits, s, rng)
			if err != nil {
				t.Fatal(err)
			}
			got[token]++
		}
		for token := range got {
			p := want[token] / sum
			if math.Abs(got[token]-p*draws) > 5*math.Sqrt(p*(1-p)*draws) {
				t.Errorf("%+v: token %d was drawn %v times, want %.1f", s, token, got[token],
					p*draws)
			}
		}
	}
}

// TestLogProbabilities compares what Each hears with the softmax of the logits.
func TestLogProbabilities(t *testing.T) {
	logits := []float32{0.5, -1, 2}
	sum := math.Exp(0.5) + math.Exp(-1) + math.Exp(2)
	stop := errors.New("stop")
	heard := 0
	s := Sampling{Temperature: 3, Each: func(token int32, logProbability float64) error {
		heard++
		want := float64(logits[token]) - math.Log(sum)
		if math.Abs(logProbability-want) > 1e-12 {
			t.Errorf("token %d: %v, want %v", token, logProbability, want)
		}
		if heard == 5 {
			return stop
		}
		return nil
	}}
	text, err := Continue(t.Context(), []int32{0}, 9, len(logits), s,
		func([]int32) ([]float32, error) { return logits, nil })
	if !errors.Is(err, stop) || len(text) != 5 || heard != 5 {
		t.Errorf("%v, %v after %d tokens", text, err, heard)
	}
}

// TestGenerateTogether compares texts that are generated side by side with the same ones generated
// one after the other. More calls run than there are lanes, so lanes are reused, and some calls are
// cancelled.
func TestGenerateTogether(t *testing.T) {
	const lanes, calls, n = 3, 24, 12
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) {
			m := newModel(t, cfg)
			alone, err := m.NewGenerator(lanes)
			if err != nil {
				t.Fatal(err)
			}
			defer alone.Close()
			together, err := m.NewGenerator(lanes)
			if err != nil {
				t.Fatal(err)
			}
			defer together.Close()
			prefix := func(i int) []int32 { return []int32{1, 2, 0, 3, 1}[:1+i%5] }
			var want [calls][]int32
			for i := range want {
				want[i], err = alone.Generate(t.Context(), prefix(i), n,
					Sampling{Temperature: 1, Seed: uint64(i)})
				if err != nil {
					t.Fatal(err)
				}
			}
			var group sync.WaitGroup
			for i := range calls {
				group.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					s, most := Sampling{Temperature: 1, Seed: uint64(i)}, n
					if i%4 == 3 {
						most = n / 2
					}
					tokens := 0
					s.Each = func(_ int32, logp float64) error {
						if tokens++; tokens == most && most < n {
							cancel()
						}
						if !(logp < 0) {
							t.Errorf("call %d: a log-probability of %v", i, logp)
						}
						return nil
					}
					got, err := together.Generate(ctx, prefix(i), n, s)
					if most == n && err != nil || len(got) < most {
						t.Errorf("call %d: %d tokens of %d: %v", i, len(got), most, err)
					} else if !slices.Equal(got, want[i][:len(got)]) {
						t.Errorf("call %d: %v together, %v alone", i, got, want[i])
					}
				})
			}
			group.Wait()
		})
	}
}

// BenchmarkGenerate measures a step of several texts beside a step of one, and beside the bound
// that memory sets: how long the device takes to read the parameters once, by SumSquares.
func BenchmarkGenerate(b *testing.B) {
	for _, hidden := range []int{256, 512, 1024, 2048} {
		m := newModel(b, Config{Cell: compute.LSTM, Vocab: 100, Hidden: hidden, Layers: 2,
			Seed: 1})
		for _, lanes := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("H%d/%d", hidden, lanes), func(b *testing.B) {
				benchmarkGenerate(b, m, lanes)
			})
		}
	}
}

func benchmarkGenerate(b *testing.B, m *Model, lanes int) {
	g, err := m.NewGenerator(lanes)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	var group sync.WaitGroup
	for range lanes {
		group.Go(func() {
			_, err := g.Generate(b.Context(), []int32{1}, b.N, Sampling{Greedy: true})
			if err != nil {
				b.Error(err)
			}
		})
	}
	group.Wait()
	step := b.Elapsed().Seconds() / float64(b.N)
	b.StopTimer()
	const reads = 10
	begin := time.Now()
	for range reads {
		m.Device().SumSquares(m.Params())
	}
	b.ReportMetric(float64(lanes)/step, "tokens/s")
	b.ReportMetric(time.Since(begin).Seconds()/reads/step, "of-reading")
}
