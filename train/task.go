package train

import (
	"context"
	"iter"

	"rondo/compute"
	"rondo/train/agree"
)

// Task is what is trained: a network, and the data that it learns from. The data are cut into
// segments: of each a lane reads one part, and what that is depends on the segment and the lane
// alone.
type Task interface {
	// Device is what the network computes on.
	Device() compute.Device
	// Tensors are the parameters' names, shapes and places in Params and in Gradients.
	Tensors() []compute.Tensor
	// Params are all parameters, padding included, in device memory.
	Params() []float32
	// Gradients are laid out as Params are, in device memory. Where that is the host's, Tail floats
	// are behind them, which the task does not touch.
	Gradients() []float32
	// Finishes are up to where a backward pass finishes Gradients, one after the other; the last is
	// all of them.
	Finishes() []int
	// Initialise sets the parameters to what they are before the first step, the same on all ranks.
	Initialise()
	// Unrecorded is why the device, which can record its work, has not; nil: nothing has failed.
	Unrecorded() error

	// StateSize is how many floats a lane carries from one segment to the next; 0: none.
	StateSize() int
	// Reset says whether the state of all lanes is zero before a segment, from 0.
	Reset(segment int64) bool
	// SegmentsPerEpoch is the same for every epoch, at least 1.
	SegmentsPerEpoch() int64
	// Targets is how many targets a lane has in a segment.
	Targets() int
	// Evaluates says whether there are data to evaluate on.
	Evaluates() bool
	// EvalData is a number that tells these data from others; 0: it is not known. Losses on
	// different data are not compared.
	EvalData() int64

	// Open makes a seat for so many lanes at a time. It fails if the device has no memory for it.
	Open(lanes int) (Seat, error)
	// Replay makes what computes the states of neighbouring lanes anew, from zeros.
	Replay(lanes Lanes) (Replay, error)
}

// Lanes are neighbouring lanes of the batch.
type Lanes = agree.Lanes

// Span is what one pass reads: a segment of some lanes, for a step.
type Span struct {
	Step    int64 // that it is read for, from 1
	Part    int   // which of the step's segments it is, from 0
	Segment int64 // of the data, from 0
	Lanes   Lanes
}

// Pass is a forward and a backward pass over the lanes of a seat.
type Pass struct {
	Span
	// Scale multiplies the loss, summed over the targets, before it is differentiated.
	Scale float32
	// OnlyPasses says that since the gradients were last zeroed only passes have written to them;
	// scaling, limiting and zeroing do not count.
	OnlyPasses bool
	// Stage, if set, is host memory that the gradients are to be copied to while they are computed:
	// see Seat.Staged.
	Stage []float32
	// Finished, if set, is called when the gradients up to end are final, while the pass goes on.
	Finished func(end int)
	// BeforeBackward, if set, is called between the two passes. Its error ends the pass.
	BeforeBackward func() error
	// Behind, if set, is called when all of the pass has been asked of the device, and the loss has
	// not been waited for: it asks for what the device is to do with the gradients next.
	Behind func(loss *compute.Loss)
}

// Seat is a rank's place to compute: the memory and the state of so many lanes at a time.
type Seat interface {
	// Read begins to read the spans, in their order, ahead of Next. stop ends that.
	Read(ctx context.Context, spans iter.Seq[Span]) (stop func())
	// Next waits for what the next span has, which Backward then computes with. It returns the rows
	// that the span looks up in a table of parameters, of which no other rows have a gradient; nil
	// where there is no such table.
	Next(ctx context.Context) (rows []int32, err error)
	// Backward leaves in the task's Gradients those of Scale times the loss, carries the lanes'
	// state on, and returns the loss summed over targets, in nats and not scaled.
	Backward(p Pass) (lossSum float64, err error)
	// Staged are the parts of the last pass's gradients on their way to Pass.Stage.
	Staged() []compute.Staged

	// State copies the lanes' state to dst, host memory [lanes, StateSize]; SetState sets it, and
	// ZeroState makes it zeros.
	State(dst []float32) error
	SetState(src []float32) error
	ZeroState()

	// Evaluate computes the loss on these lanes' parts of the data to evaluate on, forward only,
	// from a state of zeros of its own. add hears the loss summed over some targets, again and
	// again.
	Evaluate(ctx context.Context, lanes Lanes, add func(lossSum float64, targets int)) error

	Close()
}

// Replay carries the state of some lanes on over segments, forward only.
type Replay = agree.Replay
