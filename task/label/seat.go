package label

import (
	"context"
	"iter"

	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// seat is a model.LabelPass with its examples. It implements train.Seat.
type seat struct {
	*model.LabelPass
	example.NoState
	task    *Task
	numbers []int                // lane numbers of a pass, [B]
	reader  *ahead.Reader[batch] // set by Read
	batch   *batch               // data of the next pass
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.reader = read(ctx, s.task.training, spans, s.B)
	return s.reader.Close
}

// Next implements train.Seat. The whole gradient travels, so no rows.
func (s *seat) Next(ctx context.Context) (rows []int32, err error) {
	if s.batch, err = s.reader.Next(ctx); err != nil {
		return nil, err
	}
	return nil, s.task.Note(s.batch.span, s.batch.read)
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	for i := range s.numbers {
		s.numbers[i] = p.Lanes.First + i
	}
	in := s.batch.in
	in.Step, in.Lanes, in.Scale = p.Segment, s.numbers, p.Scale
	return s.LabelPass.Backward(in, model.Hooks{Stage: p.Stage, Finished: p.Finished,
		BeforeBackward: p.BeforeBackward, Behind: p.Behind})
}

// Evaluate implements train.Seat.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	counter := s.task.counter
	counts := make([]int64, counter.Counters())
	count := func(predicted, right []int32) { counter.Count(counts, predicted, right) }
	return score(ctx, s.task.evaluation, s.LabelPass, s.task.Config(), lanes, count,
		func(part train.Score) {
			part.Counts = counts
			add(part)
			clear(counts)
		})
}
