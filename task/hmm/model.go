// Package hmm is the hidden Markov model of a text as a train.Task, trained by Baum-Welch (Rabiner
// 1989, "A tutorial on hidden Markov models and selected applications in speech recognition";
// Jurafsky and Martin, Speech and Language Processing, appendix A). The parameters are the expected
// counts of starts, transitions and emissions: see task/count. Unlike other sums they are replaced,
// not added to: a step replaces the part of the counts that it reads.
//
// Of this module it may import compute, corpus, model, task/count, task/lm and train.
package hmm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
	"rondo/corpus"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/lm"
	"rondo/train"
)

// Names of the tensors: expected counts.
const (
	startsName      = "hmm.starts"      // [K]: sequences that begin in a state
	transitionsName = "hmm.transitions" // [K, K]: from a state to the next
	emissionsName   = "hmm.emissions"   // [K, V]: a state's tokens
)

// Config is a model's shape and how it is trained.
type Config struct {
	States     int     // K
	Vocabulary int     // V
	Pseudo     float64 // is added to each expected count; above 0
	Seed       uint64
	Tokens     int64 // of the training text; 0: it is not trained
	Sequences  int64 // that the text is cut into
}

// Layout returns the tensors' places in the flat parameters.
func Layout(c Config) []model.View {
	return count.Place(compute.Tensor{Name: startsName, Shape: []int{c.States}},
		compute.Tensor{Name: transitionsName, Shape: []int{c.States, c.States}},
		compute.Tensor{Name: emissionsName, Shape: []int{c.States, c.Vocabulary}})
}

// Model is the expected counts, in a device's memory. It implements count.Model.
type Model struct {
	count.Parameters
	config Config
	flat   []float32 // the parameters that chain is of; nil: none yet
	chain  *chain
}

// New makes a model with random counts. It fails if the device lacks memory. Close frees it.
func New(c Config, device compute.Device) (m *Model, err error) {
	if !(c.Pseudo > 0) || c.States < 1 || c.Vocabulary < 1 {
		return nil, fmt.Errorf("hmm: %d states, %d tokens and a pseudo-count of %v: all must be "+
			"above 0", c.States, c.Vocabulary, c.Pseudo)
	}
	defer compute.Catch(&err)
	m = &Model{Parameters: count.NewParameters(device, Layout(c)), config: c}
	m.Initialise()
	return m, nil
}

// stream is the random stream of initial counts.
const stream = 0x6d61726b6f760000 // "markov"

// Initialise implements count.Model: every row of probabilities is drawn from Dirichlet(1, ..., 1),
// by numbers from an exponential distribution. Equal rows would stay equal. A tensor's counts add
// up, on average, to what the text's will, so that steps that read a part of the text replace the
// same share of each: see Add.
func (m *Model) Initialise() {
	rng, flat := rand.New(rand.NewPCG(m.config.Seed, stream)), make([]float32, len(m.Params()))
	sequences, tokens := max(1, m.config.Sequences), max(2, m.config.Tokens)
	sums := []int64{sequences, max(1, tokens-sequences), tokens} // starts, transitions, emissions
	for k, v := range m.Layout() {
		part := flat[v.Offset:][:v.Len]
		scale := float64(sums[k]) / float64(v.Len) // an exponential's mean is 1
		for i := range part {
			part[i] = float32(scale * rng.ExpFloat64())
		}
	}
	m.Device().Upload(m.Params(), flat)
}

// load makes the probabilities of the current counts. Rounding may leave a count a little below
// zero.
func (m *Model) load() (*chain, error) {
	flat := m.Download()
	if slices.Equal(flat, m.flat) {
		return m.chain, nil
	}
	for i, x := range flat {
		if !(math.Abs(float64(x)) <= math.MaxFloat32) {
			return nil, fmt.Errorf("hmm: parameter %d is %v, and no expected count", i, x)
		}
	}
	views, K := m.Layout(), m.config.States
	rows := func(v model.View, n int) (all [][]float64) {
		for at := v.Offset; at < v.Offset+v.Len; at += n {
			all = append(all, probabilities(flat[at:at+n], m.config.Pseudo))
		}
		return all
	}
	m.chain = newChain(rows(views[0], K)[0], rows(views[1], K), rows(views[2], m.config.Vocabulary))
	m.flat = flat
	return m.chain, nil
}

// probabilities are those of counts, each with the pseudo-count.
func probabilities(counts []float32, pseudo float64) []float64 {
	p, sum := make([]float64, len(counts)), 0.0
	for i, n := range counts {
		p[i] = max(0, float64(n)) + pseudo
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// Context implements count.Model: a window is a sequence of its own.
func (*Model) Context() int { return 0 }

// Score implements count.Model: the negative logarithm of the sequence's probability.
func (m *Model) Score(w count.Window) (train.Score, error) {
	c, err := m.load()
	if err != nil {
		return train.Score{}, err
	}
	f, loss := c.newFilter(), 0.0
	for _, token := range w.Tokens {
		loss -= math.Log(f.read(token))
	}
	return train.Score{Loss: loss, Targets: w.Targets()}, nil
}

// Add implements count.Model. A sequence that is a part n/N of the text adds its expected counts
// minus n/N of the counts before. If a step reads all of the text, the new counts are the expected
// ones, an iteration of Baum-Welch. Otherwise it is stepwise EM with the step's share of the text
// as its rate (Cappé and Moulines 2009, "On-line expectation-maximization algorithm for latent data
// models"; Liang and Klein 2009, "Online EM for unsupervised models").
func (m *Model) Add(w count.Window, from []float32) error {
	c, err := m.load()
	if err != nil {
		return err
	}
	share := float64(w.Targets()) / float64(m.config.Tokens)
	e := c.expect(w.Tokens)
	for i, view := range m.Layout() {
		expected := [][]float64{e.starts, e.transitions.Data, e.emissions}[i]
		for k, n := range expected {
			from[view.Offset+k] += float32(share*float64(m.flat[view.Offset+k]) - n)
		}
	}
	return nil
}

// Counters implements count.Model.
func (*Model) Counters() int { return 0 }

// Metrics implements count.Model: the loss says all.
func (*Model) Metrics(train.Score) []train.Metric { return nil }

// readAhead is the tokens that are read at a time.
const readAhead = 1 << 16

// LogLoss returns the loss of a text as one sequence, summed over its targets, and their number.
// Each token but the first is a target, as for other models of texts.
func (m *Model) LogLoss(
	ctx context.Context, tokens corpus.Tokens,
) (lossSum float64, targets int64, err error) {
	c, err := m.load()
	if err != nil {
		return 0, 0, err
	}
	f, buffer := c.newFilter(), make([]int32, readAhead)
	for at := int64(0); at < tokens.Len(); at += readAhead {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		window := buffer[:min(readAhead, tokens.Len()-at)]
		if err := tokens.ReadTokens(window, at); err != nil {
			return 0, 0, fmt.Errorf("the text from token %d: %w", at, err)
		}
		for i, token := range window {
			if p := f.read(token); at+int64(i) > 0 {
				lossSum -= math.Log(p)
			}
		}
	}
	return lossSum, tokens.Len() - 1, nil
}

// States returns the likeliest path of states behind a text, from 0 (Viterbi 1967).
func (m *Model) States(tokens []int32) ([]int32, error) {
	c, err := m.load()
	if err != nil {
		return nil, err
	}
	path, _ := c.likeliest(tokens)
	return path, nil
}

// NewGenerator makes a generator from the current counts.
func (m *Model) NewGenerator() (lm.Generator, error) {
	c, err := m.load()
	return generator{c, m.config.Vocabulary}, err
}

// generator generates text. It implements lm.Generator.
type generator struct {
	chain *chain
	vocab int
}

// Generate implements lm.Generator.
func (g generator) Generate(
	ctx context.Context, prefix []int32, n int, how model.Sampling,
) ([]int32, error) {
	f, read, logits := g.chain.newFilter(), 0, make([]float32, g.vocab)
	return model.Continue(ctx, prefix, n, g.vocab, how, func(text []int32) ([]float32, error) {
		for ; read < len(text); read++ {
			f.read(text[read])
		}
		for token := range logits {
			logits[token] = float32(math.Log(f.probability(int32(token))))
		}
		return logits, nil
	})
}

// Close implements lm.Generator.
func (generator) Close() {}
