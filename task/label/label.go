// Package label is what the tasks of examples with labels share: a model.Labeller and its batches
// as a train.Task. Each lane reads one example in a segment, or none at an epoch's end, and carries
// no state. The tasks add what they count in an evaluation, and what a person does with the result.
//
// Of this module it may import corpus, corpus/examples, model, task/ahead, task/example and train.
package label

import (
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// Config is a task's data and metrics.
type Config struct {
	Training   example.Data
	Evaluation *example.Data // nil: no evaluation
	EvalData   int64         // see train.Task
	Ledger     ahead.Ledger
	Counter    Counter
}

// Counter counts what a task's metrics are made of.
type Counter interface {
	// Counters is the number of counts.
	Counters() int
	// Count adds an example: the labels that were predicted and those that are right.
	Count(counts []int64, predicted, right []int32)
	// Metrics computes the metrics.
	Metrics(counts []int64) []train.Metric
}

// Task is a labeller and its examples. It implements train.Task.
type Task struct {
	*model.Labeller
	example.Base
	counter Counter
	steps   int // of the longest example
}

// New makes a task. The caller keeps the labeller and closes it.
func New(l *model.Labeller, c Config) *Task {
	t := &Task{Labeller: l, Base: example.Base{Training: c.Training, Evaluation: c.Evaluation,
		EvalID: c.EvalData, Ledger: c.Ledger}, counter: c.Counter, steps: c.Training.Set.Longest()}
	if c.Evaluation != nil {
		t.steps = max(t.steps, c.Evaluation.Set.Longest())
	}
	return t
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// Counters implements train.Task.
func (t *Task) Counters() int { return t.counter.Counters() }

// Metrics implements train.Task.
func (t *Task) Metrics(s train.Score) []train.Metric { return t.counter.Metrics(s.Counts) }

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	pass, err := t.NewPass(t.steps, lanes)
	if err != nil {
		return nil, err
	}
	return &seat{LabelPass: pass, task: t}, nil
}
