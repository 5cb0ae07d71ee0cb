package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rondo/compute"
)

// Reducer joins the ranks. All ranks call the same methods, with buffers of the same length, in
// the same order. When one fails, the buffer may be anything.
type Reducer interface {
	// AllReduce replaces buf on every rank by the sum over the ranks: the same bits on all. Whole
	// numbers below 2^24 must be added exactly.
	AllReduce(ctx context.Context, buf []float32) error
	// AllGather gives every rank what rank i has in buf[ends[i-1]:ends[i]].
	// Bits that a rank has already may be written again, but no other ones in their place.
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// AllReduceCarry is AllReduce, and before it gives each rank's out to its successor, whose in
	// it fills: no rank completes it before every rank's in is complete.
	AllReduceCarry(ctx context.Context, buf, out, in []float32) error
	// Start begins an AllReduce of buf, and does not wait for it. What is begun or called behind it
	// is done behind it; all that is begun is waited for.
	Start(ctx context.Context, buf []float32) (Pending, error)
	// Timing returns for how long in all this rank's sends were blocked, and for how long it waited
	// to receive.
	Timing() (sending, waiting time.Duration)
}

// Tail is how many floats travel behind the gradient in the same all-reduce: see Task.Gradients.
const Tail = tailSize

// What is in the tail, each summed over the ranks.
const (
	tailLoss      = 0           // exact: the rank's part of the mean loss
	tailNorm      = exactFloats // exact: the norm of the rank's gradient, weighted by its share
	tailNonfinite = tailNorm + exactFloats
	tailStop      = tailNonfinite + 1
	tailRegroup   = tailStop + 1
	tailStep      = tailRegroup + 1  // the step's number modulo stepModulus
	tailUnsummed  = tailStep + 1     // ranks whose Group has not summed the gradient
	tailFaulty    = tailUnsummed + 1 // those of them that have not just waited in vain
	tailArrival   = tailFaulty + 1   // how long each rank, or several of them, took to come
	tailSize      = tailArrival + arrivalSlots
)

const stepModulus = 1 << digitBits

// tally is what the ranks tell each other in a step: one rank's, or the sum.
type tally struct {
	loss      exactSum // of the rank's lanes, its sum over them divided by K*G*T
	norm      exactSum // of its gradient, or of the parts of it that are clipped, each by its share
	nonfinite int      // ranks whose loss or gradient is not finite
	stop      int      // ranks that want to stop after this step
	regroup   int      // ranks that want to leave the ring after this step
	// slowest is how long the slowest rank took from the sum before to where it had nothing left
	// to do but to wait for this one: of the sum alone, and not exact. See arrivals.
	slowest time.Duration
}

// exchange sums a gradient and a tally over the ranks.
type exchange struct {
	dev     compute.Device
	reducer Reducer       // nil when there is one rank
	group   compute.Group // that sums the gradient where it lies; nil: reducer does
	summer  Summer        // that does in the reducer's stead; nil: none
	rate    float64       // that the next sum changes the parameters at, for the summer
	rank    int
	ranks   int
	now     func() time.Time
	grads   []float32 // device memory
	wire    []float32 // host memory: the gradient, and behind it the tail
	inPlace bool      // the gradient in wire is grads itself

	fold     *fold // has the parts of a gradient that is summed as a tree
	leafEnds []int // where the ranks' lane groups end, whose sum that is; nil: it is not
	// sharded does all that comes before the tail where the optimizer is shared out; nil: it is
	// not.
	sharded   func(ctx context.Context, step int64, own tally) error
	parts     [][]float32 // of the gradient, in host memory; used again
	hostParts [][]float32 // copies of those in device memory

	stager compute.Stager   // that wire is of; nil: copies are waited for
	staged []compute.Staged // parts of the gradient on their way to wire

	ends    []int     // of the buckets; the last goes with the tail
	pending []Pending // the buckets that are on their way
	err     error     // of one that could not be begun
	points  profile   // when the parts of the gradient were finished

	laps   *laps
	handed []time.Time // when each of pending was handed over; only for whoever traces

	met     time.Time     // when the ranks' last sum was there
	reached time.Time     // when this rank had nothing left to do but to wait for the step's sum
	busy    time.Duration // behind reached: what the Summer or a shard's update computed
	took    time.Duration // from the sum before to reached, and busy
}

// newExchange lets the ring sum in the task's memory when that is the host's.
func newExchange(task Task, hostMemory bool, now func() time.Time) (x *exchange, err error) {
	defer compute.Catch(&err)
	size := len(task.Params())
	x = &exchange{dev: task.Device(), grads: task.Gradients()[:size:size], inPlace: hostMemory,
		now: now}
	if !hostMemory {
		n, ok := len(x.grads)+Tail, false
		if x.stager, ok = x.dev.(compute.Stager); ok {
			x.wire = x.stager.AllocHost(n)
		} else {
			x.wire = make([]float32, n)
		}
		return x, nil
	}
	x.wire = task.Gradients()
	if got := len(x.wire) - len(x.grads); got != Tail {
		return nil, fmt.Errorf("train: %d floats behind the gradients; want train.Tail, %d", got,
			Tail)
	}
	return x, nil
}

// close frees the exchange's memory.
func (x *exchange) close() {
	if x.stager != nil {
		x.stager.FreeHost(x.wire)
	}
	x.wire, x.stager = nil, nil
}

// stage is where a run may copy the gradient while it is computed; nil where that cannot be.
func (x *exchange) stage() []float32 {
	if x.reducer == nil || x.group != nil || x.stager == nil {
		return nil
	}
	return x.wire[:len(x.grads)]
}

// arrive waits until all that is on its way to wire is there.
func (x *exchange) arrive() {
	for _, part := range x.staged {
		part.Wait()
	}
	x.staged = nil
}

// zero makes those of the gradient zeros that are not on their way to the other ranks yet.
func (x *exchange) zero() {
	x.arrive()
	x.dev.Zero(x.grads[x.begun():])
}

// upload copies the sum back; what is asked for next finds it there.
func (x *exchange) upload() {
	if n := len(x.grads); x.stager != nil {
		x.stager.StartUpload(x.grads, x.wire[:n]) // nobody writes there before the next download
	} else {
		x.dev.Upload(x.grads, x.wire[:n])
	}
}

// carry is the lanes' states that travel ahead of a gradient; empty: none do.
type carry struct{ out, in []float32 }

// GroupError is what all ranks end a ring's part with when the Group of some has not summed a
// gradient, and the ring is sound: they may go on in it without one. Nobody has completed the step.
type GroupError struct {
	Ranks  int   // whose Group has not summed
	Faulty int   // those of them whose own part has failed; 0: all came, but too late for others
	Own    error // how this rank's own part has failed; nil: it has not
}

func (e *GroupError) Error() string {
	text := fmt.Sprintf("the gradient was not summed between the devices, by %d of the ranks",
		e.Ranks)
	switch {
	case e.Own != nil:
		text += ": " + e.Own.Error()
	case e.Faulty == 0:
		text += ", which have waited for others in vain"
	}
	return text
}

// Unwrap returns how this rank's part has failed, if it has.
func (e *GroupError) Unwrap() error { return e.Own }

// UnmetError is what a Group's AllReduce fails with when it was given up before the others had
// come to it: that says nothing of this rank's own part.
type UnmetError struct{ Err error }

func (e *UnmetError) Error() string { return e.Err.Error() }

// Unwrap returns why it was given up.
func (e *UnmetError) Unwrap() error { return e.Err }

// sum replaces the gradient by its sum over the ranks, and returns the sum of their tallies; the
// carry goes ahead. It fails when the ranks are not at the same step.
//
// A Group sums before the Reducer does, and is waited for: when any rank completes the Reducer's
// part, every rank has the sum, or all hear that one has not. So a step that is completed is
// complete on all, whoever fails when, and a Group that is left then is needed by nobody. Where it
// fails because the ring does, the Reducer says why. Ranks that wait in a Group for one whose part
// has failed must give up while that one still waits for them in the Reducer.
func (x *exchange) sum(ctx context.Context, step int64, own tally, ahead carry) (tally, error) {
	x.busy = 0
	if x.reducer == nil {
		x.reached = x.now()
		x.met = x.now()
		return own, nil
	}
	tail := x.wire[len(x.grads):]
	byRing := x.group == nil && x.leafEnds == nil && x.sharded == nil
	var unsummed error
	switch {
	case x.sharded != nil: // and then the tail, which completes the step
		if err := x.sharded(ctx, step, own); err != nil {
			return tally{}, err
		}
	case x.leafEnds != nil: // and then the tail, which completes the step as with a Group
		if err := x.sumTree(ctx); err != nil {
			return tally{}, err
		}
	case byRing:
		x.handOverAll(ctx)
		x.reached = x.now()
		if x.summer != nil && x.err == nil {
			x.err = x.summer.Sum(ctx, step+1, x.rate, x.wire[:len(x.grads)])
			x.busy = x.summer.Busy()
		}
	default:
		x.reached = x.now()
		unsummed = x.group.AllReduce(ctx, x.grads)
	}
	own.put(tail, step, unsummed)
	x.took = x.reached.Sub(x.met) + x.busy
	putArrival(tail[tailArrival:], x.rank, x.took)
	if err := x.sumRest(ctx, byRing, ahead); err != nil {
		return tally{}, err
	}
	x.met = x.now()
	if want := float32(x.ranks) * float32(step%stepModulus); tail[tailStep] != want {
		return tally{}, fmt.Errorf("the ranks are at different steps (their numbers modulo %d add "+
			"up to %v, not %v): they must start from the same checkpoint", stepModulus,
			tail[tailStep], want)
	}
	if ranks := int(tail[tailUnsummed]); ranks > 0 {
		return tally{}, &GroupError{ranks, int(tail[tailFaulty]), ownFault(unsummed)}
	}
	if x.group == nil && x.sharded == nil && !x.inPlace {
		x.upload()
	}
	all := takeTally(tail)
	all.slowest = takeArrivals(tail[tailArrival:], x.ranks)
	return all, nil
}

// sumRest sums what no bucket that is on its way has: the last one, if the ring sums the gradient,
// and the tail. All others have come before it.
func (x *exchange) sumRest(ctx context.Context, byRing bool, ahead carry) error {
	if x.err != nil {
		return x.err
	}
	rest := x.wire[len(x.grads):]
	if byRing && x.summer == nil {
		rest = x.wire[x.begun():]
	}
	if err := x.reducer.AllReduceCarry(ctx, rest, ahead.out, ahead.in); err != nil {
		return err
	}
	return x.collect(ctx, byRing)
}

// sumTensor replaces a tensor, device memory, by its sum over the ranks. It passes through piece
// where that is not the host's. Whoever has the sum of the next gradient knows that all have it.
func (x *exchange) sumTensor(ctx context.Context, tensor, piece []float32) error {
	if x.inPlace {
		return x.reducer.AllReduce(ctx, tensor)
	}
	for len(tensor) > 0 {
		n := min(len(tensor), len(piece))
		x.dev.Download(piece[:n], tensor[:n])
		if err := x.reducer.AllReduce(ctx, piece[:n]); err != nil {
			return err
		}
		x.dev.Upload(tensor[:n], piece[:n])
		tensor = tensor[n:]
	}
	return nil
}

// ownFault is the error of a rank's own part in a Group; nil if that has not failed.
func ownFault(unsummed error) error {
	if _, unmet := errors.AsType[*UnmetError](unsummed); unmet {
		return nil
	}
	return unsummed
}

// put writes what a rank says into its tail.
func (t tally) put(tail []float32, step int64, unsummed error) {
	t.loss.put(tail[tailLoss:])
	t.norm.put(tail[tailNorm:])
	tail[tailNonfinite] = float32(t.nonfinite)
	tail[tailStop] = float32(t.stop)
	tail[tailRegroup] = float32(t.regroup)
	tail[tailStep] = float32(step % stepModulus)
	tail[tailUnsummed], tail[tailFaulty] = 0, 0
	if unsummed != nil {
		tail[tailUnsummed] = 1
	}
	if ownFault(unsummed) != nil {
		tail[tailFaulty] = 1
	}
}

// takeTally reads the sum of what the ranks say.
func takeTally(tail []float32) tally {
	return tally{
		loss:      takeExact(tail[tailLoss:]),
		norm:      takeExact(tail[tailNorm:]),
		nonfinite: int(tail[tailNonfinite]),
		stop:      int(tail[tailStop]),
		regroup:   int(tail[tailRegroup]),
	}
}
