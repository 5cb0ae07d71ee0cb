// Package label is what the tasks of examples with labels share: a model.Labeller and its batches
// as a train.Task. Each lane reads one example in a segment, or none at an epoch's end, and carries
// no state. The tasks add what they count in an evaluation, and what a person does with the result.
//
// Of this module it may import compute, corpus, corpus/examples, model, task/ahead and train.
package label

import (
	"context"

	"rondo/corpus/examples"
	"rondo/model"
	"rondo/train"
)

// Config is a task's data and metrics.
type Config struct {
	Training   *Data
	Evaluation *Data // nil: no evaluation
	EvalData   int64 // see train.Task
	Ledger     Ledger
	Counter    Counter
}

// Data are examples, dealt to lanes.
type Data struct {
	Set     *examples.Set
	Batches *examples.Batches
}

// Ledger records what is read, before the gradients are summed.
type Ledger interface {
	// Intend records a read for a step, from 1: the inputs [T, count] of the lanes [first,
	// first+count), in the step's segment, from 0. It must not keep inputs.
	Intend(step int64, segment, first, count int, inputs []int32) error
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
	cfg   Config
	steps int // of the longest example
}

// New makes a task. The caller keeps the labeller and closes it.
func New(l *model.Labeller, cfg Config) *Task {
	t := &Task{Labeller: l, cfg: cfg}
	for _, d := range []*Data{cfg.Training, cfg.Evaluation} {
		if d != nil {
			t.steps = max(t.steps, d.Set.Longest())
		}
	}
	return t
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// Unrecorded implements train.Task: batches of different lengths are not recorded.
func (t *Task) Unrecorded() error { return nil }

// StateSize implements train.Task: examples begin at zero.
func (t *Task) StateSize() int { return 0 }

// Reset implements train.Task.
func (t *Task) Reset(int64) bool { return true }

// SegmentsPerEpoch implements train.Task.
func (t *Task) SegmentsPerEpoch() int64 { return t.cfg.Training.Batches.SegmentsPerEpoch() }

// Targets implements train.Task.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 {
	return t.cfg.Training.Batches.Targets(segment, lanes.First, lanes.Count)
}

// Tokens implements train.Task.
func (t *Task) Tokens(segment int64, lanes train.Lanes) int64 {
	return t.cfg.Training.Batches.Tokens(segment, lanes.First, lanes.Count)
}

// Evaluates implements train.Task.
func (t *Task) Evaluates() bool { return t.cfg.Evaluation != nil }

// EvalData implements train.Task.
func (t *Task) EvalData() int64 { return t.cfg.EvalData }

// Counters implements train.Task.
func (t *Task) Counters() int { return t.cfg.Counter.Counters() }

// Metrics implements train.Task.
func (t *Task) Metrics(s train.Score) []train.Metric { return t.cfg.Counter.Metrics(s.Counts) }

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	pass, err := t.NewPass(t.steps, lanes)
	if err != nil {
		return nil, err
	}
	return &seat{LabelPass: pass, task: t, numbers: make([]int, lanes)}, nil
}

// Replay implements train.Task: there is no state to compute again.
func (t *Task) Replay(train.Lanes) (train.Replay, error) { return noReplay{}, nil }

type noReplay struct{}

func (noReplay) Advance(context.Context, int64) error { return nil }
func (noReplay) State([]float32) error                { return nil }
func (noReplay) Close()                               {}
