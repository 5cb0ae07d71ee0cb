package translate

import (
	"context"
	"errors"
	"iter"

	"rondo/corpus"
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
	// decoder predicts what the pass reads, and translates in evaluations; nil: neither is wanted.
	decoder *model.Decoder
	// own and logits are memory of sample: of the longest target, and of a step.
	own    []bool
	logits []float32
}

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	pass, err := t.NewPass(t.source, t.target, lanes)
	if err != nil {
		return nil, err
	}
	s := &seat{TranslationPass: pass, task: t}
	if t.Evaluation != nil || t.sampling.Own > 0 {
		if s.decoder, err = t.NewDecoder(t.source, lanes); err != nil {
			pass.Close()
			return nil, err
		}
	}
	if t.sampling.Own > 0 {
		s.own = make([]bool, t.target*lanes)
		s.logits = make([]float32, lanes*t.Config().TargetVocab)
	}
	return s, nil
}

// Close implements train.Seat.
func (s *seat) Close() {
	if s.decoder != nil {
		s.decoder.Close()
	}
	s.TranslationPass.Close()
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
	if err := s.sample(p.Step-1, &in); err != nil {
		return 0, err
	}
	return s.TranslationPass.Backward(in, model.Hooks(p.Hooks))
}

// Evaluate implements train.Seat: the loss by teacher forcing, and greedy translations.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	t := s.task
	searcher := searchWith(s.decoder, t.Config().TargetVocab, t.marks, SearchConfig{
		Sentences: lanes.Count, Beam: 1, Source: t.source - t.marks.steps(0),
		Target: t.target - 1})
	return t.score(ctx, t.Evaluation, s.TranslationPass, searcher, lanes, add,
		func(pair, []int32) {})
}

// score scores these lanes' examples of all segments. It calls each with every pair and the
// translation of its source.
func (t *Task) score(
	ctx context.Context, d *example.Data, pass *model.TranslationPass, searcher *Searcher,
	lanes train.Lanes, add func(train.Score), each func(p pair, translation []int32),
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
		var sources [][]int32
		var pairs []pair
		for _, p := range b.pairs {
			if p.source != nil {
				sources, pairs = append(sources, p.source), append(pairs, p)
			}
		}
		found, err := searcher.Translate(ctx, sources)
		if err != nil {
			return err
		}
		for i, h := range found {
			countBLEU(score.Counts, h.Tokens, pairs[i].target)
			each(pairs[i], h.Tokens)
		}
		add(score)
	}
	return nil
}

// Measure scores a translator on all pairs of a set, which it translates with the searcher. whole
// is the same file with a vocabulary of all words of the targets, and unit separates tokens in a
// text. The metrics are bleu; sacrebleu: BLEU over sacreBLEU's words 13a of the texts, in which no
// word of a reference is unknown; and book_bleu: the mean of BookBLEU with k = 2, in percent.
func Measure(
	ctx context.Context, m *model.Translator, set, whole *examples.Set, unit corpus.Unit,
	searcher *Searcher,
) (all train.Score, metrics []train.Metric, err error) {
	lanes := train.Lanes{Count: searcher.cfg.Sentences}
	batches, err := examples.NewEvaluation(set, lanes.Count)
	if err != nil {
		return all, nil, err
	}
	d := example.Data{Set: set, Batches: batches}
	t, err := New(m, Config{Training: d, Vectors: m.Config().Vectors > 0})
	if err != nil {
		return all, nil, err
	}
	pass, err := m.NewPass(t.source, t.target, lanes.Count)
	if err != nil {
		return all, nil, err
	}
	defer pass.Close()
	all.Counts = make([]int64, bleuCounters)
	book, words, wordCounts := 0.0, newWords13a(), make([]int64, bleuCounters)
	var failed error
	err = t.score(ctx, &d, pass, searcher, lanes, func(part train.Score) {
		all.Loss += part.Loss
		all.Targets += part.Targets
		for i, n := range part.Counts {
			all.Counts[i] += n
		}
	}, func(p pair, translation []int32) {
		book += BookBLEU(translation, p.target, bookOrder)
		source := make([]int32, whole.Length(p.number))
		reference := make([]int32, whole.Targets(p.number))
		failed = errors.Join(failed, whole.Read(p.number, source, reference))
		split := corpus.Tokenizer{Unit: unit}
		words.count(wordCounts, set.TargetVocabulary().Decode(split, translation),
			whole.TargetVocabulary().Decode(split, reference))
	})
	return all, []train.Metric{{Name: "bleu", Value: BLEU(all.Counts)},
		{Name: "sacrebleu", Value: BLEU(wordCounts)},
		{Name: "book_bleu", Value: 100 * book / float64(set.Len())}}, errors.Join(err, failed)
}

// bookOrder is the k of BookBLEU that Dive into Deep Learning takes.
const bookOrder = 2
