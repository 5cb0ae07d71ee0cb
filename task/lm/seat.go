package lm

import (
	"context"
	"iter"

	"rondo/model"
	"rondo/task/ahead"
	"rondo/train"
)

// Seat is a model.Segment with its data. It implements train.Seat.
type Seat struct {
	*model.Segment
	task    *Task
	numbers []int                // lane numbers of a pass, [B]
	reader  *ahead.Reader[batch] // set by Read
	batch   *batch               // data of the next pass
}

// batch is the tokens of one span, [T, B] each.
type batch struct {
	inputs, targets []int32
}

func newBatch(tokens int) *batch {
	return &batch{inputs: make([]int32, tokens), targets: make([]int32, tokens)}
}

// reads reads ahead with fill, Batches.Fill or Evaluation.Fill.
func (s *Seat) reads(
	ctx context.Context, spans iter.Seq[train.Span], ledger ahead.Ledger,
	fill func(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error,
) *ahead.Reader[batch] {
	return ahead.Read(ctx, spans, ledger, func() *batch { return newBatch(s.T * s.B) },
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			return b.inputs, fill(ctx, at.Segment, at.Lanes.First, at.Lanes.Count, b.inputs,
				b.targets)
		})
}

// Read implements train.Seat.
func (s *Seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.reader = s.reads(ctx, spans, s.task.cfg.Ledger, s.task.cfg.Batches.Fill)
	return s.reader.Close
}

// Next implements train.Seat. rows are rows of the embedding.
func (s *Seat) Next(ctx context.Context) (rows []int32, err error) {
	if s.batch, err = s.reader.Next(ctx); err != nil {
		return nil, err
	}
	return s.batch.inputs, nil
}

// Backward implements train.Seat.
func (s *Seat) Backward(p train.Pass) (lossSum float64, err error) {
	for i := range s.numbers {
		s.numbers[i] = p.Lanes.First + i
	}
	return s.Run(model.SegmentInput{Inputs: s.batch.inputs, Targets: s.batch.targets,
		Scale: p.Scale, OnlySegments: p.OnlyPasses, Step: p.Segment, Lanes: s.numbers,
		Hooks: model.Hooks(p.Hooks)})
}

// Evaluate implements train.Seat.
func (s *Seat) Evaluate(
	ctx context.Context, lanes train.Lanes, add func(train.Score),
) error {
	segments := s.task.cfg.Evaluation.Segments()
	reader := s.reads(ctx, train.Spans(segments, lanes), nil, s.task.cfg.Evaluation.Fill)
	defer reader.Close()
	s.ZeroEvaluationState()
	for range segments {
		b, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		loss, n, err := s.Segment.Evaluate(b.inputs, b.targets)
		if err != nil {
			return err
		}
		add(train.Score{Loss: loss, Targets: int64(n)})
	}
	return nil
}
