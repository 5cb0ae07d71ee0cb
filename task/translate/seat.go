package translate

import (
	"context"
	"iter"

	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/example"
	"rondo/train"
)

// seat is a model.TranslationPass with its pairs. It implements train.Seat.
type seat struct {
	*model.TranslationPass
	example.Seat[batch]
	task *Task
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.Reader = s.task.read(ctx, &s.task.Training, spans, s.task.Ledger, s.B)
	return s.Reader.Close
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	in := s.Batch.in
	in.Step, in.Lanes, in.Scale = p.Segment, s.Lanes(p.Lanes), p.Scale
	return s.TranslationPass.Backward(in, model.Hooks(p.Hooks))
}

// Evaluate implements train.Seat: the loss by teacher forcing, and greedy translations.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	t := s.task
	searcher, err := newSearcher(t.Translator, t.marks, SearchConfig{Sentences: lanes.Count,
		Beam: 1, Source: t.source - 1, Target: t.target - 1})
	if err != nil {
		return err
	}
	defer searcher.Close()
	return t.score(ctx, t.Evaluation, s.TranslationPass, searcher, lanes, add,
		func(_, _ []int32) {})
}

// score scores these lanes' examples of all segments. It calls each with every translation and its
// reference.
func (t *Task) score(
	ctx context.Context, d *example.Data, pass *model.TranslationPass, searcher *Searcher,
	lanes train.Lanes, add func(train.Score), each func(translation, reference []int32),
) error {
	spans := train.Spans(d.Batches.SegmentsPerEpoch(), lanes)
	reader := t.read(ctx, d, spans, nil, lanes.Count)
	defer reader.Close()
	for at := range spans {
		b, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		score := train.Score{Targets: targets(d, at.Segment, lanes),
			Counts: make([]int64, bleuCounters)}
		if score.Loss, err = pass.Loss(b.in); err != nil {
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
			each(h.Tokens, references[i])
		}
		add(score)
	}
	return nil
}

// Measure scores a translator on all pairs of a set, which it translates with the searcher. The
// metrics are bleu, and book_bleu: the mean of BookBLEU with k = 2, in percent.
func Measure(
	ctx context.Context, m *model.Translator, set *examples.Set, searcher *Searcher,
) (all train.Score, metrics []train.Metric, err error) {
	lanes := train.Lanes{Count: searcher.cfg.Sentences}
	batches, err := examples.NewEvaluation(set, lanes.Count)
	if err != nil {
		return all, nil, err
	}
	d := example.Data{Set: set, Batches: batches}
	t, err := New(m, Config{Training: d})
	if err != nil {
		return all, nil, err
	}
	pass, err := m.NewPass(t.source, t.target, lanes.Count)
	if err != nil {
		return all, nil, err
	}
	defer pass.Close()
	all.Counts = make([]int64, bleuCounters)
	book := 0.0
	err = t.score(ctx, &d, pass, searcher, lanes, func(part train.Score) {
		all.Loss += part.Loss
		all.Targets += part.Targets
		for i, n := range part.Counts {
			all.Counts[i] += n
		}
	}, func(translation, reference []int32) {
		book += BookBLEU(translation, reference, bookOrder)
	})
	return all, []train.Metric{{Name: "bleu", Value: BLEU(all.Counts)},
		{Name: "book_bleu", Value: 100 * book / float64(set.Len())}}, err
}

// bookOrder is the k of BookBLEU that Dive into Deep Learning takes.
const bookOrder = 2
