package lm

import (
	"context"
	"iter"
	"slices"

	"rondo/model"
	"rondo/task/ahead"
	"rondo/train"
)

// Seat is a model.Segment of each length, with their data. It implements train.Seat.
type Seat struct {
	*model.Segment                  // of the last pass, which holds the lanes' state
	segments       []*model.Segment // of each length; the first is Config.BPTT, and evaluates
	longest        int

	task    *Task
	numbers []int                // lane numbers of a pass, [B]
	reader  *ahead.Reader[batch] // set by Read
	batch   *batch               // data of the next pass
	state   []float32            // of the lanes, on their way between segments; nil: none yet
}

// Close frees all segments.
func (s *Seat) Close() {
	for _, g := range s.segments {
		g.Close()
	}
}

// batch is the tokens of one span, [L, B] each.
type batch struct {
	inputs, targets []int32
}

func newBatch(tokens int) *batch {
	return &batch{inputs: make([]int32, tokens), targets: make([]int32, tokens)}
}

// cut sets the number of tokens, of at most those that it was made for.
func (b *batch) cut(tokens int) { b.inputs, b.targets = b.inputs[:tokens], b.targets[:tokens] }

// reads reads ahead with fill, Batches.Fill or Evaluation.Fill, for segments of these lengths.
func (s *Seat) reads(
	ctx context.Context, spans iter.Seq[train.Span], ledger ahead.Ledger,
	length func(segment int64) int,
	fill func(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error,
) *ahead.Reader[batch] {
	return ahead.Read(ctx, spans, ledger, func() *batch { return newBatch(s.longest * s.B) },
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			b.cut(length(at.Segment) * at.Lanes.Count)
			return b.inputs, fill(ctx, at.Segment, at.Lanes.First, at.Lanes.Count, b.inputs,
				b.targets)
		})
}

// Read implements train.Seat.
func (s *Seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	batches := s.task.cfg.Batches
	s.reader = s.reads(ctx, spans, s.task.cfg.Ledger, batches.Length, batches.Fill)
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
	if err := s.turn(len(s.batch.inputs) / s.B); err != nil {
		return 0, err
	}
	return s.Run(model.SegmentInput{Inputs: s.batch.inputs, Targets: s.batch.targets,
		Scale: p.Scale, OnlySegments: p.OnlyPasses, Step: p.Segment, Lanes: s.numbers,
		Hooks: model.Hooks(p.Hooks)})
}

// turn makes the segment of T tokens the one that runs, and hands it the lanes' state.
func (s *Seat) turn(T int) error {
	if T == s.T {
		return nil
	}
	if s.state == nil {
		s.state = make([]float32, s.B*s.task.StateSize())
	}
	if err := s.State(s.state); err != nil {
		return err
	}
	s.Segment = s.segments[slices.IndexFunc(s.segments,
		func(g *model.Segment) bool { return g.T == T })]
	return s.SetState(s.state)
}

// Evaluate implements train.Seat.
func (s *Seat) Evaluate(
	ctx context.Context, lanes train.Lanes, add func(train.Score),
) error {
	segments, whole := s.task.cfg.Evaluation.Segments(), s.segments[0]
	reader := s.reads(ctx, train.Spans(segments, lanes), nil, func(int64) int { return whole.T },
		s.task.cfg.Evaluation.Fill)
	defer reader.Close()
	whole.ZeroEvaluationState()
	for range segments {
		b, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		loss, n, err := whole.Evaluate(b.inputs, b.targets)
		if err != nil {
			return err
		}
		add(train.Score{Loss: loss, Targets: int64(n)})
	}
	return nil
}
