// Package count is the part that train.Tasks share whose parameters are sums over the data: counts
// of n-grams, normal equations, expected counts. A pass computes what its lanes add, and its
// gradient is -1 times that, whatever the scale; the update, SGD with a rate of 1, adds the sum
// over all ranks. If each number is whole, and its sum below 2^24, float32 adds them exactly, and
// any number of workers has the same bits.
//
// Of this module it may import compute, corpus, model, task/ahead, task/example and train.
package count

import (
	"context"
	"iter"

	"rondo/compute"
	"rondo/corpus"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// Limit is above all sums of whole numbers: float32 has the whole numbers up to it.
const Limit = 1 << 24

// Model has the parameters of such a task, in a device's memory.
type Model interface {
	Device() compute.Device
	Layout() []model.View
	Params() []float32
	// Initialise sets the sums to zero.
	Initialise()
	// Context is the most tokens that a target depends on, before it.
	Context() int
	// Score scores a window's targets by the current parameters.
	Score(w Window) (train.Score, error)
	// Add subtracts what a window adds to the parameters from host memory of their layout.
	Add(w Window, from []float32) error
	// Counters and Metrics are those of train.Task.
	Counters() int
	Metrics(s train.Score) []train.Metric
}

// Config is what the task reads.
type Config struct {
	Training   *Text
	Evaluation *Text        // nil: no evaluation
	EvalData   int64        // see train.Task
	Ledger     ahead.Ledger // nil: none
	Tail       int          // floats behind the gradients
}

// Task is a model and its data. It implements train.Task.
type Task struct {
	Model
	example.Base
	cfg       Config
	gradients []float32
}

// New makes a task. The caller keeps the model and closes it after the task.
func New(m Model, c Config) (t *Task, err error) {
	t = &Task{Model: m, cfg: c}
	defer compute.Catch(&err)
	t.gradients = m.Device().Alloc(len(m.Params()) + c.Tail)
	m.Device().Zero(t.gradients)
	m.Initialise()
	return t, nil
}

// Close frees the gradients.
func (t *Task) Close() { t.Device().Free(t.gradients) }

// Tensors implements train.Task.
func (t *Task) Tensors() (all []compute.Tensor) {
	for _, v := range t.Layout() {
		all = append(all, v.Tensor)
	}
	return all
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.gradients }

// Finishes implements train.Task.
func (t *Task) Finishes() []int { return []int{len(t.Params())} }

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

// Open implements train.Task.
func (t *Task) Open(int) (train.Seat, error) {
	return &seat{task: t, added: make([]float32, len(t.Params()))}, nil
}

// seat computes in host memory. It implements train.Seat.
type seat struct {
	example.Seat[Batch]
	task  *Task
	added []float32 // -1 times what a pass adds, laid out as the parameters
}

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	t := s.task
	s.Reader = ahead.Read(ctx, spans, t.cfg.Ledger, func() *Batch { return &Batch{} },
		func(ctx context.Context, at train.Span, b *Batch) ([]int32, error) {
			err := t.cfg.Training.Fill(ctx, at, t.Context(), b)
			return b.Tokens, err
		})
	return s.Reader.Close
}

// Backward implements train.Seat. The loss is that of the data by the sums of the steps before.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	defer compute.Catch(&err)
	for _, w := range s.Batch.Windows {
		score, err := s.task.Score(w)
		if err != nil {
			return 0, err
		}
		lossSum += score.Loss
	}
	if p.BeforeBackward != nil {
		if err := p.BeforeBackward(); err != nil {
			return 0, err
		}
	}
	clear(s.added)
	for _, w := range s.Batch.Windows {
		if err := s.task.Add(w, s.added); err != nil {
			return 0, err
		}
	}
	s.task.Device().Upload(s.task.gradients[:len(s.added)], s.added)
	if p.Finished != nil {
		p.Finished(len(s.added))
	}
	return lossSum, nil
}

// Staged implements train.Seat.
func (*seat) Staged() []compute.Staged { return nil }

// Evaluate implements train.Seat.
func (s *seat) Evaluate(
	ctx context.Context, lanes train.Lanes, add func(train.Score),
) (err error) {
	defer compute.Catch(&err)
	return score(ctx, s.task.Model, s.task.cfg.Evaluation, lanes, add)
}

// Close implements train.Seat.
func (*seat) Close() {}

// score scores some lanes' part of a text.
func score(
	ctx context.Context, m Model, text *Text, lanes train.Lanes, add func(train.Score),
) error {
	var b Batch
	for at := range train.Spans(text.Segments(), lanes) {
		if err := text.Fill(ctx, at, m.Context(), &b); err != nil {
			return err
		}
		for _, w := range b.Windows {
			s, err := m.Score(w)
			if err != nil {
				return err
			}
			add(s)
		}
	}
	return nil
}

// scored is the number of targets that Score scores at a time.
const scored = 1 << 16

// Score returns the loss of a text summed over its targets and their number. Each token but the
// first is a target.
func Score(
	ctx context.Context, m Model, tokens corpus.Tokens,
) (lossSum float64, targets int64, err error) {
	defer compute.Catch(&err)
	text, all := NewText(tokens, 1, 1, scored), train.Lanes{Count: 1}
	err = score(ctx, m, text, all, func(s train.Score) {
		lossSum, targets = lossSum+s.Loss, targets+s.Targets
	})
	return lossSum, targets, err
}
