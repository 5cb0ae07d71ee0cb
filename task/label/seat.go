package label

import (
	"context"
	"iter"

	"rondo/model"
	"rondo/task/example"
	"rondo/train"
)

// seat is a model.LabelPass with its examples. It implements train.Seat.
type seat struct {
	*model.LabelPass
	example.Seat[batch]
	task *Task
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.Reader = read(ctx, s.task.training, spans, s.task.Ledger, s.B)
	return s.Reader.Close
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	in := s.Batch.in
	in.Step, in.Lanes, in.Scale = p.Segment, s.Lanes(p.Lanes), p.Scale
	return s.LabelPass.Backward(in, model.Hooks(p.Hooks))
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
