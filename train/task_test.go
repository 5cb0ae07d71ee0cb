package train

import (
	"context"
	"fmt"
	"iter"

	"rondo/model"
)

// Batches and Evaluation are the data of a textTask: segments [T, count] of lanes.
type Batches interface {
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
	Reset(segment int64) bool
	SegmentsPerEpoch() int64
}

type Evaluation interface {
	Segments() int64
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
}

// intender is a Ledger that also records what is read.
type intender interface {
	Intend(step int64, segment, first, count int, inputs []int32) error
}

// textTask is a language model over text in memory. It does not prefetch.
type textTask struct {
	*model.Model
	bptt       int
	batches    Batches
	evaluation Evaluation
	evalData   int64
	ledger     intender
	counts     func(segment int64, lane int) int // see job
}

// task returns the job's task. The ledger records what is read if it is an intender.
func (j job) task(m *model.Model, ledger Ledger) textTask {
	bptt := j.bptt
	if bptt == 0 {
		bptt = testT
	}
	hears, _ := ledger.(intender)
	return textTask{m, bptt, j.batches, j.evaluation, j.evalData, hears, j.counts}
}

func (t textTask) Gradients() []float32     { return t.GradientsWithTail() }
func (t textTask) Finishes() []int          { return model.Finishes(t.Config()) }
func (t textTask) StateSize() int           { return t.Config().StateSize() }
func (t textTask) Reset(segment int64) bool { return t.batches.Reset(segment) }
func (t textTask) SegmentsPerEpoch() int64  { return t.batches.SegmentsPerEpoch() }
func (t textTask) Tokens(_ int64, lanes Lanes) int64 {
	return int64(lanes.Count * t.bptt)
}
func (t textTask) Targets(segment int64, lanes Lanes) (n int64) {
	if t.counts == nil {
		return t.Tokens(segment, lanes)
	}
	for lane := lanes.First; lane < lanes.End(); lane++ {
		n += int64(t.counts(segment, lane))
	}
	return n
}
func (textTask) Counters() int          { return 0 }
func (textTask) Metrics(Score) []Metric { return nil }
func (t textTask) Evaluates() bool      { return t.evaluation != nil }
func (t textTask) EvalData() int64      { return t.evalData }

func (t textTask) Open(lanes int) (Seat, error) {
	s, err := t.NewSegment(t.bptt, lanes)
	if err != nil {
		return nil, err
	}
	n := t.bptt * lanes
	return &textSeat{Segment: s, task: t, inputs: make([]int32, n), targets: make([]int32, n),
		numbers: make([]int, lanes)}, nil
}

func (t textTask) Replay(lanes Lanes) (Replay, error) {
	e, err := t.NewEvaluator(t.bptt, lanes.Count)
	return &textReplay{e, t, lanes}, err
}

type textReplay struct {
	*model.Evaluator
	task  textTask
	lanes Lanes
}

func (r *textReplay) Advance(ctx context.Context, segment int64) error {
	inputs := make([]int32, r.T*r.B)
	err := r.task.batches.Fill(ctx, segment, r.lanes.First, r.B, inputs, make([]int32, r.T*r.B))
	if err != nil {
		return err
	}
	return r.Evaluator.Advance(inputs)
}

// textSeat is a seat of a textTask.
type textSeat struct {
	*model.Segment
	task            textTask
	next            func() (Span, bool)
	inputs, targets []int32
	numbers         []int
}

func (s *textSeat) Read(_ context.Context, spans iter.Seq[Span]) (stop func()) {
	s.next, stop = iter.Pull(spans)
	return stop
}

func (s *textSeat) Next(ctx context.Context) ([]int32, error) {
	at, ok := s.next()
	if !ok {
		return nil, fmt.Errorf("read past the last span")
	}
	err := s.task.batches.Fill(ctx, at.Segment, at.Lanes.First, at.Lanes.Count, s.inputs, s.targets)
	if err == nil && s.task.ledger != nil {
		err = s.task.ledger.Intend(at.Step, at.Part, at.Lanes.First, at.Lanes.Count, s.inputs)
	}
	if s.task.counts != nil {
		for b := range at.Lanes.Count {
			for i := s.task.counts(at.Segment, at.Lanes.First+b); i < s.task.bptt; i++ {
				s.targets[i*at.Lanes.Count+b] = -1
			}
		}
	}
	return s.inputs, err
}

func (s *textSeat) Backward(p Pass) (float64, error) {
	for i := range s.numbers {
		s.numbers[i] = p.Lanes.First + i
	}
	return s.Run(model.SegmentInput{Inputs: s.inputs, Targets: s.targets, Scale: p.Scale,
		OnlySegments: p.OnlyPasses, Step: p.Segment, Lanes: s.numbers,
		Hooks: model.Hooks{Stage: p.Stage, Finished: p.Finished, BeforeBackward: p.BeforeBackward,
			Behind: p.Behind}})
}

func (s *textSeat) Evaluate(ctx context.Context, lanes Lanes, add func(Score)) error {
	s.ZeroEvaluationState()
	inputs, targets := make([]int32, len(s.inputs)), make([]int32, len(s.inputs))
	for segment := range s.task.evaluation.Segments() {
		err := s.task.evaluation.Fill(ctx, segment, lanes.First, lanes.Count, inputs, targets)
		if err != nil {
			return err
		}
		loss, n, err := s.Segment.Evaluate(inputs, targets)
		if err != nil {
			return err
		}
		add(Score{Loss: loss, Targets: int64(n)})
	}
	return nil
}
