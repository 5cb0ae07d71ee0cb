// Package memory is the part that train.Tasks share whose networks have an explicit memory
// (Goodfellow, Bengio and Courville, Deep Learning, section 10.12). Such a network addresses a
// memory of a few thousand numbers at each step, one lane at a time, so it is computed in Go, in
// host memory: a lane's pass is one goroutine's work, and the threads share the lanes.
//
// Of this module it may import compute, model, task/ahead, task/count, task/example and train.
package memory

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"rondo/compute"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/count"
	"rondo/task/example"
	"rondo/train"
)

// Network is a network that reads examples of type E.
type Network[E any] interface {
	// Layout returns the tensors' places in the flat parameters.
	Layout() []model.View
	// Initialise draws the initial values; padding stays zero.
	Initialise(params []float32)
	// NewPass makes the memory of a pass over one example.
	NewPass() Pass[E]
	// Counters and Metrics are those of train.Task.
	Counters() int
	Metrics(s train.Score) []train.Metric
}

// Pass computes an example at a time. Slices are laid out as the parameters.
type Pass[E any] interface {
	// Forward scores the example, which must not change before Backward.
	Forward(params []float32, e *E) train.Score
	// Backward adds scale times the gradient of the loss of the last Forward.
	Backward(params, gradients []float32, scale float32)
}

// Source is what the lanes read.
type Source[E any] interface {
	// SegmentsPerEpoch, Targets and Tokens are those of train.Task.
	SegmentsPerEpoch() int64
	Targets(segment int64, lanes train.Lanes) int64
	Tokens(segment int64, lanes train.Lanes) int64
	// Fill reads the example of a lane, and returns its numbers for the ledger. Without an example
	// it returns false.
	Fill(segment int64, lane int, into *E) (ids []int32, ok bool, err error)
}

// Model is a network with its parameters, in the memory of a device that is the host's.
type Model[E any] struct {
	count.Parameters
	Network[E]
}

// NewModel makes a network with its initial values. It fails if there is no memory for it. Close
// frees them.
func NewModel[E any](n Network[E], device compute.Device) (m *Model[E], err error) {
	defer compute.Catch(&err)
	m = &Model[E]{count.NewParameters(device, n.Layout()), n}
	n.Initialise(m.Params())
	return m, nil
}

// Layout returns the tensors' places.
func (m *Model[E]) Layout() []model.View { return m.Parameters.Layout() }

// Config is what a task reads.
type Config[E any] struct {
	Training   Source[E]
	Evaluation Source[E]    // nil: no evaluation
	EvalData   int64        // see train.Task
	Ledger     ahead.Ledger // nil: none
	Tail       int          // floats behind the gradients
}

// Task is a network and its data. It implements train.Task.
type Task[E any] struct {
	*Model[E]
	example.Base
	cfg       Config[E]
	gradients []float32
}

// NewTask makes a task. The caller keeps the model and closes it after the task.
func NewTask[E any](m *Model[E], c Config[E]) (t *Task[E], err error) {
	defer compute.Catch(&err)
	t = &Task[E]{Model: m, cfg: c}
	t.gradients = m.Device().Alloc(len(m.Params()) + c.Tail)
	return t, nil
}

// Close frees the gradients.
func (t *Task[E]) Close() { t.Device().Free(t.gradients) }

// Tensors implements train.Task.
func (t *Task[E]) Tensors() (all []compute.Tensor) {
	for _, v := range t.Layout() {
		all = append(all, v.Tensor)
	}
	return all
}

// Gradients implements train.Task.
func (t *Task[E]) Gradients() []float32 { return t.gradients }

// Finishes implements train.Task.
func (t *Task[E]) Finishes() []int { return []int{len(t.Params())} }

// Initialise implements train.Task.
func (t *Task[E]) Initialise() { t.Network.Initialise(t.Params()) }

// SegmentsPerEpoch implements train.Task.
func (t *Task[E]) SegmentsPerEpoch() int64 { return t.cfg.Training.SegmentsPerEpoch() }

// Targets implements train.Task.
func (t *Task[E]) Targets(segment int64, lanes train.Lanes) int64 {
	return t.cfg.Training.Targets(segment, lanes)
}

// Tokens implements train.Task.
func (t *Task[E]) Tokens(segment int64, lanes train.Lanes) int64 {
	return t.cfg.Training.Tokens(segment, lanes)
}

// Evaluates implements train.Task.
func (t *Task[E]) Evaluates() bool { return t.cfg.Evaluation != nil }

// EvalData implements train.Task.
func (t *Task[E]) EvalData() int64 { return t.cfg.EvalData }

// groups is the most parts of a seat's lanes whose gradients are summed each by itself, so that
// threads share them. It does not depend on the threads, so neither does the sum.
const groups = 8

// Open implements train.Task.
func (t *Task[E]) Open(lanes int) (train.Seat, error) {
	s := &seat[E]{task: t, threads: threads(t.Device()), size: lanes}
	for range lanes {
		s.passes = append(s.passes, t.NewPass())
	}
	for range min(lanes, groups) {
		s.sums = append(s.sums, Zeros[float32](len(t.Params())))
	}
	s.scores = make([]train.Score, lanes)
	return s, nil
}

// threads is the number of threads of a device.
func threads(device compute.Device) func() int {
	if d, ok := device.(interface{ Threads() int }); ok {
		return d.Threads
	}
	return func() int { return 1 }
}

// batch is what some lanes read.
type batch[E any] struct {
	examples []E
	read     []bool // the lane has an example
	ids      []int32
}

// fill reads a span from a source.
func fill[E any](ctx context.Context, from Source[E], at train.Span, b *batch[E]) error {
	b.ids = b.ids[:0]
	for i := range at.Lanes.Count {
		if err := ctx.Err(); err != nil {
			return err
		}
		ids, ok, err := from.Fill(at.Segment, at.Lanes.First+i, &b.examples[i])
		if err != nil {
			return fmt.Errorf("segment %d, lane %d: %w", at.Segment, at.Lanes.First+i, err)
		}
		b.read[i], b.ids = ok, append(b.ids, ids...)
	}
	return nil
}

func newBatch[E any](lanes int) *batch[E] {
	return &batch[E]{examples: make([]E, lanes), read: make([]bool, lanes)}
}

// seat has a pass for each lane. It implements train.Seat.
type seat[E any] struct {
	example.Seat[batch[E]]
	task    *Task[E]
	threads func() int
	size    int
	passes  []Pass[E]
	scores  []train.Score
	sums    [][]float32 // of groups of lanes
}

// Read implements train.Seat.
func (s *seat[E]) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	c := s.task.cfg
	s.Reader = ahead.Read(ctx, spans, c.Ledger, func() *batch[E] { return newBatch[E](s.size) },
		func(ctx context.Context, at train.Span, b *batch[E]) ([]int32, error) {
			err := fill(ctx, c.Training, at, b)
			return b.ids, err
		})
	return s.Reader.Close
}

// Backward implements train.Seat.
func (s *seat[E]) Backward(p train.Pass) (lossSum float64, err error) {
	s.forward(s.Batch)
	for i, score := range s.scores {
		if s.Batch.read[i] {
			lossSum += score.Loss
		}
	}
	if p.BeforeBackward != nil {
		if err := p.BeforeBackward(); err != nil {
			return 0, err
		}
	}
	params, n := s.task.Params(), len(s.task.Params())
	share(s.threads(), len(s.sums), func(g int) {
		clear(s.sums[g])
		for i := g * s.size / len(s.sums); i < (g+1)*s.size/len(s.sums); i++ {
			if s.Batch.read[i] {
				s.passes[i].Backward(params, s.sums[g], p.Scale)
			}
		}
	})
	gradients := s.task.gradients[:n]
	copy(gradients, s.sums[0])
	for _, sum := range s.sums[1:] {
		for i, x := range sum {
			gradients[i] += x
		}
	}
	if p.Finished != nil {
		p.Finished(n)
	}
	return lossSum, nil
}

// forward computes the scores of a batch.
func (s *seat[E]) forward(b *batch[E]) {
	params := s.task.Params()
	share(s.threads(), s.size, func(i int) {
		if b.read[i] {
			s.scores[i] = s.passes[i].Forward(params, &b.examples[i])
		}
	})
}

// share calls work with each number below n, on some goroutines, and waits for all.
func share(threads, n int, work func(i int)) {
	var next atomic.Int64
	loop := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			work(i)
		}
	}
	var all sync.WaitGroup
	for range min(threads, n) - 1 {
		all.Go(loop)
	}
	loop()
	all.Wait()
}

// Staged implements train.Seat.
func (*seat[E]) Staged() []compute.Staged { return nil }

// Evaluate implements train.Seat.
func (s *seat[E]) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	return s.score(ctx, s.task.cfg.Evaluation, lanes, add)
}

// score scores some lanes' part of the examples of a source.
func (s *seat[E]) score(
	ctx context.Context, from Source[E], lanes train.Lanes, add func(train.Score),
) error {
	b := newBatch[E](s.size)
	for at := range train.Spans(from.SegmentsPerEpoch(), lanes) {
		if err := fill(ctx, from, at, b); err != nil {
			return err
		}
		s.forward(b)
		for i, score := range s.scores {
			if b.read[i] {
				add(score)
			}
		}
	}
	return nil
}

// Close implements train.Seat.
func (*seat[E]) Close() {}

// Score scores all examples of a source with so many lanes.
func Score[E any](
	ctx context.Context, m *Model[E], from Source[E], lanes int,
) (sum train.Score, err error) {
	defer compute.Catch(&err)
	t, err := NewTask(m, Config[E]{})
	if err != nil {
		return sum, err
	}
	defer t.Close()
	opened, err := t.Open(lanes)
	if err != nil {
		return sum, err
	}
	sum.Counts = make([]int64, m.Counters())
	err = opened.(*seat[E]).score(ctx, from, train.Lanes{Count: lanes}, func(s train.Score) {
		sum.Loss, sum.Targets = sum.Loss+s.Loss, sum.Targets+s.Targets
		for i, n := range s.Counts {
			sum.Counts[i] += n
		}
	})
	return sum, err
}
