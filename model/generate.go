package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
)

// sampleStream is the random stream of sampled tokens, distinct from those of initial weights.
const sampleStream = 0x73616d706c65 // "sample"

// Sampling configures the choice of the next token.
type Sampling struct {
	// Temperature divides the logits before the softmax; it must be positive unless Greedy.
	Temperature float64
	// TopK limits the choice to the most probable tokens; 0: no limit.
	TopK int
	// TopP limits the choice to the most probable tokens whose probabilities, at this temperature
	// and among the TopK, add up to it: nucleus sampling (Holtzman et al. 2020). 0 or 1: no limit.
	TopP float64
	// Greedy takes the most probable token, and ignores Temperature, TopK, TopP and Seed.
	Greedy bool
	// Seed determines the random draws.
	Seed uint64
	// Each, unless nil, is called with each token that is chosen, and the natural logarithm of the
	// probability that the model gives it (at temperature 1, among all tokens). An error ends the
	// text.
	Each func(token int32, logProbability float64) error
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (s Sampling) Validate() error {
	if !s.Greedy && !(s.Temperature > 0 && s.Temperature <= math.MaxFloat64) {
		return fmt.Errorf("--temperature %v: must be positive and finite (--greedy takes the most"+
			" probable token)", s.Temperature)
	}
	if s.TopK < 0 {
		return fmt.Errorf("--top-k %d: must be at least 0", s.TopK)
	}
	if !(s.TopP >= 0 && s.TopP <= 1) {
		return fmt.Errorf("--top-p %v: must be a probability, in [0, 1]", s.TopP)
	}
	return nil
}

// check returns an error for a text that cannot be continued so.
func (s Sampling) check(prefix []int32, n int) error {
	switch {
	case len(prefix) == 0:
		return errors.New("--prefix is empty: text is continued from at least one token")
	case n < 0:
		return fmt.Errorf("--tokens %d: must be at least 0", n)
	}
	return s.Validate()
}

// Generator continues text, one token at a time.
type Generator struct {
	inference *inference
	state     state
	token     [1]int32
	logits    []float32 // [V], device memory
	host      []float32 // [V]
	chooser   chooser

	recordings forwards
}

// NewGenerator makes a generator. Each call to it uses the model's current parameters. It fails if
// the device lacks memory. Close frees it.
func (m *Model) NewGenerator() (*Generator, error) {
	v := m.config.Vocab
	g := &Generator{inference: newInference(m, 1, 1), host: make([]float32, v),
		recordings: newForwards(m),
		chooser:    newChooser(v)}
	if err := g.allocate(); err != nil {
		g.Close()
		return nil, fmt.Errorf("model: a generator of %s: %w", m.config.shape(), err)
	}
	return g, nil
}

// allocate allocates memory for a step of one lane.
func (g *Generator) allocate() (err error) {
	defer compute.Catch(&err)
	m := g.inference.model
	g.inference.allocate(1)
	g.state = newState(m, 1)
	g.logits = m.dev.Alloc(m.config.Vocab)
	return nil
}

// Generate reads the prefix, at least one token, from a zero state, and returns n tokens that
// follow. A cancelled ctx ends it with the tokens so far and ctx's error.
func (g *Generator) Generate(ctx context.Context, prefix []int32, n int, s Sampling) (
	text []int32, err error) {
	if err := s.check(prefix, n); err != nil {
		return nil, err
	}
	m := g.inference.model
	if err := m.checkIDs("prefix", prefix, 0); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(s.Seed, sampleStream))
	g.state.zero()
	defer compute.Catch(&err)
	for i := 0; len(text) < n; i++ {
		if err := ctx.Err(); err != nil {
			return text, err
		}
		if i < len(prefix) {
			g.token[0] = prefix[i]
		} else {
			g.token[0] = text[len(text)-1]
		}
		predict := i >= len(prefix)-1
		if err := g.read(predict); err != nil {
			return text, err
		}
		if !predict {
			continue
		}
		m.dev.Download(g.host, g.logits)
		if text, err = g.chooser.extend(text, g.host, s, rng); err != nil {
			return text, err
		}
	}
	return text, nil
}

// read advances the state over the token. If predict is set, it also computes the logits of the
// next token.
func (g *Generator) read(predict bool) error {
	m, w, recordings := g.inference.model, g.inference.weights, g.recordings.of(predict)
	recordings.begin(setting{}, false)
	_, err := recordings.do(part{}, func() (copies, error) {
		x := g.inference.run(g.token[:], g.state)
		if predict {
			m.dev.Gemm(false, true, 1, m.config.Vocab, len(x), 1, x, w.output, 0, g.logits)
			m.dev.AddBias(g.logits, w.bias)
		}
		return copies{}, nil
	})
	if err == nil {
		recordings.end(setting{})
	}
	return err
}

// Close frees the generator's memory, not the model's.
func (g *Generator) Close() {
	g.recordings.close()
	g.inference.model.dev.Free(g.logits)
	g.logits = nil
	g.inference.close()
	g.state.close()
}

// Continue returns n tokens that follow the prefix, at least one token. logits gets the text so far
// and returns the logits of the next token, [V]. A cancelled ctx ends it with the tokens so far and
// ctx's error.
func Continue(
	ctx context.Context, prefix []int32, n, V int, s Sampling,
	logits func(text []int32) ([]float32, error),
) ([]int32, error) {
	if err := s.check(prefix, n); err != nil {
		return nil, err
	}
	c, rng, text := newChooser(V), rand.New(rand.NewPCG(s.Seed, sampleStream)), slices.Clone(prefix)
	for range n {
		if err := ctx.Err(); err != nil {
			return text[len(prefix):], err
		}
		of, err := logits(text)
		if err != nil {
			return text[len(prefix):], err
		}
		if text, err = c.extend(text, of, s, rng); err != nil {
			return text[len(prefix):], err
		}
	}
	return text[len(prefix):], nil
}

// chooser picks a token from logits.
type chooser struct {
	order  []int32   // tokens, sorted by probability if TopK applies
	weight []float64 // of order[i]
}

func newChooser(vocab int) chooser {
	return chooser{order: make([]int32, vocab), weight: make([]float64, vocab)}
}

// extend appends a token to the text, and reports it to s.Each.
func (c *chooser) extend(
	text []int32, logits []float32, s Sampling, rng *rand.Rand,
) ([]int32, error) {
	next, err := c.choose(logits, s, rng)
	if err != nil {
		return text, err
	}
	text = append(text, next)
	if s.Each == nil {
		return text, nil
	}
	most, sum := float64(slices.Max(logits)), 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - most)
	}
	return text, s.Each(next, float64(logits[next])-most-math.Log(sum))
}

// choose draws a token from softmax(logits / temperature), in float64, among the TopK largest, and
// of these the fewest whose probabilities add up to TopP. Of equal logits the smaller token comes
// first, so ties are resolved alike everywhere.
func (c *chooser) choose(logits []float32, s Sampling, rng *rand.Rand) (int32, error) {
	best := 0
	for i, x := range logits {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return 0, fmt.Errorf("model: the logit of token %d is %v: the weights have diverged",
				i, x)
		}
		if x > logits[best] {
			best = i
		}
	}
	if s.Greedy {
		return int32(best), nil
	}
	for i := range c.order {
		c.order[i] = int32(i)
	}
	kept := len(logits)
	if s.TopK > 0 {
		kept = min(kept, s.TopK)
	}
	nucleus := s.TopP > 0 && s.TopP < 1
	if kept < len(logits) || nucleus {
		slices.SortFunc(c.order, func(a, b int32) int {
			return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b))
		})
	}
	sum := 0.0
	for i, token := range c.order[:kept] {
		c.weight[i] = math.Exp((float64(logits[token]) - float64(logits[best])) / s.Temperature)
		sum += c.weight[i]
	}
	if nucleus {
		kept, sum = c.nucleus(kept, s.TopP*sum)
	}
	// The running sum ends at exactly sum, which is more than u, so it always finds a token, and
	// never one of weight zero.
	u, running := rng.Float64()*sum, 0.0
	for i, token := range c.order[:kept] {
		if running += c.weight[i]; u < running {
			return token, nil
		}
	}
	panic(fmt.Sprintf("model: drew %v of a total weight of %v", u, sum))
}

// nucleus returns how many of the first weights add up to at least mass, and their sum.
func (c *chooser) nucleus(kept int, mass float64) (int, float64) {
	sum := 0.0
	for i, weight := range c.weight[:kept] {
		if sum += weight; sum >= mass {
			return i + 1, sum
		}
	}
	return kept, sum
}
