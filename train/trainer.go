package train

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"rondo/compute"
	"rondo/train/agree"
)

// pieceFloats is how much of a tensor passes through host memory at once, where that is not the
// device's.
const pieceFloats = 1 << 20

// Trainer trains a Task, as one of N ranks. It outlives rings: after each that ends, the next
// Join takes part in another one with the state that this rank has. Its methods, but for
// RequestStop and RequestRegroup, belong to one goroutine.
type Trainer struct {
	cfg      Config
	task     Task
	dev      compute.Device
	laneSize int // floats that a lane carries

	segmentsPerEpoch int64

	state
	slots Slots
	start [][]float32 // what a round began with, device memory; without rounds, none

	// The seat in the ring.
	ring         Ring
	ranks        agree.Ranks // of the ring
	first, count int         // lanes [first, first+count)
	groups       []Lanes     // in which they are computed, each of B lanes
	seat         Seat
	seated       int // lanes that the seat is for, B
	fold         fold
	exchange     *exchange
	ending       ending
	own          tally // of the step in hand, used again
	onlyPasses   bool  // Pass.OnlyPasses
	mayStage     bool  // the gradient may be copied to the host while it is computed
	finishes     []int // up to where backward finishes the gradient, one after the other
	saveAgain    bool  // the snapshot of the job's end may have been lost with another rank

	// What the device is asked to do with the gradient, and reads anew in each step.
	clipper compute.Clipper
	clip    compute.Clip
	next    compute.Update
	records bool // the device is a compute.Recorder
	// momentumGone says that the next update has no momentum, though the optimizer has.
	momentumGone bool
	clipBehind   func(*compute.Loss)
	updateBehind func(*compute.Loss)

	grads    []float32    // device memory
	copyRows []int32      // copyWithin's rows: 0, 1, 2 and so on
	memory   agree.Memory // of the tensors
	copied   *Snapshot    // used again by snapshot

	rates        rates
	roll         agree.Roll
	laps         laps
	spoil        Spoil       // of the step that is done
	unrecorded   bool        // the Observer knows that the device does not record
	evaluated    *EvalReport // the last
	saveErr      error       // of the last save that failed
	saveFailures int

	stopping, regrouping atomic.Bool
}

// Result is how a run ended.
type Result struct {
	Progress Progress
	Stopped  bool // by RequestStop on some rank, before the last step
	Early    bool // by Config.EarlyStop, before the last step
	Regroup  bool // by RequestRegroup on some rank, with steps left to do
	// Loss is the mean over the epoch that the last step belongs to, so far; NaN when no step of
	// it counts. Perplexity is its exp.
	Loss, Perplexity float64
	// TokensPerSecond is the median over the steps of this trainer, to within 0.5 %, of G*T by this
	// rank's time for the step; evaluating, saving and sampling are not in it.
	TokensPerSecond float64
	Eval            *EvalReport // the last of this trainer; nil if there was none
}

// New makes a trainer, which has no state before its first Join. The task stays the caller's; until
// Close its parameters and gradients, and its device while a method runs, are the trainer's.
func New(task Task, cfg Config) (*Trainer, error) {
	perEpoch := task.SegmentsPerEpoch()
	if err := cfg.complete(perEpoch, task.Evaluates()); err != nil {
		return nil, err
	}
	n := len(task.Params())
	t := &Trainer{cfg: cfg, task: task, dev: task.Device(), grads: task.Gradients()[:n:n],
		laneSize: task.StateSize(), segmentsPerEpoch: perEpoch, slots: &wholeSlots{}}
	t.fold = fold{dev: t.dev, grads: t.grads, leaves: cfg.LaneGroups}
	var err error
	now := func() time.Time { return t.cfg.Now() }
	t.laps = laps{tracer: cfg.Tracer, now: now}
	t.exchange = &exchange{sum: noSum{}, now: now}
	if t.exchange.gradient, err = newMirror(task, cfg.HostMemory); err != nil {
		return nil, err
	}
	t.laneStates = agree.NewLaneStates(cfg.Lanes, t.laneSize)
	t.finishes = task.Finishes()
	if !cfg.HostMemory {
		t.memory = agree.Memory{Device: t.dev, Piece: make([]float32, min(n, pieceFloats))}
	}
	t.newBehinds()
	_, t.records = t.dev.(compute.Recorder)
	if err := t.allocate(n); err != nil {
		t.Close()
		return nil, fmt.Errorf("what --optimizer keeps of %d parameters: %w", n, err)
	}
	return t, nil
}

// allocate makes room for what the optimizer keeps of so many parameters, and the clipper.
func (t *Trainer) allocate(n int) (err error) {
	defer compute.Catch(&err)
	t.clipper = t.dev.NewClipper()
	if err := t.newSlots(n); err != nil {
		return err
	}
	_, copies := t.cfg.Local.Kept(t.cfg.Optimizer.Rule)
	for range copies {
		t.start = append(t.start, t.dev.Alloc(n))
	}
	return nil
}

// Run trains in the ring that was joined until the last step, a stop, a regrouping or an error,
// and is called once for each Join. When ctx ends it returns at once, between two steps or from a
// wait, and nothing is saved.
func (t *Trainer) Run(ctx context.Context) (Result, error) {
	if err := t.finish(ctx); err != nil {
		return t.result(false), fmt.Errorf("step %d: %w", t.progress.Step, err)
	}
	if t.done() {
		return t.result(false), t.flush(ctx)
	}
	defer t.seat.Read(ctx, t.spans(t.progress.Step, t.cfg.Steps))()
	regroup := false
	for !regroup && !t.done() {
		index := t.progress.Step
		err := context.Cause(ctx)
		if err == nil {
			regroup, err = t.advance(ctx)
		}
		if err != nil {
			return t.result(false), fmt.Errorf("step %d: %w", index+1, err)
		}
	}
	if !t.done() { // whoever is in the next ring, it will know all lanes and slots
		err := t.lastStates().Gather(ctx, t.ranks)
		if err == nil {
			err = t.slots.Gather(ctx, true)
		}
		if err != nil {
			return t.result(false), fmt.Errorf("step %d: %w", t.progress.Step, err)
		}
		return t.result(true), nil
	}
	return t.result(false), t.flush(ctx)
}

// advance does what commits next: a step, or a round of them.
func (t *Trainer) advance(ctx context.Context) (leave bool, err error) {
	if t.cfg.Local.on() {
		return t.round(ctx)
	}
	return t.step(ctx)
}

func (t *Trainer) done() bool {
	return t.stopped || t.progress.Step >= t.cfg.Steps || t.endsEarly(&t.progress)
}

// finish does what an earlier ring has left undone after its last step.
func (t *Trainer) finish(ctx context.Context) error {
	if t.pending {
		return t.afterStep(ctx)
	}
	if t.saveAgain {
		t.saveAgain = false
		if err := t.alike(ctx); err != nil {
			return err
		}
		return t.save(ctx, t.progress)
	}
	return nil
}

func (t *Trainer) result(regroup bool) Result {
	loss := t.progress.EpochLoss()
	before := t.progress.Step < t.cfg.Steps
	early := before && t.endsEarly(&t.progress)
	return Result{Progress: t.progress, Stopped: before && t.stopped && !early, Early: early,
		Regroup: regroup, Loss: loss, Perplexity: math.Exp(loss),
		TokensPerSecond: t.rates.median(), Eval: t.evaluated}
}

// RequestStop asks all ranks to stop after the step that they are at, with a snapshot. Any
// goroutine may call it, on any rank, at any time; it holds in later rings too.
func (t *Trainer) RequestStop() { t.stopping.Store(true) }

// RequestRegroup asks all ranks to leave the ring after the step that they are at, so that another
// one can be formed of whichever of them, and of others. Any goroutine may call it, on any rank, at
// any time; the next Join fulfils it.
func (t *Trainer) RequestRegroup() { t.regrouping.Store(true) }

// Forget drops the state, which is not to be trusted or is of no use: the next Join says that this
// rank has none.
func (t *Trainer) Forget() {
	t.hasState = false
	t.laneStates.Forget()
	t.slots.Forget()
}

// HasState says whether this rank has a state to go on from.
func (t *Trainer) HasState() bool { return t.hasState }

// Progress returns where the job is. It is not for use while Join or Run runs.
func (t *Trainer) Progress() Progress { return t.progress }

// Close frees the trainer's memory.
func (t *Trainer) Close() {
	if t.seat != nil {
		t.seat.Close()
		t.seat = nil
	}
	for _, s := range t.start {
		t.dev.Free(s)
	}
	t.start = nil
	t.slots.Close()
	if t.clipper != nil {
		t.clipper.Close()
	}
	t.fold.close()
	t.exchange.gradient.Close()
}
