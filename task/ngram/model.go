// Package ngram is the n-gram model as a train.Task: counts of the sequences of N tokens in a text,
// and the probabilities that follow from them (Jurafsky and Martin, Speech and Language Processing,
// chapter 3; Goodfellow, Bengio and Courville, Deep Learning, 12.4.1). The parameters are the
// counts: see task/count.
//
// Of this module it may import compute, corpus, model, task/count, task/lm and train.
package ngram

import (
	"context"
	"fmt"
	"math"

	"rondo/compute"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/lm"
	"rondo/train"
)

// Names of the tensors.
const (
	GramsName  = "ngram.tokens" // [M, N]: the n-grams, sorted
	CountsName = "ngram.counts" // [M]: how often each occurs
)

// Config is a model's shape, and how it makes probabilities of counts.
type Config struct {
	Order      int // N
	Vocabulary int // V
	Grams      int // M
	Smoothing  Smoothing
}

// Layout returns the tensors' places in the flat parameters.
func Layout(c Config) []model.View {
	return count.Place(compute.Tensor{Name: CountsName, Shape: []int{c.Grams}},
		compute.Tensor{Name: GramsName, Shape: []int{c.Grams, c.Order}})
}

// Model is the counts of n-grams, in a device's memory. It implements count.Model.
type Model struct {
	count.Parameters
	config    Config
	index     *Index     // of the text that is counted; nil: none
	estimator *Estimator // of some earlier counts, or of these
}

// NewModel makes a model without counts. index has the n-grams of the text that it will count; nil:
// none. It fails if the device lacks memory. Close frees it.
func NewModel(c Config, index *Index, device compute.Device) (m *Model, err error) {
	if err := c.Smoothing.validate(); err != nil {
		return nil, err
	}
	defer compute.Catch(&err)
	m = &Model{count.NewParameters(device, Layout(c)), c, index, nil}
	m.Initialise()
	return m, nil
}

// Initialise implements count.Model: the text's n-grams, none of them counted.
func (m *Model) Initialise() {
	flat := make([]float32, len(m.Params()))
	if m.index != nil {
		for i, token := range m.index.grams {
			flat[m.Layout()[1].Offset+i] = float32(token)
		}
	}
	m.Device().Upload(m.Params(), flat)
}

// Context implements count.Model.
func (m *Model) Context() int { return m.config.Order - 1 }

// Score implements count.Model.
func (m *Model) Score(w count.Window) (train.Score, error) {
	e, err := m.current()
	if err != nil {
		return train.Score{}, err
	}
	return train.Score{Loss: e.loss(w), Targets: w.Targets()}, nil
}

// Add implements count.Model.
func (m *Model) Add(w count.Window, from []float32) error {
	N := m.config.Order
	for end := N; end <= len(w.Tokens); end++ {
		from[m.index.find(w.Tokens[end-N:end])]--
	}
	return nil
}

// Counters implements count.Model.
func (*Model) Counters() int { return 0 }

// Metrics implements count.Model: the loss says all.
func (*Model) Metrics(train.Score) []train.Metric { return nil }

// current returns the estimator of the current counts. These only grow, each step from one state to
// the next, so their sum tells whether an estimator is of them.
func (m *Model) current() (*Estimator, error) {
	host := make([]float32, m.config.Grams)
	m.Device().Download(host, m.Params()[:len(host)])
	sum := int64(0)
	for _, n := range host {
		sum += int64(n)
	}
	if m.estimator != nil && m.estimator.counted == sum {
		return m.estimator, nil
	}
	var err error
	m.estimator, err = m.Estimator()
	return m.estimator, err
}

// Estimator makes probabilities of the current counts. It fails if the parameters are no counts of
// n-grams.
func (m *Model) Estimator() (e *Estimator, err error) {
	defer compute.Catch(&err)
	flat, views := m.Download(), m.Layout()
	grams := make([]int32, views[1].Len)
	for i, x := range flat[views[1].Offset:][:len(grams)] {
		if !(x >= 0 && x < float32(m.config.Vocabulary)) || x != float32(int32(x)) {
			return nil, fmt.Errorf("%s %d is %v, and no token", GramsName, i, x)
		}
		grams[i] = int32(x)
	}
	counts := make([]int64, m.config.Grams)
	for i, x := range flat[:len(counts)] {
		if !(x >= 0 && x < count.Limit) || float64(x) != math.Trunc(float64(x)) {
			return nil, fmt.Errorf("%s %d is %v, and no count", CountsName, i, x)
		}
		counts[i] = int64(x)
	}
	return newEstimator(m.config, grams, counts), nil
}

// loss is that of a window's targets, in nats.
func (e *Estimator) loss(w count.Window) (sum float64) {
	for i := w.Context; i < len(w.Tokens); i++ {
		history := w.Tokens[max(0, i-e.config.Order+1):i]
		sum -= math.Log(e.Probability(history, w.Tokens[i]))
	}
	return sum
}

// NewGenerator makes a generator from the current counts.
func (m *Model) NewGenerator() (lm.Generator, error) {
	e, err := m.Estimator()
	return generator{e}, err
}

// generator generates text. It implements lm.Generator.
type generator struct{ estimator *Estimator }

// Generate implements lm.Generator.
func (g generator) Generate(
	ctx context.Context, prefix []int32, n int, how model.Sampling,
) ([]int32, error) {
	V := g.estimator.config.Vocabulary
	p, logits := make([]float64, V), make([]float32, V)
	return model.Continue(ctx, prefix, n, V, how, func(text []int32) ([]float32, error) {
		g.estimator.Distribution(text, p)
		for i, x := range p {
			logits[i] = float32(math.Log(x))
		}
		return logits, nil
	})
}

// Close implements lm.Generator.
func (generator) Close() {}
