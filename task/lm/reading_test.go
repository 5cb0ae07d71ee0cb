package lm

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/corpus"
	"rondo/model"
)

const vocab, bptt = 7, 5

// newReader makes a model with regularisers, whose evaluations are without.
func newReader(t *testing.T) *model.Model {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dev.Close)
	m, err := model.New(model.Config{Cell: compute.LSTM, Vocab: vocab, Embed: 4, Hidden: 6,
		Layers: 2, Dropout: 0.5, DropoutWords: 0.3, WeightDrop: 0.5, ActivationL2: 1, Seed: 3}, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func newText(n int) corpus.IDs {
	rng := rand.New(rand.NewPCG(1, 2))
	text := make(corpus.IDs, n)
	for i := range text {
		text[i] = int32(rng.IntN(vocab))
		if i > 2 && rng.IntN(2) == 0 {
			text[i] = text[i-3]
		}
	}
	return text
}

func score(t *testing.T, m *model.Model, r Reading, text corpus.IDs) float64 {
	t.Helper()
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	loss, targets, err := r.Score(t.Context(), m, text, bptt)
	if err != nil || targets != text.Len()-1 {
		t.Fatalf("%d targets of %d tokens: %v", targets, text.Len(), err)
	}
	return loss
}

// probabilities reads a text token by token, in one stream. It returns the network's distribution
// and its last outputs for each target.
func probabilities(t *testing.T, m *model.Model, text corpus.IDs) (p [][]float64, h [][]float32) {
	t.Helper()
	e, err := m.NewEvaluator(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, id := range text[:len(text)-1] {
		hidden, logits := make([]float32, m.OutputWidth()), make([]float32, vocab)
		if err := e.Outputs([]int32{id}, hidden, logits); err != nil {
			t.Fatal(err)
		}
		of, sum := make([]float64, vocab), 0.0
		for i, x := range logits {
			of[i] = math.Exp(float64(x))
			sum += of[i]
		}
		for i := range of {
			of[i] /= sum
		}
		p, h = append(p, of), append(h, hidden)
	}
	return p, h
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-5*math.Abs(want)) {
		t.Errorf("%s: loss %v, want %v", what, got, want)
	}
}

// TestOneStream compares one row with a text that is read token by token: the state is carried over
// all of it.
func TestOneStream(t *testing.T) {
	m, text := newReader(t), newText(83)
	p, _ := probabilities(t, m, text)
	want := 0.0
	for i, of := range p {
		want -= math.Log(of[text[i+1]])
	}
	got := score(t, m, Reading{Rows: 1}, text)
	near(t, "one row", got, want)
	if eight := score(t, m, Reading{}, text); eight == got {
		t.Error("rows have the context of the rows before")
	}
}

// TestNeuralCache compares with equations 2 and 3 of Grave et al. 2017 in float64.
func TestNeuralCache(t *testing.T) {
	m, text := newReader(t), newText(83)
	p, h := probabilities(t, m, text)
	for _, r := range []Reading{
		{Rows: 1, Cache: 9, CacheTheta: 0.7, CacheLambda: 0.3},
		{Rows: 1, Cache: 1000, CacheTheta: 2, CacheLambda: 0.2},
		{Rows: 1, Cache: 9},
	} {
		want := 0.0
		for i := range p {
			var all float64
			of := make([]float64, vocab)
			for j := max(0, i-r.Cache); j < i; j++ {
				dot := 0.0
				for k := range h[i] {
					dot += float64(h[i][k]) * float64(h[j][k])
				}
				of[text[j+1]] += math.Exp(r.CacheTheta * dot)
				all += math.Exp(r.CacheTheta * dot)
			}
			mixed := p[i][text[i+1]]
			if i > 0 {
				mixed = (1-r.CacheLambda)*mixed + r.CacheLambda*of[text[i+1]]/all
			}
			want -= math.Log(mixed)
		}
		near(t, "cache", score(t, m, r, text), want)
	}
}

// TestDynamicEvaluation compares with a loop of passes and updates by hand. The model is the
// trained one afterwards.
func TestDynamicEvaluation(t *testing.T) {
	const rate, decay = 0.3, 0.02
	m, text := newReader(t), newText(1+12*bptt)
	trained := slices.Clone(m.Params())
	plain := score(t, m, Reading{Rows: 1}, text)
	r := Reading{Rows: 1, DynamicRate: rate, DynamicDecay: decay}
	got := score(t, m, r, text)
	if !slices.Equal(m.Params(), trained) {
		t.Error("the parameters have changed")
	}
	r.Cache = 10 // with λ 0 the cache has no part
	near(t, "with a cache", score(t, m, r, text), got)

	m.DropRegularisers()
	s, err := m.NewSegment(bptt, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := 0.0
	for at := 0; at+bptt < len(text); at += bptt {
		loss, err := s.Run(model.SegmentInput{Inputs: text[at:][:bptt], Targets: text[at+1:][:bptt],
			Scale: 1.0 / bptt})
		if err != nil {
			t.Fatal(err)
		}
		want += loss
		params, g := m.Params(), m.Gradients()
		for i := range params {
			params[i] += decay*(trained[i]-params[i]) - rate*g[i]
		}
	}
	near(t, "dynamic", got, want)
	if got == plain {
		t.Error("the parameters followed nothing")
	}
}

// TestDynamicDecayStays: trained parameters that no gradient moves do not drift.
func TestDynamicDecayStays(t *testing.T) {
	m := newReader(t)
	s := &scorer{Reading: Reading{DynamicRate: 1e-30, DynamicDecay: 1e-6}, m: m, T: bptt, rows: 1}
	defer s.close()
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	b := newBatch(bptt)
	for range 3000 {
		if _, err := s.follow(b); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range m.Params() {
		if off := math.Abs(float64(p - s.trained[i])); !(off <= 1e-9) {
			t.Fatalf("a parameter of %v has become %v", s.trained[i], p)
		}
	}
}

// TestLogProbabilities: probabilities below the least float64 have finite logarithms, also in a sum
// with a cache that lacks the token.
func TestLogProbabilities(t *testing.T) {
	got := logSoftmax([]float32{2000, 0, 2000}, 1)
	if want := -2000 - math.Ln2; math.Abs(got-want) > 1e-9 {
		t.Errorf("log softmax %v, want %v", got, want)
	}
	if sum := logSum(got, math.Inf(-1)); sum != got {
		t.Errorf("with a cache that lacks it: %v, want %v", sum, got)
	}
	if sum := logSum(math.Log(0.25), math.Log(0.5)); math.Abs(sum-math.Log(0.75)) > 1e-12 {
		t.Errorf("log(1/4 + 1/2): %v", sum)
	}
}

func TestReadingErrors(t *testing.T) {
	for want, r := range map[string]Reading{
		"--rows -1": {Rows: -1}, "--dynamic NaN": {DynamicRate: math.NaN()},
		"--cache-lambda 2":                    {Cache: 1, CacheLambda: 2},
		"--cache-lambda 1: must be below 1":   {Cache: 1, CacheLambda: 1},
		"--dynamic-decay is for --dynamic":    {DynamicDecay: 0.1},
		"--dynamic-decay 2: must be 0 to 1":   {DynamicRate: 1, DynamicDecay: 2},
		"--cache -5: must be 0 to 1.048576e+": {Cache: -5},
	} {
		if err := r.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
