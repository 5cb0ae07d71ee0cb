package translate

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/corpus"
	"rondo/model"
)

// testMarks leave the tokens 3 and 4 for text.
var testMarks = marks{sourceEnd: 1, begin: 1, end: 2}

const testVocab = 5

// table is a decoder whose probabilities are a function of the source and of the tokens so far:
// random numbers, plus a bias for each token.
type table struct {
	bias    [testVocab]float64
	seed    uint64
	sources [][]int32 // of each row; nil: empty
	tokens  [][]int32 // of each row, the first begins it
}

func (d *table) Close() {}

func (d *table) Encode(source, lengths []int32) error {
	rows := len(d.sources)
	if len(lengths) != rows || len(source)%rows != 0 {
		return errors.New("wrong shapes")
	}
	for row, length := range lengths {
		d.sources[row], d.tokens[row] = nil, nil
		for i := range int(length) {
			d.sources[row] = append(d.sources[row], source[i*rows+row])
		}
	}
	return nil
}

func (d *table) Step(previous, from []int32, next []float32) error {
	sources, tokens := slices.Clone(d.sources), slices.Clone(d.tokens)
	for row, was := range from {
		d.sources[row] = sources[was]
		d.tokens[row] = append(slices.Clone(tokens[was]), previous[row])
		copy(next[row*testVocab:][:testVocab], d.next(d.sources[row], d.tokens[row][1:]))
	}
	return nil
}

// next are the log probabilities of what follows the tokens.
func (d *table) next(source, tokens []int32) []float32 {
	at := d.seed
	for _, id := range slices.Concat(source, tokens) {
		at = rand.NewPCG(at, uint64(id)).Uint64()
	}
	rng := rand.New(rand.NewPCG(at, uint64(len(tokens))))
	logits, sum := [testVocab]float64{}, 0.0
	for i := range logits {
		logits[i] = 2*rng.NormFloat64() + d.bias[i]
		sum += math.Exp(logits[i])
	}
	var logs []float32
	for _, x := range logits {
		logs = append(logs, float32(x-math.Log(sum)))
	}
	return logs
}

// search finds the translations of sources.
func (d *table) search(t *testing.T, cfg SearchConfig, sources ...[]int32) []Hypothesis {
	t.Helper()
	d.sources = make([][]int32, cfg.Sentences*cfg.Beam)
	d.tokens = make([][]int32, cfg.Sentences*cfg.Beam)
	found, err := searchWith(d, testVocab, testMarks, cfg).Translate(t.Context(), sources)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// same compares translations, without their rows.
func same(a, b Hypothesis) bool {
	return slices.Equal(a.Tokens, b.Tokens) && a.LogProbability == b.LogProbability &&
		a.Score == b.Score
}

// all calls use with every translation of at most most tokens.
func (d *table) all(source, tokens []int32, log float64, most int, use func(Hypothesis, int)) {
	if len(tokens) == most {
		use(Hypothesis{Tokens: tokens, LogProbability: log}, most)
		return
	}
	for token, more := range d.next(append(slices.Clone(source), testMarks.sourceEnd), tokens) {
		switch id, log := int32(token), log+float64(more); id {
		case testMarks.begin:
		case testMarks.end:
			use(Hypothesis{Tokens: tokens, LogProbability: log}, len(tokens)+1)
		default:
			d.all(source, append(slices.Clone(tokens), id), log, most, use)
		}
	}
}

// best is the translation with the largest score of all.
func (d *table) best(source []int32, cfg SearchConfig) (best Hypothesis) {
	best.Score = math.Inf(-1)
	d.all(source, nil, 0, cfg.Target, func(h Hypothesis, length int) {
		h.Score = h.LogProbability / math.Pow(float64(length), cfg.Penalty)
		if h.Score > best.Score {
			best = h
		}
	})
	return best
}

// greedy takes the likeliest token at each step.
func (d *table) greedy(source []int32, most int) (tokens []int32) {
	for len(tokens) < most {
		next := d.next(append(slices.Clone(source), testMarks.sourceEnd), tokens)
		next[testMarks.begin] = float32(math.Inf(-1))
		id := int32(slices.Index(next, slices.Max(next)))
		if id == testMarks.end {
			break
		}
		tokens = append(tokens, id)
	}
	return tokens
}

// A beam of 1 is greedy. One with room for all translations finds the best, whatever the penalty of
// its length. The tokens of a translation never include one that begins it, likely as it is.
func TestSearch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	better, cut := 0, 0
	for round := range 200 {
		d := &table{bias: [testVocab]float64{1: 3, 2: rng.NormFloat64()}, seed: uint64(round)}
		source := randomTokens(rng, 4)
		cfg := SearchConfig{Sentences: 1, Beam: 1, Source: 4, Target: 1 + rng.IntN(3),
			Penalty: []float64{0, 0.75, 1, MaxPenalty}[round%4]}
		greedy := d.search(t, cfg, source)[0]
		if want := d.greedy(source, cfg.Target); !slices.Equal(greedy.Tokens, want) {
			t.Errorf("greedy: %v, want %v", greedy.Tokens, want)
		}
		cfg.Beam = MaxBeam // there are at most 40
		wide, want := d.search(t, cfg, source)[0], d.best(source, cfg)
		if !same(wide, want) {
			t.Errorf("penalty %v: %+v, want %+v", cfg.Penalty, wide, want)
		}
		if wide.Score > greedy.Score {
			better++
		}
		if len(wide.Tokens) == cfg.Target {
			cut++
		}
	}
	if better < 20 || cut < 20 || cut > 180 {
		t.Errorf("of 200 searches %d beat the greedy one, and %d ended at the most tokens", better,
			cut)
	}
}

// randomTokens are 1 to most tokens of text.
func randomTokens(rng *rand.Rand, most int) []int32 {
	tokens := make([]int32, 1+rng.IntN(most))
	for i := range tokens {
		tokens[i] = 3 + rng.Int32N(2)
	}
	return tokens
}

// beam is the search with all continuations of all hypotheses in one list.
func (d *table) beam(source []int32, cfg SearchConfig) Hypothesis {
	var done []Hypothesis
	source = append(slices.Clone(source), testMarks.sourceEnd)
	alive := []Hypothesis{{}}
	for range cfg.Target {
		var all []Hypothesis
		for _, h := range alive {
			for token, log := range d.next(source, h.Tokens) {
				if int32(token) != testMarks.begin {
					all = append(all, Hypothesis{Tokens: append(slices.Clone(h.Tokens),
						int32(token)), LogProbability: h.LogProbability + float64(log)})
				}
			}
		}
		slices.SortStableFunc(all, func(a, b Hypothesis) int {
			return cmp.Compare(b.LogProbability, a.LogProbability)
		})
		alive = nil
		for ; len(alive) < cfg.Beam && len(done) < cfg.Beam && len(all) > 0; all = all[1:] {
			h, n := all[0], len(all[0].Tokens)
			if h.Tokens[n-1] != testMarks.end {
				alive = append(alive, h)
				continue
			}
			h.Tokens, h.Score = h.Tokens[:n-1], h.LogProbability/math.Pow(float64(n), cfg.Penalty)
			done = append(done, h)
		}
		if len(done) == cfg.Beam {
			alive = nil
		}
	}
	for _, h := range alive {
		h.Score = h.LogProbability / math.Pow(float64(cfg.Target), cfg.Penalty)
		done = append(done, h)
	}
	return slices.MaxFunc(done, func(a, b Hypothesis) int { return cmp.Compare(a.Score, b.Score) })
}

// Sentences that are translated together get what each gets alone, with beams of any width.
func TestSearchOfSeveral(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := &table{}
	for round := range 60 {
		d.seed = uint64(round)
		cfg := SearchConfig{Sentences: 6, Beam: 1 + round%5, Penalty: 0.75, Source: 5, Target: 6}
		var sources [][]int32
		for range 1 + rng.IntN(cfg.Sentences) {
			sources = append(sources, randomTokens(rng, cfg.Source))
		}
		together := d.search(t, cfg, sources...)
		cfg.Sentences = 1
		for i, source := range sources {
			if alone := d.search(t, cfg, source); !same(alone[0], together[i]) {
				t.Errorf("beam %d: %+v, alone %+v", cfg.Beam, together[i], alone[0])
			}
			if want := d.beam(source, cfg); !same(together[i], want) {
				t.Errorf("beam %d: %+v, want %+v", cfg.Beam, together[i], want)
			}
		}
		if len(together) != len(sources) {
			t.Errorf("%d translations of %d", len(together), len(sources))
		}
	}
}

// A larger penalty never gives a shorter translation, and a negative one is refused.
func TestLengthPenalty(t *testing.T) {
	longer := 0
	for round := range 50 {
		d := &table{bias: [testVocab]float64{2: 1}, seed: uint64(round)}
		before := -1
		for _, penalty := range []float64{0, 0.5, 1, 2, 4} {
			cfg := SearchConfig{Sentences: 1, Beam: MaxBeam, Penalty: penalty, Source: 1, Target: 3}
			h := d.search(t, cfg, []int32{3})[0]
			length := int(math.Round(math.Pow(h.LogProbability/h.Score, 1/max(penalty, 0.5))))
			if len(h.Tokens) < before || penalty > 0 && length != min(len(h.Tokens)+1, 3) {
				t.Errorf("penalty %v: %+v after one of %d tokens; length %d", penalty, h, before,
					length)
			}
			if before >= 0 && len(h.Tokens) > before {
				longer++
			}
			before = len(h.Tokens)
		}
	}
	if longer == 0 {
		t.Error("no penalty makes a translation longer")
	}
	for _, c := range []SearchConfig{{Beam: 0}, {Beam: MaxBeam + 1}, {Beam: 1, Penalty: -1},
		{Beam: 1, Penalty: MaxPenalty + 1}, {Beam: 1, Penalty: math.NaN()}} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// A search ends with its context.
func TestSearchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := &table{sources: make([][]int32, 1), tokens: make([][]int32, 1)}
	s := searchWith(d, testVocab, testMarks, SearchConfig{Sentences: 1, Beam: 1, Source: 1,
		Target: 1})
	if _, err := s.Translate(ctx, [][]int32{{3}}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The log probability of a translation is the negative loss of its pair, of every network.
func TestSearchOfNetworks(t *testing.T) {
	device, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(device.Close)
	for attention, name := range model.AttentionNames() {
		for start, context := range model.ContextNames() {
			c := model.TranslatorConfig{Cell: compute.LSTM, SourceVocab: testVocab,
				TargetVocab: testVocab, Embed: 3, Hidden: 4, Layers: 2, Bidirectional: true,
				Dropout: 0.3, Context: model.Context(start),
				Attention: model.AttentionKind(attention), Seed: 7}
			t.Run(name+" "+context, func(t *testing.T) {
				m, err := model.NewTranslator(c, device)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(m.Close)
				checkProbabilities(t, m)
			})
		}
	}
}

// checkProbabilities translates some sentences together.
func checkProbabilities(t *testing.T, m *model.Translator) {
	t.Helper()
	cfg := SearchConfig{Sentences: 3, Beam: 4, Source: 5, Target: 4}
	s, err := newSearcher(m, testMarks, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	rng := rand.New(rand.NewPCG(5, 6))
	sources := [][]int32{randomTokens(rng, 5), randomTokens(rng, 5), randomTokens(rng, 5)}
	found, err := s.Translate(t.Context(), sources)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range found {
		want := -loss(t, m, sources[i], h.Tokens, cfg.Target)
		if math.Abs(h.LogProbability-want) > 1e-4 {
			t.Errorf("%+v has log probability %v", h, want)
		}
	}
}

// loss is that of a pair. A target of most tokens has no end.
func loss(t *testing.T, m *model.Translator, source, target []int32, most int) float64 {
	t.Helper()
	labels := slices.Clone(target)
	if len(target) < most {
		labels = append(labels, testMarks.end)
	}
	p, err := m.NewPass(len(source)+1, len(labels), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in := model.Pairs{SourceSteps: len(source) + 1, TargetSteps: len(labels),
		Source: append(slices.Clone(source), testMarks.sourceEnd), Targets: labels,
		SourceLengths: []int32{int32(len(source) + 1)},
		Inputs:        append([]int32{testMarks.begin}, target...)[:len(labels)]}
	sum, err := p.Loss(in)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// A vocabulary without the marks is refused.
func TestMarks(t *testing.T) {
	text, err := corpus.NewVocabulary([]string{corpus.Unknown, "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewSearcher(nil, text, text, SearchConfig{}); err == nil {
		t.Error("accepted")
	}
}
