// Package label is what the tasks with labels share: a model.Labeller and its batches as a
// train.Task. Each lane reads one example in a segment, or none, and carries no state. The tasks
// add what they count in an evaluation, and what a person does with the result.
//
// Of this module it may import corpus, corpus/examples, model, task/ahead, task/example and train.
package label

import (
	"context"

	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// Config is a task's data and metrics.
type Config struct {
	Training   Data
	Evaluation Data  // nil: no evaluation
	EvalData   int64 // see train.Task
	Ledger     ahead.Ledger
	Counter    Counter
}

// Data are what lanes read in each segment.
type Data interface {
	// SegmentsPerEpoch, Targets and Tokens are those of a train.Task.
	SegmentsPerEpoch() int64
	Targets(segment int64, lanes train.Lanes) int64
	Tokens(segment int64, lanes train.Lanes) int64
	// Longest is the largest number of steps of a segment.
	Longest() int
	// Fill reads a span: Steps, Inputs, Lengths and Targets, whose memory suffices for the longest
	// segment. What is padded must not depend on how lanes are dealt. read is what the ledger
	// records. One goroutine at a time calls Fill.
	Fill(ctx context.Context, at train.Span, in *model.Examples) (read []int32, err error)
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

// Task is a labeller and its data. It implements train.Task.
type Task struct {
	*model.Labeller
	example.Base
	training, evaluation Data
	counter              Counter
	steps                int // of the longest segment
}

// New makes a task. The caller keeps the labeller and closes it.
func New(l *model.Labeller, c Config) *Task {
	t := &Task{Labeller: l, Base: example.Base{EvalID: c.EvalData, Ledger: c.Ledger},
		training: c.Training, evaluation: c.Evaluation, counter: c.Counter,
		steps: c.Training.Longest()}
	if c.Evaluation != nil {
		t.steps = max(t.steps, c.Evaluation.Longest())
	}
	return t
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// SegmentsPerEpoch implements train.Task.
func (t *Task) SegmentsPerEpoch() int64 { return t.training.SegmentsPerEpoch() }

// Targets implements train.Task.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 {
	return t.training.Targets(segment, lanes)
}

// Tokens implements train.Task.
func (t *Task) Tokens(segment int64, lanes train.Lanes) int64 {
	return t.training.Tokens(segment, lanes)
}

// Evaluates implements train.Task.
func (t *Task) Evaluates() bool { return t.evaluation != nil }

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
