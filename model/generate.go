package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

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

// Generator continues up to B texts side by side, one token of each at a time. Generate may be
// called concurrently, the other methods not.
type Generator struct {
	inference *inference
	state     state    // of B lanes
	logits    logits   // of B rows
	free      chan int // lanes without a text

	mu         sync.Mutex // guards what follows, and the texts
	lanes      []*writing // nil: the lane is free, or about to get a text
	tokens     []int32    // [B]: what the lanes read in a step
	host       []float32  // [B, V]
	chooser    chooser
	recordings forwards
}

// writing is a text of a Generator.
type writing struct {
	lane   int
	unread []int32 // what the model reads next
	left   int     // tokens to choose
	how    Sampling
	rng    *rand.Rand
	chosen []chosen // and not yet returned
	err    error
}

// chosen is a token, and the natural logarithm of its probability.
type chosen struct {
	token int32
	logp  float64
}

// NewGenerator makes a generator of up to B texts at a time. The model's parameters must not change
// after its first step. It fails if the device lacks memory. Close frees it.
func (m *Model) NewGenerator(B int) (*Generator, error) {
	v := m.config.Vocab
	g := &Generator{inference: newInference(m, 1, B), tokens: make([]int32, B),
		host: make([]float32, B*v), recordings: newForwards(m), chooser: newChooser(v),
		lanes: make([]*writing, B), free: make(chan int, B)}
	for lane := range B {
		g.free <- lane
	}
	if err := g.allocate(B); err != nil {
		g.Close()
		return nil, fmt.Errorf("model: a generator of %s: %w", m.config.shape(), err)
	}
	return g, nil
}

// allocate allocates memory for a step of B lanes.
func (g *Generator) allocate(B int) (err error) {
	defer compute.Catch(&err)
	m := g.inference.model
	g.inference.allocate(B)
	for _, kernel := range g.inference.kernels {
		if keeper, ok := kernel.(compute.WeightKeeper); ok {
			keeper.KeepWeights()
		}
	}
	g.state = newState(m, B)
	g.logits.allocate(m, B)
	return nil
}

// Generate reads the prefix, at least one token, from a zero state, and returns n tokens that
// follow. It waits while B other calls run. A cancelled ctx ends it with the tokens so far and
// ctx's error.
//
// Concurrent calls share the work: whichever call gets the lock runs a step for all of them. So a
// slow Sampling.Each holds up no other call.
func (g *Generator) Generate(ctx context.Context, prefix []int32, n int, s Sampling) (
	text []int32, err error) {
	if err := s.check(prefix, n); err != nil {
		return nil, err
	}
	if err := g.inference.model.checkIDs("prefix", prefix, 0); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	t := &writing{unread: slices.Clone(prefix), left: n, how: s,
		rng: rand.New(rand.NewPCG(s.Seed, sampleStream))}
	select {
	case t.lane = <-g.free:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer g.leave(t)
	if err := g.begin(t); err != nil {
		return nil, err
	}
	for len(text) < n {
		if err := ctx.Err(); err != nil {
			return text, err
		}
		ready, err := g.advance(t)
		for _, c := range ready {
			text = append(text, c.token)
			if s.Each == nil {
				continue
			}
			if err := s.Each(c.token, c.logp); err != nil {
				return text, err
			}
		}
		if err != nil {
			return text, err
		}
	}
	return text, nil
}

// begin gives a text its lane, with a zero state.
func (g *Generator) begin(t *writing) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer compute.Catch(&err)
	g.lanes[t.lane] = t
	g.state.zeroLane(t.lane)
	return nil
}

// leave frees a text's lane, unless it is free.
func (g *Generator) leave(t *writing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.release(t)
}

// release is leave for those who have the lock.
func (g *Generator) release(t *writing) {
	if g.lanes[t.lane] == t {
		g.lanes[t.lane] = nil
		g.free <- t.lane
	}
}

// advance returns the tokens of a text that other calls have chosen meanwhile. If there are none,
// it runs a step.
func (g *Generator) advance(t *writing) (ready []chosen, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(t.chosen) == 0 && t.err == nil {
		if err := g.step(); err != nil {
			return nil, err
		}
	}
	ready, t.chosen = t.chosen, nil
	return ready, t.err
}

// step lets each text read a token, and then choose one if it has read all of its prefix. A free
// lane reads token 0. A text that is complete, or failed, leaves its lane.
func (g *Generator) step() (err error) {
	defer compute.Catch(&err)
	m := g.inference.model
	predict := false
	for lane, t := range g.lanes {
		g.tokens[lane] = 0
		if t != nil {
			g.tokens[lane] = t.unread[0]
			predict = predict || len(t.unread) == 1
		}
	}
	if err := g.read(predict); err != nil {
		return err
	}
	v := m.config.Vocab
	if predict {
		g.logits.download(g.host, len(g.tokens))
	}
	for lane, t := range g.lanes {
		if t == nil {
			continue
		}
		if t.unread = t.unread[1:]; len(t.unread) > 0 {
			continue
		}
		var c chosen
		if c, t.err = g.chooser.next(g.host[lane*v:][:v], t.how, t.rng); t.err == nil {
			t.chosen, t.unread = append(t.chosen, c), append(t.unread, c.token)
			t.left--
		}
		if t.err != nil || t.left == 0 {
			g.release(t)
		}
	}
	return nil
}

// read advances the states over the lanes' tokens. If predict is set, it also computes the logits
// of the next ones.
func (g *Generator) read(predict bool) error {
	recordings := g.recordings.of(predict)
	recordings.begin(setting{}, false)
	_, err := recordings.do(part{}, func() (copies, error) {
		x := g.inference.run(g.tokens, g.state)
		if predict {
			g.logits.compute(x, len(g.tokens))
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
	g.logits.close()
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
		next, err := c.next(of, s, rng)
		if err != nil {
			return text[len(prefix):], err
		}
		text = append(text, next.token)
		if s.Each == nil {
			continue
		}
		if err := s.Each(next.token, next.logp); err != nil {
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

// next draws a token. Its probability is computed if s.Each wants it.
func (c *chooser) next(logits []float32, s Sampling, rng *rand.Rand) (chosen, error) {
	token, err := c.choose(logits, s, rng)
	if err != nil || s.Each == nil {
		return chosen{token: token}, err
	}
	most, sum := float64(slices.Max(logits)), 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - most)
	}
	return chosen{token, float64(logits[token]) - most - math.Log(sum)}, nil
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
