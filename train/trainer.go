package train

import (
	"context"
	"fmt"
	"math"
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
	*core
	*batch
	stride stride // what commits at once
	rollCaller
	evaluator
	reporter
	keeper
	saveAgain bool // the snapshot of the job's end may have been lost with another rank
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
	c := &core{cfg: cfg, task: task, dev: task.Device(), grads: task.Gradients()[:n:n],
		laneSize: task.StateSize(), segmentsPerEpoch: perEpoch, slots: &wholeSlots{}}
	_, c.records = c.dev.(compute.Recorder)
	now := func() time.Time { return c.cfg.Now() }
	c.laps = laps{tracer: cfg.Tracer, now: now}
	c.laneStates = agree.NewLaneStates(cfg.Lanes, c.laneSize)
	if !cfg.HostMemory {
		c.memory = agree.Memory{Device: c.dev, Piece: make([]float32, min(n, pieceFloats))}
	}
	mirror, err := newMirror(task, cfg.HostMemory)
	if err != nil {
		return nil, err
	}
	c.exchange = &exchange{sum: noSum{}, now: now, gradient: mirror}
	b := &batch{updater: newUpdater(c), finishes: task.Finishes(),
		fold: fold{dev: c.dev, grads: c.grads, leaves: cfg.LaneGroups}}
	t := &Trainer{core: c, batch: b, rollCaller: rollCaller{batch: b},
		evaluator: evaluator{batch: b}, reporter: reporter{core: c}, keeper: keeper{core: c}}
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
	t.stride = oneStep{t.batch}
	if err := t.newSlots(n); err != nil {
		return err
	}
	if t.cfg.Local.on() {
		r := &round{batch: t.batch}
		t.stride = r
		_, copies := t.cfg.Local.Kept(t.cfg.Optimizer.Rule)
		for range copies {
			r.start = append(r.start, t.dev.Alloc(n))
		}
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
			regroup, err = t.step(ctx)
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
		TokensPerSecond: t.reporter.rates.median(), Eval: t.evaluated}
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
func (c *core) Forget() {
	c.hasState = false
	c.laneStates.Forget()
	c.slots.Forget()
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
	t.slots.Close()
	if t.stride != nil {
		t.stride.close()
	}
	if t.clipper != nil {
		t.clipper.Close()
	}
	t.fold.close()
	t.exchange.gradient.Close()
}
