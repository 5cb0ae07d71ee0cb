package translate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"rondo/corpus"
	"rondo/model"
)

// SearchConfig says how translations are searched.
type SearchConfig struct {
	Sentences int // translated at once
	Beam      int // hypotheses of each; 1: greedy
	// Penalty is the exponent of a translation's length, its end included, by which its log
	// probability is divided. 0 prefers short translations. Dive into Deep Learning takes 0.75.
	Penalty float64
	// Source and Target are the most tokens of a source and of a translation, without their ends.
	Source, Target int
}

// Limits of a SearchConfig.
const (
	MaxBeam    = 64
	MaxPenalty = 4
)

// Validate names the flag that is wrong.
func (c SearchConfig) Validate() error {
	if c.Beam < 1 || c.Beam > MaxBeam {
		return fmt.Errorf("--beam %d is not in [1, %d]", c.Beam, MaxBeam)
	}
	if !(c.Penalty >= 0 && c.Penalty <= MaxPenalty) {
		return fmt.Errorf("--length-penalty %v is not in [0, %d]", c.Penalty, MaxPenalty)
	}
	return nil
}

// Hypothesis is a translation, without its end.
type Hypothesis struct {
	Tokens         []int32
	LogProbability float64 // its end included, unless it was cut off at Target tokens
	Score          float64 // LogProbability divided by the length's penalty

	row int // of the decoder's last step
}

// Searcher translates by beam search. Hypothesis j of sentence s is row s*K+j of the decoder.
type Searcher struct {
	cfg     SearchConfig
	marks   marks
	decoder decoder
	vocab   int

	previous, from []int32
	next           []float32 // [S*K, V]
	candidates     []candidate
}

// decoder is a model.Decoder.
type decoder interface {
	Encode(source, lengths []int32) error
	Step(previous, from []int32, next []float32) error
	Close()
}

// candidate is a hypothesis with one more token.
type candidate struct {
	parent int // index among the sentence's hypotheses
	token  int32
	log    float64
}

// NewSearcher makes a searcher. source is nil if the sources are vectors. Close frees it.
func NewSearcher(
	m *model.Translator, source, target *corpus.Vocabulary, cfg SearchConfig,
) (*Searcher, error) {
	marks, err := newMarks(source, target)
	if err != nil {
		return nil, err
	}
	return newSearcher(m, marks, cfg)
}

func newSearcher(m *model.Translator, marks marks, cfg SearchConfig) (*Searcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d, err := m.NewDecoder(marks.steps(cfg.Source), cfg.Sentences*cfg.Beam)
	if err != nil {
		return nil, err
	}
	return searchWith(d, m.Config().TargetVocab, marks, cfg), nil
}

// searchWith makes a searcher that decodes with d.
func searchWith(d decoder, vocab int, marks marks, cfg SearchConfig) *Searcher {
	rows := cfg.Sentences * cfg.Beam
	return &Searcher{cfg: cfg, marks: marks, decoder: d, vocab: vocab,
		previous: make([]int32, rows), from: make([]int32, rows),
		next: make([]float32, rows*vocab)}
}

// Close frees the searcher.
func (s *Searcher) Close() { s.decoder.Close() }

// Translate returns the best translation that it finds of each source, at most Sentences.
func (s *Searcher) Translate(ctx context.Context, sources [][]int32) ([]Hypothesis, error) {
	if err := s.encode(sources); err != nil {
		return nil, err
	}
	K := s.cfg.Beam
	alive, done := make([][]Hypothesis, len(sources)), make([][]Hypothesis, len(sources))
	for i := range sources {
		alive[i] = []Hypothesis{{row: i * K}}
	}
	for step := 0; step < s.cfg.Target && slices.ContainsFunc(alive, func(h []Hypothesis) bool {
		return len(h) > 0
	}); step++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := s.step(alive); err != nil {
			return nil, err
		}
		for i := range alive {
			alive[i], done[i] = s.extend(alive[i], done[i])
		}
	}
	best := make([]Hypothesis, len(sources))
	for i := range best {
		for _, h := range alive[i] { // cut off
			done[i] = append(done[i], s.scored(h, len(h.Tokens)))
		}
		best[i] = slices.MaxFunc(done[i], func(a, b Hypothesis) int {
			return cmp.Compare(a.Score, b.Score)
		})
	}
	return best, nil
}

// encode reads the sources, each into the first of its rows.
func (s *Searcher) encode(sources [][]int32) error {
	rows, K, steps := len(s.previous), s.cfg.Beam, 1
	lengths := make([]int32, rows)
	for i, source := range sources {
		n := s.marks.steps(len(source))
		lengths[i*K], steps = int32(n), max(steps, n)
	}
	padded := make([]int32, steps*rows)
	for i, source := range sources {
		s.marks.writeSource(padded, source, i*K, rows)
	}
	return s.decoder.Encode(padded, lengths)
}

// step feeds the last token of each hypothesis. Afterwards hypothesis j of sentence i is in row
// i*K+j.
func (s *Searcher) step(alive [][]Hypothesis) error {
	for row := range s.previous {
		s.previous[row], s.from[row] = s.marks.begin, int32(row)
	}
	for i, hypotheses := range alive {
		for j := range hypotheses {
			h, row := &hypotheses[j], i*s.cfg.Beam+j
			if n := len(h.Tokens); n > 0 {
				s.previous[row] = h.Tokens[n-1]
			}
			s.from[row], h.row = int32(h.row), row
		}
	}
	return s.decoder.Step(s.previous, s.from, s.next)
}

// extend replaces a sentence's hypotheses by the K best continuations. Those that end before these
// are done; with K of them the search ends.
func (s *Searcher) extend(alive, done []Hypothesis) (next, ended []Hypothesis) {
	K := s.cfg.Beam
	s.candidates = s.candidates[:0]
	for j, h := range alive {
		s.consider(j, h)
	}
	slices.SortStableFunc(s.candidates, func(a, b candidate) int {
		return cmp.Compare(b.log, a.log)
	})
	for _, c := range s.candidates {
		h := alive[c.parent]
		if c.token == s.marks.end {
			h.LogProbability = c.log
			done = append(done, s.scored(h, len(h.Tokens)+1))
		} else {
			h.Tokens = append(slices.Clone(h.Tokens), c.token)
			h.LogProbability = c.log
			next = append(next, h)
		}
		if len(next) == K || len(done) >= K {
			break
		}
	}
	if len(done) >= K {
		next = nil
	}
	return next, done
}

// consider adds the K+1 best continuations of a hypothesis to the candidates: one of them may be
// its end. No translation begins again.
func (s *Searcher) consider(parent int, h Hypothesis) {
	first := len(s.candidates)
	for token, log := range s.next[h.row*s.vocab:][:s.vocab] {
		if int32(token) == s.marks.begin || math.IsInf(float64(log), -1) {
			continue
		}
		c := candidate{parent, int32(token), h.LogProbability + float64(log)}
		own := s.candidates[first:]
		at, _ := slices.BinarySearchFunc(own, c, func(a, b candidate) int {
			return cmp.Compare(b.log, a.log)
		})
		if at > s.cfg.Beam {
			continue
		}
		s.candidates = slices.Insert(s.candidates, first+at, c)
		s.candidates = s.candidates[:min(len(s.candidates), first+s.cfg.Beam+1)]
	}
}

// scored sets the score of a translation of this length.
func (s *Searcher) scored(h Hypothesis, length int) Hypothesis {
	h.Score = h.LogProbability / math.Pow(float64(max(1, length)), s.cfg.Penalty)
	return h
}
