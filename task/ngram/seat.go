package ngram

import (
	"context"
	"iter"
	"math"

	"rondo/compute"
	"rondo/corpus"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// seat counts and scores in host memory. It implements train.Seat.
type seat struct {
	example.Seat[batch]
	task    *Task
	counted []float32 // -1 times the counts of a pass, laid out as the parameters
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	text, before := s.task.data.Training, s.task.config.Order-1
	s.Reader = ahead.Read(ctx, spans, s.task.data.Ledger, func() *batch { return &batch{} },
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			err := text.fill(ctx, at, before, b)
			return b.tokens, err
		})
	return s.Reader.Close
}

// Backward implements train.Seat. The loss is that of the text by the counts of the steps before.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	defer compute.Catch(&err)
	e, err := s.task.current()
	if err != nil {
		return 0, err
	}
	for _, w := range s.Batch.windows {
		lossSum += e.loss(w)
	}
	if p.BeforeBackward != nil {
		if err := p.BeforeBackward(); err != nil {
			return 0, err
		}
	}
	N := s.task.config.Order
	clear(s.counted)
	for _, w := range s.Batch.windows {
		for end := N; end <= len(w.tokens); end++ {
			s.counted[s.task.data.Index.find(w.tokens[end-N:end])]--
		}
	}
	s.task.device.Upload(s.task.gradients[:len(s.counted)], s.counted)
	if p.Finished != nil {
		p.Finished(len(s.counted))
	}
	return lossSum, nil
}

// Staged implements train.Seat.
func (*seat) Staged() []compute.Staged { return nil }

// Evaluate implements train.Seat.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	e, err := s.task.current()
	if err != nil {
		return err
	}
	return e.score(ctx, s.task.data.Evaluation, lanes, add)
}

// Close implements train.Seat.
func (*seat) Close() {}

// loss is that of a window's targets, in nats.
func (e *Estimator) loss(w window) (sum float64) {
	for i := w.context; i < len(w.tokens); i++ {
		history := w.tokens[max(0, i-e.config.Order+1):i]
		sum -= math.Log(e.Probability(history, w.tokens[i]))
	}
	return sum
}

// score scores some lanes' part of a text.
func (e *Estimator) score(
	ctx context.Context, text *Text, lanes train.Lanes, add func(train.Score),
) error {
	var b batch
	for at := range train.Spans(text.Segments(), lanes) {
		if err := text.fill(ctx, at, e.config.Order-1, &b); err != nil {
			return err
		}
		for _, w := range b.windows {
			add(train.Score{Loss: e.loss(w), Targets: int64(len(w.tokens) - w.context)})
		}
	}
	return nil
}

// scored is the number of targets that Score scores at a time.
const scored = 1 << 16

// Score returns the loss of a text summed over its targets, in nats, and their number. Each token
// but the first is a target, as in task/lm.
func Score(
	ctx context.Context, m *Model, tokens corpus.Tokens,
) (lossSum float64, targets int64, err error) {
	e, err := m.Estimator()
	if err != nil {
		return 0, 0, err
	}
	err = e.score(ctx, NewText(tokens, 1, 1, scored), train.Lanes{Count: 1}, func(s train.Score) {
		lossSum, targets = lossSum+s.Loss, targets+s.Targets
	})
	return lossSum, targets, err
}

// generator generates text. It implements lm.Generator.
type generator struct{ estimator *Estimator }

// Generate implements lm.Generator.
func (g generator) Generate(
	ctx context.Context, prefix []int32, n int, how model.Sampling,
) ([]int32, error) {
	V := g.estimator.config.Vocabulary
	p, logits := make([]float64, V), make([]float32, V)
	return model.Continue(ctx, prefix, n, V, how, func(text []int32) ([]float32, error) {
		g.estimator.Distribution(text, p)
		for i, x := range p {
			logits[i] = float32(math.Log(x))
		}
		return logits, nil
	})
}

// Close implements lm.Generator.
func (generator) Close() {}
