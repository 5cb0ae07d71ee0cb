package lm

import (
	"context"
	"fmt"
	"iter"

	"rondo/model"
	"rondo/train"
)

// seat is a model.Segment with its data. It implements train.Seat.
type seat struct {
	*model.Segment
	task       *Task
	numbers    []int       // lane numbers of a pass, [B]
	prefetcher *prefetcher // set by Read
	batch      *batch      // data of the next pass
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.prefetcher = prefetch(ctx, s.task.cfg.Batches.Fill, s.T*s.B, spans)
	return s.prefetcher.close
}

// Next implements train.Seat. rows are rows of the embedding.
func (s *seat) Next(ctx context.Context) (rows []int32, err error) {
	if s.batch, err = s.prefetcher.next(ctx); err != nil {
		return nil, err
	}
	if ledger, at := s.task.cfg.Ledger, s.batch.span; ledger != nil {
		err := ledger.Intend(at.Step, at.Part, at.Lanes.First, at.Lanes.Count, s.batch.inputs)
		if err != nil {
			return nil, fmt.Errorf("noting what was read: %w", err)
		}
	}
	return s.batch.inputs, nil
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	for i := range s.numbers {
		s.numbers[i] = p.Lanes.First + i
	}
	return s.Run(model.SegmentInput{Inputs: s.batch.inputs, Targets: s.batch.targets,
		Scale: p.Scale, OnlySegments: p.OnlyPasses, Step: p.Segment, Lanes: s.numbers,
		Hooks: model.Hooks{Stage: p.Stage, Finished: p.Finished, BeforeBackward: p.BeforeBackward,
			Behind: p.Behind}})
}

// Evaluate implements train.Seat.
func (s *seat) Evaluate(
	ctx context.Context, lanes train.Lanes, add func(lossSum float64, targets int),
) error {
	spans := func(yield func(train.Span) bool) {
		for segment := range s.task.cfg.Evaluation.Segments() {
			if !yield(train.Span{Segment: segment, Lanes: lanes}) {
				return
			}
		}
	}
	reader := prefetch(ctx, s.task.cfg.Evaluation.Fill, s.T*s.B, spans)
	defer reader.close()
	s.ZeroEvaluationState()
	for range s.task.cfg.Evaluation.Segments() {
		b, err := reader.next(ctx)
		if err != nil {
			return err
		}
		loss, n, err := s.Segment.Evaluate(b.inputs, b.targets)
		if err != nil {
			return err
		}
		add(loss, n)
	}
	return nil
}
