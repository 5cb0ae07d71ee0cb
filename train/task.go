package train

import (
	"context"
	"iter"

	"rondo/compute"
	"rondo/train/agree"
)

// Task is a network and the data that it learns from. The data are cut into segments. What a lane
// reads in a segment depends on the segment and the lane alone.
type Task interface {
	// Device is the device that the network computes on.
	Device() compute.Device
	// Tensors returns each parameter's name, shape and place in Params and Gradients.
	Tensors() []compute.Tensor
	// Params returns all parameters, padding included, in device memory.
	Params() []float32
	// Gradients returns the gradients, laid out as Params, in device memory. If that is host
	// memory, the slice ends with Tail more floats; the task must not touch these.
	Gradients() []float32
	// Finishes returns the ends of the gradient prefixes that a backward pass finishes, in order.
	// The last is the whole gradient.
	Finishes() []int
	// Initialise sets the parameters to their initial values, the same on all ranks.
	Initialise()
	// Unrecorded returns why a device that can record its work could not; nil if nothing failed.
	Unrecorded() error

	// StateSize is the number of floats that a lane carries from one segment to the next; 0: none.
	StateSize() int
	// Reset reports whether the state of all lanes is zero before a segment, from 0.
	Reset(segment int64) bool
	// SegmentsPerEpoch is the same for every epoch, at least 1.
	SegmentsPerEpoch() int64
	// Targets returns how many targets these lanes have in a segment. All lanes together have at
	// least one. It is a function of its arguments alone and reads no data, so that every rank
	// knows the whole batch's number before it is summed.
	Targets(segment int64, lanes Lanes) int64
	// Tokens returns how many tokens these lanes read in a segment. It too is a function of its
	// arguments alone.
	Tokens(segment int64, lanes Lanes) int64
	// Evaluates reports whether there are data to evaluate on.
	Evaluates() bool
	// EvalData identifies the evaluation data; 0: unknown. Losses on different data are not
	// compared.
	EvalData() int64
	// Counters is the number of counts of a Score, besides the loss and the targets.
	Counters() int
	// Metrics computes the task's metrics from an evaluation's whole Score.
	Metrics(s Score) []Metric

	// Open makes a seat for this many lanes. It fails if the device lacks memory.
	Open(lanes int) (Seat, error)
	// Replay returns a Replay that recomputes the states of these lanes from zeros.
	Replay(lanes Lanes) (Replay, error)
}

// Score is the result on some evaluation data. The scores of parts add up.
type Score struct {
	Loss    float64 // summed over the targets, in nats
	Targets int64
	Counts  []int64 // Task.Counters long
}

// Metric is a named figure of an evaluation.
type Metric struct {
	Name  string
	Value float64
}

// Lanes are consecutive lanes of the batch.
type Lanes = agree.Lanes

// Span is what one pass reads: a segment of some lanes, for a step.
type Span struct {
	Step    int64 // number, from 1
	Part    int   // index among the step's segments, from 0
	Segment int64 // index in the data, from 0
	Lanes   Lanes
}

// Spans returns the spans of some lanes in the segments before a number, in order, for an
// evaluation.
func Spans(segments int64, lanes Lanes) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		for segment := range segments {
			if !yield(Span{Segment: segment, Lanes: lanes}) {
				return
			}
		}
	}
}

// Pass is a forward and a backward pass over the lanes of a seat.
type Pass struct {
	Span
	// Scale multiplies the loss, summed over the targets, before it is differentiated.
	Scale float32
	// OnlyPasses: only passes have written to the gradients since they were last zeroed. Scaling,
	// clipping and zeroing do not count.
	OnlyPasses bool
	Hooks
}

// Hooks let the step loop take part in a pass.
type Hooks struct {
	// Stage, if set, is host memory. The gradients are copied to it while they are computed: see
	// Seat.Staged.
	Stage []float32
	// Finished, if set, is called during the pass when the gradients up to end are final.
	Finished func(end int)
	// BeforeBackward, if set, is called between forward and backward. Its error ends the pass.
	BeforeBackward func() error
	// Behind, if set, is called when the whole pass is queued on the device, before anything waits
	// for the loss. It queues the device's next work on the gradients.
	Behind func(loss *compute.Loss)
}

// Seat is a rank's workspace: memory and state for a fixed number of lanes.
type Seat interface {
	// Read starts to prefetch the spans, in order, for Next. stop ends the prefetching.
	Read(ctx context.Context, spans iter.Seq[Span]) (stop func())
	// Next waits for the data of the next span; Backward then uses them. rows are the table rows
	// that the span looks up, the only rows of that table with a gradient. rows is nil if the task
	// has no such table.
	Next(ctx context.Context) (rows []int32, err error)
	// Backward writes the gradient of Scale times the loss to the task's Gradients, advances the
	// lanes' state, and returns the unscaled loss summed over targets, in nats.
	Backward(p Pass) (lossSum float64, err error)
	// Staged returns the parts of the last pass's gradients that are being copied to Pass.Stage.
	Staged() []compute.Staged

	// State copies the lanes' state to dst, host memory [lanes, StateSize]. SetState sets it, and
	// ZeroState zeroes it.
	State(dst []float32) error
	SetState(src []float32) error
	ZeroState()

	// Evaluate scores these lanes' part of the evaluation data, forward only, starting from a zero
	// state of its own. It calls add repeatedly with the score of some targets.
	Evaluate(ctx context.Context, lanes Lanes, add func(Score)) error

	Close()
}

// Replay advances the state of some lanes over segments, forward only.
type Replay = agree.Replay
