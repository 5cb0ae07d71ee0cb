// Package example is what tasks of examples share: each lane reads a whole example in a segment, or
// none at an epoch's end, and carries no state from one to the next. It may import corpus/examples,
// task/ahead and train.
package example

import (
	"context"

	"rondo/corpus/examples"
	"rondo/task/ahead"
	"rondo/train"
)

// Data are examples, dealt to lanes.
type Data struct {
	Set     *examples.Set
	Batches *examples.Batches
}

// Base is the part of a train.Task that follows from its data.
type Base struct {
	Training   Data
	Evaluation *Data        // nil: no evaluation
	EvalID     int64        // see train.Task.EvalData
	Ledger     ahead.Ledger // nil: none
}

// Unrecorded implements train.Task: batches of different lengths are not recorded.
func (Base) Unrecorded() error { return nil }

// StateSize implements train.Task: examples begin at zero.
func (Base) StateSize() int { return 0 }

// Reset implements train.Task.
func (Base) Reset(int64) bool { return true }

// SegmentsPerEpoch implements train.Task.
func (b *Base) SegmentsPerEpoch() int64 { return b.Training.Batches.SegmentsPerEpoch() }

// Targets implements train.Task.
func (b *Base) Targets(segment int64, lanes train.Lanes) int64 {
	return b.Training.Batches.Targets(segment, lanes.First, lanes.Count)
}

// Tokens implements train.Task.
func (b *Base) Tokens(segment int64, lanes train.Lanes) int64 {
	return b.Training.Batches.Tokens(segment, lanes.First, lanes.Count)
}

// Evaluates implements train.Task.
func (b *Base) Evaluates() bool { return b.Evaluation != nil }

// EvalData implements train.Task.
func (b *Base) EvalData() int64 { return b.EvalID }

// Replay implements train.Task: there is no state to compute again.
func (*Base) Replay(train.Lanes) (train.Replay, error) { return noReplay{}, nil }

type noReplay struct{ NoState }

func (noReplay) Advance(context.Context, int64) error { return nil }
func (noReplay) Close()                               {}

// Seat is the part of a train.Seat that reads batches of type B.
type Seat[B any] struct {
	NoState
	Reader *ahead.Reader[B] // of the training data; set it in Read
	Batch  *B               // of the next pass
	lanes  []int
}

// Next implements train.Seat: the whole gradient travels, so no rows.
func (s *Seat[B]) Next(ctx context.Context) (rows []int32, err error) {
	s.Batch, err = s.Reader.Next(ctx)
	return nil, err
}

// Lanes are the numbers of a pass's lanes. The next call overwrites them.
func (s *Seat[B]) Lanes(of train.Lanes) []int {
	s.lanes = s.lanes[:0]
	for lane := of.First; lane < of.End(); lane++ {
		s.lanes = append(s.lanes, lane)
	}
	return s.lanes
}

// NoState is the part of a train.Seat that concerns lanes' states: there are none.
type NoState struct{}

// State implements train.Seat.
func (NoState) State([]float32) error { return nil }

// SetState implements train.Seat.
func (NoState) SetState([]float32) error { return nil }

// ZeroState implements train.Seat.
func (NoState) ZeroState() {}
