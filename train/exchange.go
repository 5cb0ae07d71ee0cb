package train

import (
	"context"
	"fmt"
	"time"

	"rondo/compute"
)

// Peers is how the ranks of a ring tell each other what is not a gradient. All ranks call the same
// methods, with buffers of the same length, in the same order. After an error a buffer may hold
// anything.
type Peers interface {
	// AllReduce replaces buf on every rank by the sum over the ranks: the same bits on all. Whole
	// numbers below 2^24 are added exactly.
	AllReduce(ctx context.Context, buf []float32) error
	// AllGather gives every rank what rank i has in buf[ends[i-1]:ends[i]]. Bits that a rank has
	// already may be written again, but no other ones in their place.
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// Timing returns for how long in all this rank's sends were blocked, and for how long it waited
	// to receive.
	Timing() (sending, waiting time.Duration)
}

// Sum replaces the gradient by its sum over the ranks of a ring: the same bits on all. It is made
// for one ring. Resume, Begin, Load, Sum and Finish are called once a step, in this order.
type Sum interface {
	// Resume says after which step the next one begins, and in which ring that was completed.
	// skipped: it was not applied.
	Resume(step, ring int64, skipped bool)
	// Begin begins a step, from 1. The sum is multiplied by rate when it changes the parameters.
	// met: the ranks have met meanwhile, to measure the ring.
	Begin(ctx context.Context, step int64, rate float64) (met bool, err error)
	// Rule is the update of the parameters by the sum in a step, from 1: u, if what is summed are
	// gradients.
	Rule(step int64, u compute.Update) compute.Update
	// Touch adds rows to those that this rank's inputs look up in the step: see Seat.Next.
	Touch(rows []int32)
	// Stage is host memory that the gradient may be copied to while it is computed; nil: none.
	Stage() []float32
	// Early says whether Ready begins anything in this step.
	Early() bool
	// Ready says that the gradient is final up to end. It may be called while backward goes on, or
	// not at all. Its error is told by Sum.
	Ready(ctx context.Context, end int)
	// Begun is how far the gradient is on its way to other ranks.
	Begun() int
	// Load hands over all of the gradient. Sum and Finish then wait for other ranks only, but for
	// what Sum computes.
	Load(ctx context.Context)
	// Sum sums what does not travel with the tail. busy is how long it computed.
	Sum(ctx context.Context) (busy time.Duration, err error)
	// Finish sums what is left, with the tail behind the gradient, and ahead of both hands out to
	// the successor, whose in it fills. A rank that completes it knows that every rank has the sum,
	// and every in is complete.
	Finish(ctx context.Context, out, in []float32) error
}

// Tail is how many floats travel behind the gradient in the same sum: see Task.Gradients.
const Tail = tailSize

// What is in the tail, each summed over the ranks.
const (
	tailLoss      = 0           // exact: the rank's part of the mean loss
	tailNorm      = exactFloats // exact: the norm of the rank's gradient, weighted by its share
	tailNonfinite = tailNorm + exactFloats
	tailStop      = tailNonfinite + 1
	tailRegroup   = tailStop + 1
	tailStep      = tailRegroup + 1 // the step's number modulo stepModulus
	tailArrival   = tailStep + 1    // how long each rank, or several of them, took to come
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

// carry is the lanes' states that travel ahead of a gradient; empty: none do.
type carry struct{ out, in []float32 }

// exchange sums a gradient and a tally over the ranks, and times that.
type exchange struct {
	sum      Sum // noSum: there is one rank
	gradient *compute.Mirror
	rank     int
	ranks    int
	now      func() time.Time

	own     tally         // of the sum in hand
	met     time.Time     // when the ranks' last sum was there
	reached time.Time     // when this rank had nothing left to do but to wait for the step's sum
	busy    time.Duration // what the sum computed after that
	took    time.Duration // from the sum before to reached, and busy
}

// newMirror lets the ranks sum in the task's memory when that is the host's.
func newMirror(task Task, hostMemory bool) (m *compute.Mirror, err error) {
	defer compute.Catch(&err)
	n := len(task.Params())
	if !hostMemory {
		return compute.NewMirror(task.Device(), task.Gradients()[:n:n], Tail), nil
	}
	m = compute.NewMirrorInPlace(task.Device(), task.Gradients(), n)
	if got := len(m.Behind()); got != Tail {
		return nil, fmt.Errorf("train: %d floats behind the gradients; want train.Tail, %d", got,
			Tail)
	}
	return m, nil
}

// exposed is how long this rank waited for the last sum and did nothing else.
func (x *exchange) exposed() time.Duration { return x.met.Sub(x.reached) - x.busy }

// meet replaces the gradient by its sum over the ranks, and returns the sum of their tallies. The
// carry goes ahead. It fails when the ranks are not at the same step, an index.
func (x *exchange) meet(ctx context.Context, step int64, own tally, ahead carry) (tally, error) {
	x.own, x.busy = own, 0
	x.sum.Load(ctx)
	x.reached = x.now()
	if x.sum == (noSum{}) {
		x.met = x.reached
		return own, nil
	}
	var err error
	if x.busy, err = x.sum.Sum(ctx); err != nil {
		return tally{}, err
	}
	tail := x.gradient.Behind()
	own.put(tail, step)
	x.took = x.reached.Sub(x.met) + x.busy
	putArrival(tail[tailArrival:], x.rank, x.took)
	if err := x.sum.Finish(ctx, ahead.out, ahead.in); err != nil {
		return tally{}, err
	}
	x.met = x.now()
	if want := float32(x.ranks) * float32(step%stepModulus); tail[tailStep] != want {
		return tally{}, fmt.Errorf("the ranks are at different steps (their numbers modulo %d add "+
			"up to %v, not %v): they must start from the same checkpoint", stepModulus,
			tail[tailStep], want)
	}
	all := takeTally(tail)
	all.slowest = takeArrivals(tail[tailArrival:], x.ranks)
	return all, nil
}

// put writes what a rank says into its tail.
func (t tally) put(tail []float32, step int64) {
	t.loss.put(tail[tailLoss:])
	t.norm.put(tail[tailNorm:])
	tail[tailNonfinite] = float32(t.nonfinite)
	tail[tailStop] = float32(t.stop)
	tail[tailRegroup] = float32(t.regroup)
	tail[tailStep] = float32(step % stepModulus)
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

// noSum is the Sum of a rank alone, whose gradient is the sum.
type noSum struct{}

func (noSum) Resume(int64, int64, bool)                                   {}
func (noSum) Begin(context.Context, int64, float64) (met bool, err error) { return false, nil }
func (noSum) Rule(_ int64, u compute.Update) compute.Update               { return u }
func (noSum) Touch([]int32)                                               {}
func (noSum) Stage() []float32                                            { return nil }
func (noSum) Early() bool                                                 { return false }
func (noSum) Ready(context.Context, int)                                  {}
func (noSum) Begun() int                                                  { return 0 }
func (noSum) Load(context.Context)                                        {}
func (noSum) Sum(context.Context) (busy time.Duration, err error)         { return 0, nil }
func (noSum) Finish(_ context.Context, _, _ []float32) error              { return nil }
