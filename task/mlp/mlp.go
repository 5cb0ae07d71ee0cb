// Package mlp is a Markov model of a text by a perceptron (model.Window) as a train.Task: it
// predicts each token from the N-1 tokens before it, as an n-gram model does (Bengio et al. 2003;
// Dive into Deep Learning, "Working with Sequences"). Each lane reads T targets of a segment, with
// what is before them, and carries no state.
//
// Of this module it may import corpus, model, task/ahead, task/count, task/example, task/lm and
// train.
package mlp

import (
	"context"
	"iter"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/count"
	"rondo/task/example"
	"rondo/task/lm"
	"rondo/train"
)

// Config is what the task reads.
type Config struct {
	Training   *count.Text
	Evaluation *count.Text  // nil: no evaluation
	EvalData   int64        // see train.Task
	Ledger     ahead.Ledger // nil: none
	BPTT       int          // T, at least the texts' targets of a lane
}

// Task is a network and its text. It implements train.Task.
type Task struct {
	*model.Window
	example.Base
	cfg Config
}

// New makes a task. The caller keeps the network and closes it.
func New(w *model.Window, c Config) *Task { return &Task{Window: w, cfg: c} }

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// SegmentsPerEpoch implements train.Task.
func (t *Task) SegmentsPerEpoch() int64 { return t.cfg.Training.Segments() }

// Targets implements train.Task.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 {
	return t.cfg.Training.Targets(segment, lanes)
}

// Tokens implements train.Task.
func (t *Task) Tokens(segment int64, lanes train.Lanes) int64 { return t.Targets(segment, lanes) }

// Evaluates implements train.Task.
func (t *Task) Evaluates() bool { return t.cfg.Evaluation != nil }

// EvalData implements train.Task.
func (t *Task) EvalData() int64 { return t.cfg.EvalData }

// Counters implements train.Task.
func (*Task) Counters() int { return 0 }

// Metrics implements train.Task: the loss says all.
func (*Task) Metrics(train.Score) []train.Metric { return nil }

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	pass, err := t.NewPass(lanes * t.cfg.BPTT)
	if err != nil {
		return nil, err
	}
	return &seat{WindowPass: pass, task: t}, nil
}

// batch is what a pass reads.
type batch struct {
	text    count.Batch
	in      model.WindowInput
	targets int64 // that count
}

// fill reads a span of a text into a batch of n predictions from K tokens each.
func (b *batch) fill(ctx context.Context, text *count.Text, at train.Span, n, K int) error {
	if err := text.Fill(ctx, at, K, &b.text); err != nil {
		return err
	}
	b.load(n, K, b.text.Windows...)
	return nil
}

// load cuts windows into n predictions from K tokens each. Before a text is token 0, and so is
// what is left over.
func (b *batch) load(n, K int, windows ...count.Window) {
	b.in.Tokens, b.in.Targets, b.targets = b.in.Tokens[:0], b.in.Targets[:0], 0
	for _, w := range windows {
		for i := w.Context; i < len(w.Tokens); i++ {
			for k := i - K; k < i; k++ {
				token := int32(0)
				if k >= 0 {
					token = w.Tokens[k]
				}
				b.in.Tokens = append(b.in.Tokens, token)
			}
			b.in.Targets = append(b.in.Targets, w.Tokens[i])
			b.targets++
		}
	}
	for len(b.in.Targets) < n {
		b.in.Targets = append(b.in.Targets, -1)
		b.in.Tokens = append(b.in.Tokens, make([]int32, K)...)
	}
}

// seat is a model.WindowPass with its text. It implements train.Seat.
type seat struct {
	*model.WindowPass
	example.Seat[batch]
	task *Task
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	t := s.task
	s.Reader = ahead.Read(ctx, spans, t.cfg.Ledger, func() *batch { return &batch{} },
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			err := b.fill(ctx, t.cfg.Training, at, s.Predictions(), t.Config().Reads)
			return b.text.Tokens, err
		})
	return s.Reader.Close
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	in := s.Batch.in
	in.Scale = p.Scale
	return s.WindowPass.Backward(in, model.Hooks(p.Hooks))
}

// Evaluate implements train.Seat.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	var b batch
	text := s.task.cfg.Evaluation
	for at := range train.Spans(text.Segments(), lanes) {
		if err := b.fill(ctx, text, at, s.Predictions(), s.task.Config().Reads); err != nil {
			return err
		}
		loss, err := s.Score(b.in)
		if err != nil {
			return err
		}
		add(train.Score{Loss: loss, Targets: b.targets})
	}
	return nil
}

// scored is the number of targets that Score scores at a time.
const scored = 4096

// Score returns the loss of a text summed over its targets and their number. Each token but the
// first is a target.
func Score(
	ctx context.Context, w *model.Window, tokens corpus.Tokens,
) (lossSum float64, targets int64, err error) {
	text := count.NewText(tokens, 1, 1, scored)
	pass, err := w.NewPass(scored)
	if err != nil {
		return 0, 0, err
	}
	defer pass.Close()
	var b batch
	for at := range train.Spans(text.Segments(), train.Lanes{Count: 1}) {
		if err := b.fill(ctx, text, at, scored, w.Config().Reads); err != nil {
			return 0, 0, err
		}
		loss, err := pass.Score(b.in)
		if err != nil {
			return 0, 0, err
		}
		lossSum, targets = lossSum+loss, targets+b.targets
	}
	return lossSum, targets, nil
}

// NewGenerator makes a generator of text. It fails if the device lacks memory.
func NewGenerator(w *model.Window) (lm.Generator, error) {
	pass, err := w.NewPass(1)
	return generator{pass, w.Config()}, err
}

// generator generates text. It implements lm.Generator.
type generator struct {
	*model.WindowPass
	config model.WindowConfig
}

// Generate implements lm.Generator.
func (g generator) Generate(
	ctx context.Context, prefix []int32, n int, how model.Sampling,
) ([]int32, error) {
	var b batch
	K, logits := g.config.Reads, make([]float32, g.config.Vocab)
	return model.Continue(ctx, prefix, n, g.config.Vocab, how,
		func(text []int32) ([]float32, error) {
			last := append(append([]int32{}, text[max(0, len(text)-K):]...), 0) // any target
			b.load(1, K, count.Window{Tokens: last, Context: len(last) - 1})
			return logits, g.Logits(b.in.Tokens, logits)
		})
}
