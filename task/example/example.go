// Package example is what tasks of examples share: each lane reads a whole example in a segment, or
// none at an epoch's end, and carries no state from one to the next. It may import corpus/examples
// and train.
package example

import (
	"context"
	"fmt"

	"rondo/corpus/examples"
	"rondo/train"
)

// Data are examples, dealt to lanes.
type Data struct {
	Set     *examples.Set
	Batches *examples.Batches
}

// Ledger records what is read, before the gradients are summed.
type Ledger interface {
	// Intend records a read for a step, from 1: the inputs [T, count] of the lanes [first,
	// first+count), in the step's segment, from 0. It must not keep inputs.
	Intend(step int64, segment, first, count int, inputs []int32) error
}

// Base is the part of a train.Task that follows from its data.
type Base struct {
	Training   Data
	Evaluation *Data  // nil: no evaluation
	EvalID     int64  // see train.Task.EvalData
	Ledger     Ledger // nil: none
}

// Note tells the ledger what a span reads.
func (b *Base) Note(at train.Span, inputs []int32) error {
	if b.Ledger == nil {
		return nil
	}
	err := b.Ledger.Intend(at.Step, at.Part, at.Lanes.First, at.Lanes.Count, inputs)
	if err != nil {
		return fmt.Errorf("noting what was read: %w", err)
	}
	return nil
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

// NoState is the part of a train.Seat that concerns lanes' states: there are none.
type NoState struct{}

// State implements train.Seat.
func (NoState) State([]float32) error { return nil }

// SetState implements train.Seat.
func (NoState) SetState([]float32) error { return nil }

// ZeroState implements train.Seat.
func (NoState) ZeroState() {}
