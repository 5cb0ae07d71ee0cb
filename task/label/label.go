// Package label is what the tasks of examples with labels share: a model.Labeller and its batches
// as a train.Task. Each lane reads one example in a segment, or none at an epoch's end, and carries
// no state. The tasks add what they count in an evaluation, and what a person does with the result.
//
// Of this module it may import compute, corpus, corpus/examples, model, task/ahead and train.
package label

import (
	"context"
	"fmt"
	"iter"

	"rondo/compute"
	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/ahead"
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

// Tensors implements train.Task.
func (t *Task) Tensors() []compute.Tensor { return model.Tensors(t.Layout()) }

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

// batch is the examples of a span.
type batch struct {
	span    train.Span
	in      model.Examples
	inputs  []int32 // memory of in.Inputs, for the longest example
	targets []int32 // of in.Targets, likewise
	tokens  []int32 // an example; reused
	labels  []int32
}

// reads reads the examples of spans ahead.
func (t *Task) reads(
	ctx context.Context, spans iter.Seq[train.Span], from *Data, lanes int,
) *ahead.Reader[batch] {
	make := func() *batch { return t.newBatch(lanes) }
	return ahead.Read(ctx, spans, make,
		func(ctx context.Context, at train.Span, b *batch) error {
			b.span = at
			return t.fill(ctx, from, at, b)
		})
}

func (t *Task) newBatch(lanes int) *batch {
	return &batch{in: model.Examples{Lengths: make([]int32, lanes)},
		inputs: make([]int32, t.steps*lanes), targets: make([]int32, t.steps*lanes),
		tokens: make([]int32, t.steps), labels: make([]int32, t.steps)}
}

// fill reads the span's examples, padded to the longest one of all lanes, so that the padding does
// not depend on how lanes are dealt.
func (t *Task) fill(ctx context.Context, from *Data, at train.Span, b *batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	steps, lanes := from.Batches.Steps(at.Segment), at.Lanes.Count
	rows := steps
	if t.Config().Pool != model.PoolNone {
		rows = 1
	}
	b.in.Steps, b.in.Inputs, b.in.Targets = steps, b.inputs[:steps*lanes], b.targets[:rows*lanes]
	clear(b.in.Inputs)
	for i := range b.in.Targets {
		b.in.Targets[i] = corpus.Padding
	}
	for lane := range lanes {
		number := from.Batches.Example(at.Segment, at.Lanes.First+lane)
		b.in.Lengths[lane] = 0
		if number < 0 {
			continue
		}
		length, targets := from.Set.Length(number), from.Set.Targets(number)
		b.in.Lengths[lane] = int32(length)
		tokens, labels := b.tokens[:length], b.labels[:targets]
		if err := from.Set.Read(number, tokens, labels); err != nil {
			return fmt.Errorf("example %d: %w", number, err)
		}
		for i, id := range tokens {
			b.in.Inputs[i*lanes+lane] = id
		}
		for i, label := range labels {
			b.in.Targets[i*lanes+lane] = label
		}
	}
	return nil
}
