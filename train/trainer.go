package train

import (
	"fmt"
	"math"
	"time"

	"rondo/compute"
	"rondo/train/agree"
)

// pieceFloats is how many floats of a tensor are copied through host memory at once, if the device
// has its own memory.
const pieceFloats = 1 << 20

// Trainer trains a Task as one of N ranks. It outlives rings: after a ring ends, the next Join
// enters another one with this rank's state. All methods but RequestStop and RequestRegroup belong
// to one goroutine.
type Trainer struct {
	*core
	*batch
	unit commitUnit // a step or a round
	rollCaller
	evaluator
	reporter
	snapshotter
	saveAgain bool // the final snapshot may be lost with the rank that saved it
}

// Result is how a run ended.
type Result struct {
	Progress Progress
	Stopped  bool // by RequestStop on some rank, before the last step
	Early    bool // by Config.EarlyStop, before the last step
	Regroup  bool // by RequestRegroup on some rank, with steps left
	// Loss is the mean over the last step's epoch so far; NaN if all its steps were skipped.
	// Perplexity is its exp.
	Loss, Perplexity float64
	// TokensPerSecond is this trainer's median, within 0.5 %, of the tokens of all lanes in a
	// step over this rank's step time.
	// Evaluating, saving and sampling are not included.
	TokensPerSecond float64
	Eval            *EvalReport // the last of this trainer; nil if there was none
}

// New makes a trainer. It has no state before its first Join. The caller keeps the task, but until
// Close its parameters and gradients belong to the trainer, and so does its device during each
// method.
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
		evaluator: evaluator{batch: b}, reporter: reporter{core: c},
		snapshotter: snapshotter{core: c}}
	if err := t.allocate(n); err != nil {
		t.Close()
		return nil, fmt.Errorf("what --optimizer keeps of %d parameters: %w", n, err)
	}
	return t, nil
}

// allocate allocates the optimizer's slots for n parameters, and the clipper.
func (t *Trainer) allocate(n int) (err error) {
	defer compute.Catch(&err)
	t.clipper = t.dev.NewClipper()
	t.unit = oneStep{t.batch}
	if err := t.newSlots(n); err != nil {
		return err
	}
	if t.cfg.Local.On() {
		r := &round{batch: t.batch}
		t.unit = r
		_, copies := t.cfg.Local.Kept(t.cfg.Optimizer.Rule)
		for range copies {
			r.start = append(r.start, t.dev.Alloc(n))
		}
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

// RequestStop asks all ranks to stop after the current step, with a snapshot, or after the next if
// the Sum is a Keeper. Any goroutine on any rank may call it at any time. The request holds in
// later rings too.
func (t *Trainer) RequestStop() { t.stopping.Store(true) }

// RequestRegroup asks all ranks to leave the ring after the current step, so that another can be
// formed. Any goroutine on any rank may call it at any time. The next Join clears the request.
func (t *Trainer) RequestRegroup() { t.regrouping.Store(true) }

// Forget drops the state. At the next Join this rank reports that it has none.
func (c *core) Forget() {
	c.hasState = false
	c.laneStates.Forget()
	c.slots.Forget()
}

// HasState reports whether this rank has a state to resume from.
func (t *Trainer) HasState() bool { return t.hasState }

// Progress returns the job's progress. It must not be called during Join or Run.
func (t *Trainer) Progress() Progress { return t.progress }

// Close frees the trainer's memory.
func (t *Trainer) Close() {
	if t.seat != nil {
		t.seat.Close()
		t.seat = nil
	}
	t.slots.Close()
	if t.unit != nil {
		t.unit.close()
	}
	if t.clipper != nil {
		t.clipper.Close()
	}
	t.fold.close()
	t.exchange.gradient.Close()
}
