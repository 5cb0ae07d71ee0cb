// Package lm is the language model as a train.Task. Each lane reads a text, T tokens per segment,
// and predicts the token after each. The package joins a model.Model to its tokens. It also
// generates text with a trained model and scores text. It does not know where the tokens come from,
// and opens nothing.
//
// Of this module it may import compute, corpus, model and train.
package lm

import (
	"context"
	"fmt"
	"slices"

	"rondo/model"
	"rondo/task/ahead"
	"rondo/train"
)

// Batches are the training tokens. What a lane reads depends on the segment, an index from 0, and
// the lane alone.
type Batches interface {
	// Lengths returns all numbers of tokens that a lane may read in a segment. Length returns a
	// segment's. It may be called while Fill runs.
	Lengths() []int
	Length(segment int64) int
	// Fill reads a segment of the lanes [first, first+count): inputs and targets, each [L, count],
	// with L the segment's Length. One goroutine at a time calls it.
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
	// Reset reports whether the state of all lanes is zero before a segment.
	Reset(segment int64) bool
	// SegmentsPerEpoch is the same for every epoch, at least 1. It and Reset may be called while
	// Fill runs.
	SegmentsPerEpoch() int64
}

// Evaluation is a text to evaluate on, cut into as many lanes as the training batch, and into
// segments of T tokens. All segments of all lanes together have every target once.
type Evaluation interface {
	Segments() int64
	// Fill reads as Batches.Fill does; a target of -1 does not count. It may run at the same time
	// as Batches.Fill.
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
}

// Config is a language model's data and samples.
type Config struct {
	BPTT       int // T
	Batches    Batches
	Evaluation Evaluation   // nil: no evaluation
	EvalData   int64        // see train.Task
	Ledger     ahead.Ledger // nil: none
	Writer     *Writer      // of samples; nil: no samples
}

// Task is a language model and its text. It implements train.Task.
type Task struct {
	*model.Model
	cfg Config
}

// New makes a task. The caller keeps the model and closes it.
func New(m *model.Model, cfg Config) (*Task, error) {
	if cfg.BPTT < 1 {
		return nil, fmt.Errorf("--bptt %d: must be at least 1", cfg.BPTT)
	}
	return &Task{m, cfg}, nil
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// Finishes implements train.Task.
func (t *Task) Finishes() []int { return model.Finishes(t.Config()) }

// StateSize implements train.Task.
func (t *Task) StateSize() int { return t.Config().StateSize() }

// Reset implements train.Task.
func (t *Task) Reset(segment int64) bool { return t.cfg.Batches.Reset(segment) }

// SegmentsPerEpoch implements train.Task.
func (t *Task) SegmentsPerEpoch() int64 { return t.cfg.Batches.SegmentsPerEpoch() }

// Tokens implements train.Task.
func (t *Task) Tokens(segment int64, lanes train.Lanes) int64 {
	return int64(lanes.Count) * int64(t.cfg.Batches.Length(segment))
}

// Targets implements train.Task: one per token that is read.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 { return t.Tokens(segment, lanes) }

// Counters implements train.Task.
func (t *Task) Counters() int { return 0 }

// Metrics implements train.Task: the loss says all.
func (t *Task) Metrics(train.Score) []train.Metric { return nil }

// Evaluates implements train.Task.
func (t *Task) Evaluates() bool { return t.cfg.Evaluation != nil }

// EvalData implements train.Task.
func (t *Task) EvalData() int64 { return t.cfg.EvalData }

// Sample generates a text.
func (t *Task) Sample(ctx context.Context, step int64) (string, error) {
	g, err := t.NewGenerator(1)
	if err != nil {
		return "", err
	}
	return t.cfg.Writer.At(step).Write(ctx, g)
}

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	s := &Seat{task: t, numbers: make([]int, lanes), longest: slices.Max(t.cfg.Batches.Lengths())}
	for _, T := range append([]int{t.cfg.BPTT}, t.cfg.Batches.Lengths()...) {
		if slices.ContainsFunc(s.segments, func(g *model.Segment) bool { return g.T == T }) {
			continue
		}
		g, err := t.NewSegment(T, lanes)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.segments = append(s.segments, g)
	}
	s.Segment = s.segments[0]
	return s, nil
}

// Replay implements train.Task.
func (t *Task) Replay(lanes train.Lanes) (train.Replay, error) {
	T, lengths := 1, t.cfg.Batches.Lengths()
	if len(lengths) == 1 {
		T = lengths[0]
	}
	e, err := t.NewEvaluator(T, lanes.Count)
	if err != nil {
		return nil, err
	}
	n := slices.Max(lengths) * lanes.Count
	return &replay{Evaluator: e, batches: t.cfg.Batches, lanes: lanes, batch: newBatch(n)}, nil
}

// replay is an evaluator that reads the training data.
type replay struct {
	*model.Evaluator
	batches Batches
	lanes   train.Lanes
	batch   *batch
}

// Advance implements train.Replay.
func (r *replay) Advance(ctx context.Context, segment int64) error {
	r.batch.cut(r.batches.Length(segment) * r.lanes.Count)
	err := r.batches.Fill(ctx, segment, r.lanes.First, r.lanes.Count, r.batch.inputs,
		r.batch.targets)
	if err != nil {
		return err
	}
	for inputs := range slices.Chunk(r.batch.inputs, r.T*r.lanes.Count) {
		if err := r.Evaluator.Advance(inputs); err != nil {
			return err
		}
	}
	return nil
}
