package train

import (
	"context"
	"fmt"
	"time"

	"rondo/compute"
	"rondo/train/exact"
)

// Peers are the collectives of a ring's ranks for everything but gradients. All ranks call the same
// methods, with buffers of the same length, in the same order. After an error a buffer's contents
// are undefined.
type Peers interface {
	// AllReduce replaces buf on every rank by the sum over the ranks, with the same bits on all.
	// Whole numbers below 2^24 are added exactly.
	AllReduce(ctx context.Context, buf []float32) error
	// AllGather gives every rank buf[ends[i-1]:ends[i]] of each rank i. It may rewrite a range that
	// a rank already has, but only with the same bits.
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// Timing returns the total time that this rank's sends were blocked, and the total time that it
	// waited to receive.
	Timing() (sending, waiting time.Duration)
}

// Sum replaces the gradient by its sum over the ranks of a ring, with the same bits on all. It is
// made for one ring. Each step calls Resume, Begin, Load, Sum and Finish once, in this order. It is
// not used again after an error.
type Sum interface {
	// Resume names the last completed step and the generation that completed it. skipped: that step
	// was not applied.
	Resume(step, ring int64, skipped bool)
	// Begin starts a step, from 1. The parameters change by rate times the sum. measured: the ranks
	// have synchronised here to measure the ring.
	Begin(ctx context.Context, step int64, rate float64) (measured bool, err error)
	// Rule returns the update to apply with the sum in a step, from 1. It is u if the sum is a
	// plain gradient sum.
	Rule(step int64, u compute.Update) compute.Update
	// Touch adds table rows that this rank's inputs look up in the step: see Seat.Next.
	Touch(rows []int32)
	// Stage returns host memory for copying the gradient while it is computed; nil: none.
	Stage() []float32
	// Early reports whether Ready starts any work in this step.
	Early() bool
	// Ready says that the gradient is final up to end. It may be called during the backward pass,
	// or not at all. Sum returns its error.
	Ready(ctx context.Context, end int)
	// Begun returns the end of the prefix that is on its way to other ranks.
	Begun() int
	// Load hands over the whole gradient. After it, Sum and Finish only wait for other ranks, apart
	// from Sum's own computing.
	Load(ctx context.Context)
	// Sum sums everything that does not travel with the tail. busy is the time that it computed.
	Sum(ctx context.Context) (busy time.Duration, err error)
	// Finish sums the rest, with the tail behind the gradient. Beside that, in hop h out[h] goes to
	// the successor, and in[h] comes from the predecessor, which is out[h+1] where it goes further.
	// When a rank completes Finish, every rank has the sum and its in.
	Finish(ctx context.Context, out, in [][]float32) error
}

// Cutter is a Sum that measures its ring in Begin, and then cuts the gradient accordingly. With
// more than two ranks the cut decides in which order numbers are added. So a job keeps it.
type Cutter interface {
	Cut() (least int64) // as it is now
	// SetCut takes an earlier ring's cut in the place of a measurement.
	SetCut(least int64)
}

// Pauser is a Sum that sends only the rows of an embedding that some rank has read. If all were
// read, it sends the whole embedding for some steps, without asking the ranks. With more than two
// ranks this pause changes the order in which numbers are added. So a checkpoint has it.
type Pauser interface {
	Pause() (steps int64) // the steps left of the pause
	SetPause(steps int64)
}

// Keeper is a Sum that keeps parts of the ranks' gradients for later steps. No checkpoint has them,
// so a step after which one may be saved sends all. Then a job that resumes from it computes the
// same as one that goes on.
type Keeper interface {
	Keeps() bool // does so in this job
	// SendAll makes the step send all, with what is kept. It is called between Resume and Begin.
	SendAll()
	// OldMomentum follows Begin. It returns host memory for the optimizer's momentum, which the
	// ranks go on with; nil: they have it.
	OldMomentum() []float32
	// NewMomentum follows Finish in a step that sends all. It returns the ranks' momentum, which
	// the optimizer is to store; nil: the optimizer has its own.
	NewMomentum() []float32
}

// Tail is the number of floats behind the gradient in the same sum: see Task.Gradients.
const Tail = tailSize

// Layout of the tail. Each value is summed over the ranks.
const (
	tailLoss      = 0            // exact: the rank's part of the mean loss
	tailNorm      = exact.Floats // exact: the norm of the rank's gradient, weighted by its share
	tailNonfinite = tailNorm + exact.Floats
	tailCulprit   = tailNonfinite + 1
	tailStop      = tailCulprit + 1
	tailRegroup   = tailStop + 1
	tailStep      = tailRegroup + 1 // the step's number modulo stepModulus
	tailArrival   = tailStep + 1    // arrival times, arrivalSlots long
	tailSize      = tailArrival + arrivalSlots
)

// stepModulus keeps a sum of exact.MaxTerms step numbers below 2^24, which float32 holds exactly.
const stepModulus = 1 << 24 / exact.MaxTerms

// tally is what the ranks tell each other in a step: one rank's values, or their sum.
type tally struct {
	loss      exact.Sum // the rank's loss, summed over its targets, by the step's targets
	norm      exact.Sum // of its gradient or its clipped parts, each weighted by its share
	nonfinite int       // ranks whose loss or gradient is not finite
	culprit   int       // the rank, if nonfinite is 1
	stop      int       // ranks that want to stop after this step
	regroup   int       // ranks that want to leave the ring after this step
	// slowest is the longest time that a rank took from the previous sum until it only waited for
	// this one. It is set in a sum only, and not exact. See arrivalSlots.
	slowest time.Duration
}

// carry is the lane states that travel beside a gradient, by hop; empty: none.
type carry struct{ out, in [][]float32 }

// exchange sums a gradient and a tally over the ranks, and measures the time.
type exchange struct {
	sum      Sum // noSum: there is one rank
	gradient *compute.Mirror
	rank     int
	ranks    int
	now      func() time.Time

	sendsAll bool // a Keeper's current step sends all
	stops    bool // a rank wants to stop after the next step, which is to send all

	own     tally         // of the current sum
	lastSum time.Time     // when the ranks' last sum ended
	reached time.Time     // when this rank began to only wait for the step's sum
	busy    time.Duration // time that the sum computed after reached
	waited  time.Duration // time that other sums of the same step took before reached
	took    time.Duration // time from the previous sum to reached, less waited, plus busy
}

// newMirror sums in the task's own memory if that is host memory.
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

// exposed is how long this rank did nothing but wait for the last sum.
func (x *exchange) exposed() time.Duration {
	return x.lastSum.Sub(x.reached) - x.busy + x.waited
}

// sumOverRanks replaces the gradient by its sum over the ranks and returns the sum of their
// tallies. The carry travels ahead. step is an index; an error is returned if the ranks are not at
// the same step.
func (x *exchange) sumOverRanks(
	ctx context.Context, step int64, own tally, ahead carry,
) (tally, error) {
	own.culprit = x.rank
	x.own, x.busy = own, 0
	x.sum.Load(ctx)
	x.reached = x.now()
	if x.sum == (noSum{}) {
		x.lastSum = x.reached
		return own, nil
	}
	var err error
	if x.busy, err = x.sum.Sum(ctx); err != nil {
		return tally{}, err
	}
	tail := x.gradient.Behind()
	own.put(tail, step)
	x.took = x.reached.Sub(x.lastSum) - x.waited + x.busy
	putArrival(tail[tailArrival:], x.rank, x.took)
	if err := x.sum.Finish(ctx, ahead.out, ahead.in); err != nil {
		return tally{}, err
	}
	x.lastSum = x.now()
	if want := float32(x.ranks) * float32(step%stepModulus); tail[tailStep] != want {
		return tally{}, fmt.Errorf("the ranks are at different steps (their numbers modulo %d add "+
			"up to %v, not %v): they must start from the same checkpoint", stepModulus,
			tail[tailStep], want)
	}
	all := takeTally(tail)
	all.slowest = takeArrivals(tail[tailArrival:], x.ranks)
	return all, nil
}

// keeper returns the Sum if it keeps parts of gradients; nil: it does not.
func (x *exchange) keeper() Keeper {
	if k, ok := x.sum.(Keeper); ok && k.Keeps() {
		return k
	}
	return nil
}

// postponeStop clears a wish to stop if something is kept. The next step sends it, and the wish
// holds until then.
func (x *exchange) postponeStop(all *tally) {
	if x.keeper() != nil && !x.sendsAll {
		x.stops, all.stop = all.stop > 0, 0
	}
}

// put writes a rank's tally into its tail.
func (t tally) put(tail []float32, step int64) {
	t.loss.Put(tail[tailLoss:])
	t.norm.Put(tail[tailNorm:])
	tail[tailNonfinite] = float32(t.nonfinite)
	tail[tailCulprit] = float32(t.nonfinite * t.culprit) // of one rank alone the sum is its number
	tail[tailStop] = float32(t.stop)
	tail[tailRegroup] = float32(t.regroup)
	tail[tailStep] = float32(step % stepModulus)
}

// takeTally reads the sum of the tallies.
func takeTally(tail []float32) tally {
	return tally{
		loss:      exact.Take(tail[tailLoss:]),
		norm:      exact.Take(tail[tailNorm:]),
		nonfinite: int(tail[tailNonfinite]),
		culprit:   int(tail[tailCulprit]),
		stop:      int(tail[tailStop]),
		regroup:   int(tail[tailRegroup]),
	}
}

// noSum is the Sum of a single rank: its gradient is the sum.
type noSum struct{}

func (noSum) Resume(int64, int64, bool)                                        {}
func (noSum) Begin(context.Context, int64, float64) (measured bool, err error) { return false, nil }
func (noSum) Rule(_ int64, u compute.Update) compute.Update                    { return u }
func (noSum) Touch([]int32)                                                    {}
func (noSum) Stage() []float32                                                 { return nil }
func (noSum) Early() bool                                                      { return false }
func (noSum) Ready(context.Context, int)                                       {}
func (noSum) Begun() int                                                       { return 0 }
func (noSum) Load(context.Context)                                             {}
func (noSum) Sum(context.Context) (busy time.Duration, err error)              { return 0, nil }
func (noSum) Finish(_ context.Context, _, _ [][]float32) error                 { return nil }
