package translate

import (
	"context"
	"fmt"
	"iter"

	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// seat is a model.TranslationPass with its pairs. It implements train.Seat.
type seat struct {
	*model.TranslationPass
	example.NoState
	task    *Task
	numbers []int                // lane numbers of a pass, [B]
	reader  *ahead.Reader[batch] // set by Read
	batch   *batch               // data of the next pass
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.reader = s.task.read(ctx, &s.task.Training, spans, s.B)
	return s.reader.Close
}

// Next implements train.Seat. There are two tables, so no rows.
func (s *seat) Next(ctx context.Context) (rows []int32, err error) {
	if s.batch, err = s.reader.Next(ctx); err != nil {
		return nil, err
	}
	if ledger, at := s.task.ledger, s.batch.span; ledger != nil {
		err := ledger.Intend(at.Step, at.Part, at.Lanes.First, at.Lanes.Count, s.batch.in.Source)
		if err != nil {
			return nil, fmt.Errorf("noting what was read: %w", err)
		}
	}
	return nil, nil
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	for i := range s.numbers {
		s.numbers[i] = p.Lanes.First + i
	}
	in := s.batch.in
	in.Step, in.Lanes, in.Scale = p.Segment, s.numbers, p.Scale
	return s.TranslationPass.Backward(in, model.Hooks{Stage: p.Stage, Finished: p.Finished,
		BeforeBackward: p.BeforeBackward, Behind: p.Behind})
}

// Evaluate implements train.Seat: the loss by teacher forcing, and greedy translations.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	t, d := s.task, s.task.Evaluation
	spans := train.Spans(d.Batches.SegmentsPerEpoch(), lanes)
	reader := t.read(ctx, d, spans, lanes.Count)
	defer reader.Close()
	searcher, err := t.newSearcher(lanes.Count)
	if err != nil {
		return err
	}
	defer searcher.Close()
	for at := range spans {
		b, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		score := train.Score{Targets: targets(d, at.Segment, lanes),
			Counts: make([]int64, bleuCounters)}
		if score.Loss, err = s.Loss(b.in); err != nil {
			return err
		}
		var sources, references [][]int32
		for _, p := range b.pairs {
			if p.source != nil {
				sources, references = append(sources, p.source), append(references, p.target)
			}
		}
		found, err := searcher.Translate(ctx, sources)
		if err != nil {
			return err
		}
		for i, h := range found {
			countBLEU(score.Counts, h.Tokens, references[i])
		}
		add(score)
	}
	return nil
}

// newSearcher makes a greedy searcher for evaluations.
func (t *Task) newSearcher(sentences int) (*Searcher, error) {
	return newSearcher(t.Translator, t.marks, SearchConfig{Sentences: sentences, Beam: 1,
		Source: t.source - 1, Target: t.target - 1})
}
