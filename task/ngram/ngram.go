// Package ngram is the n-gram model as a train.Task: counts of the sequences of N tokens in a text,
// and the probabilities that follow from them (Jurafsky and Martin, Speech and Language Processing,
// chapter 3; Goodfellow, Bengio and Courville, Deep Learning, 12.4.1).
//
// The parameters are the counts. A pass counts what its lanes read, and its gradient is -1 times
// that, whatever the scale; the update, SGD with a rate of 1, adds the counts of all ranks. These
// are whole numbers below 2^24, so their sums are exact in float32, and the same bits for any
// number of workers.
//
// Of this module it may import compute, corpus, model, task/ahead, task/example, task/lm and train.
package ngram

import (
	"context"
	"fmt"

	"rondo/compute"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/task/lm"
	"rondo/train"
)

// Data is what a job of n-grams reads.
type Data struct {
	Index      *Index
	Training   *Text
	Evaluation *Text        // nil: no evaluation
	EvalData   int64        // see train.Task
	Ledger     ahead.Ledger // nil: none
	Writer     *lm.Writer   // of samples; nil: no samples
}

// Task is a model of n-grams and its text. It implements train.Task.
type Task struct {
	*Model
	example.Base
	data      Data
	gradients []float32
	estimator *Estimator // of some earlier step, or of this one
}

// New makes a task. The gradients have room for tail floats behind them. The caller keeps the model
// and closes it.
func New(m *Model, data Data, tail int) (t *Task, err error) {
	if n := data.Index.Len(); n != m.config.Grams || data.Index.order != m.config.Order {
		return nil, fmt.Errorf("ngram: an index of %d %d-grams, and a model of %d %d-grams", n,
			data.Index.order, m.config.Grams, m.config.Order)
	}
	t = &Task{Model: m, data: data}
	defer compute.Catch(&err)
	t.gradients = m.device.Alloc(len(m.params) + tail)
	m.device.Zero(t.gradients)
	t.Initialise()
	return t, nil
}

// Tensors implements train.Task.
func (t *Task) Tensors() (all []compute.Tensor) {
	for _, v := range t.Layout() {
		all = append(all, v.Tensor)
	}
	return all
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.gradients }

// Finishes implements train.Task.
func (t *Task) Finishes() []int { return []int{len(t.params)} }

// Initialise implements train.Task: the text's n-grams, none of them counted.
func (t *Task) Initialise() {
	flat := make([]float32, len(t.params))
	grams := flat[t.Layout()[1].Offset:]
	for i, token := range t.data.Index.grams {
		grams[i] = float32(token)
	}
	t.device.Upload(t.params, flat)
}

// SegmentsPerEpoch implements train.Task.
func (t *Task) SegmentsPerEpoch() int64 { return t.data.Training.Segments() }

// Targets implements train.Task.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 {
	return t.data.Training.Targets(segment, lanes)
}

// Tokens implements train.Task.
func (t *Task) Tokens(segment int64, lanes train.Lanes) int64 { return t.Targets(segment, lanes) }

// Counters implements train.Task.
func (t *Task) Counters() int { return 0 }

// Metrics implements train.Task: the loss says all.
func (t *Task) Metrics(train.Score) []train.Metric { return nil }

// Evaluates implements train.Task.
func (t *Task) Evaluates() bool { return t.data.Evaluation != nil }

// EvalData implements train.Task.
func (t *Task) EvalData() int64 { return t.data.EvalData }

// Open implements train.Task.
func (t *Task) Open(int) (train.Seat, error) {
	return &seat{task: t, counted: make([]float32, len(t.params))}, nil
}

// Close frees the gradients and the model.
func (t *Task) Close() {
	t.device.Free(t.gradients)
	t.Model.Close()
}

// current returns the estimator of the current counts. These only grow, each step from one state to
// the next, so their sum tells whether an estimator is of them.
func (t *Task) current() (*Estimator, error) {
	host := make([]float32, t.config.Grams)
	t.device.Download(host, t.params[:len(host)])
	sum := int64(0)
	for _, n := range host {
		sum += int64(n)
	}
	if t.estimator != nil && t.estimator.Counted == sum {
		return t.estimator, nil
	}
	var err error
	t.estimator, err = t.Estimator()
	return t.estimator, err
}

// Sample generates a text.
func (t *Task) Sample(ctx context.Context, step int64) (string, error) {
	g, err := t.NewGenerator()
	if err != nil {
		return "", err
	}
	return t.data.Writer.At(step).Write(ctx, g)
}

// NewGenerator makes a generator from the current counts.
func (m *Model) NewGenerator() (lm.Generator, error) {
	e, err := m.Estimator()
	return generator{e}, err
}
