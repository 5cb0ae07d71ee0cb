// Package lm is the language model as a train.Task: each lane reads a text, T tokens in a segment,
// and predicts after each token the next. It joins a model.Model to the tokens that it reads, and
// does not know where these come from. A trained model writes text and scores it. It opens nothing.
//
// Of this module it may import compute, corpus, model and train.
package lm

import (
	"context"
	"fmt"

	"rondo/compute"
	"rondo/model"
	"rondo/train"
)

// Batches are the token ids to train on. Which those of a segment are is a function of the segment,
// an index from 0, and the lane alone.
type Batches interface {
	// Fill reads a segment of the lanes [first, first+count): inputs and targets, each [T, count].
	// It is called by one goroutine at a time.
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
	// Reset says whether the state of all lanes is zero before a segment.
	Reset(segment int64) bool
	// SegmentsPerEpoch is the same for every epoch, at least 1. Unlike Fill it and Reset may be
	// called while Fill runs.
	SegmentsPerEpoch() int64
}

// Evaluation is a text to evaluate on, cut into the same number of lanes as the training batch,
// and into segments of T tokens. All its segments of all lanes together have every target once.
type Evaluation interface {
	Segments() int64
	// Fill reads as Batches.Fill does; a target of -1 does not count. It may run while that of the
	// Batches does.
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
}

// Ledger hears what was read, before the ranks' gradients are summed.
type Ledger interface {
	// Intend hears what this rank reads for a step, from 1: the inputs [T, count] of its lanes
	// [first, first+count), of one of the step's segments, from 0. It must not keep them.
	Intend(step int64, segment, first, count int, inputs []int32) error
}

// Config is what a language model reads, and what it shows.
type Config struct {
	BPTT       int // T
	Batches    Batches
	Evaluation Evaluation // nil: there is nothing to evaluate on
	EvalData   int64      // see train.Task
	Ledger     Ledger     // nil: none
	Writer     *Writer    // of samples; nil: there are none
}

// Task is a language model and its text. It implements train.Task.
type Task struct {
	*model.Model
	cfg Config
}

// New makes a task. The model stays the caller's.
func New(m *model.Model, cfg Config) (*Task, error) {
	if cfg.BPTT < 1 {
		return nil, fmt.Errorf("--bptt %d: must be at least 1", cfg.BPTT)
	}
	return &Task{m, cfg}, nil
}

// Tensors implements train.Task.
func (t *Task) Tensors() []compute.Tensor {
	views := t.Layout()
	tensors := make([]compute.Tensor, len(views))
	for i, v := range views {
		tensors[i] = v.Tensor
	}
	return tensors
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

// Targets implements train.Task: each token but a segment's first is one, and the token behind it.
func (t *Task) Targets() int { return t.cfg.BPTT }

// Evaluates implements train.Task.
func (t *Task) Evaluates() bool { return t.cfg.Evaluation != nil }

// EvalData implements train.Task.
func (t *Task) EvalData() int64 { return t.cfg.EvalData }

// Sample writes a text. What is drawn depends on the seed of the Writer and the step alone.
func (t *Task) Sample(ctx context.Context, step int64) (string, error) {
	w := *t.cfg.Writer
	w.how.Seed += uint64(step)
	return w.Write(ctx, t.Model)
}

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	s, err := t.NewSegment(t.cfg.BPTT, lanes)
	if err != nil {
		return nil, err
	}
	return &seat{Segment: s, task: t, numbers: make([]int, lanes)}, nil
}

// Replay implements train.Task.
func (t *Task) Replay(lanes train.Lanes) (train.Replay, error) {
	e, err := t.NewEvaluator(t.cfg.BPTT, lanes.Count)
	if err != nil {
		return nil, err
	}
	n := t.cfg.BPTT * lanes.Count
	return &replay{Evaluator: e, batches: t.cfg.Batches, lanes: lanes, batch: newBatch(n)}, nil
}

// replay is an evaluator that reads what was trained on.
type replay struct {
	*model.Evaluator
	batches Batches
	lanes   train.Lanes
	batch   *batch
}

// Advance implements train.Replay.
func (r *replay) Advance(ctx context.Context, segment int64) error {
	err := r.batches.Fill(ctx, segment, r.lanes.First, r.lanes.Count, r.batch.inputs,
		r.batch.targets)
	if err != nil {
		return err
	}
	return r.Evaluator.Advance(r.batch.inputs)
}
