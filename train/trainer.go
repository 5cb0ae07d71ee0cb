package train

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"rondo/compute"
	"rondo/model"
)

// segment is what a step uses of a model.Segment.
type segment interface {
	Run(model.SegmentInput) (lossSum float64, err error)
	ZeroState()
	State(dst []float32) error
	SetState(src []float32) error
	Evaluate(inputs, targets []int32) (lossSum float64, count int, err error)
	ZeroEvaluationState()
	Close()
}

// Trainer trains a model, as one of N ranks. Its methods, but for RequestStop, belong to one
// goroutine.
type Trainer struct {
	cfg     Config
	model   *model.Model
	dev     compute.Device
	batches Batches
	reducer Reducer // nil when there is one rank

	first, count, all int   // lanes [first, first+count) of all: B and G
	laneNumbers       []int // of this rank's lanes, [B]
	laneSize          int   // floats that a lane carries
	stepsPerEpoch     int64

	segment  segment
	exchange *exchange
	grads    []float32   // device memory
	slots    [][]float32 // of the optimizer, device memory

	states     []float32 // [B, laneSize], host memory
	lanes      []float32 // [G, laneSize], host memory; nil unless snapshots are taken
	laneFloats []int     // where each rank's part of lanes ends
	copied     *Snapshot // used again by snapshot

	progress     Progress
	ahead        *ahead // while Run runs
	rates        rates
	evaluated    *EvalReport // the last
	saveErr      error       // of the last save that failed
	saveFailures int

	stopping atomic.Bool
}

// Result is how a run ended.
type Result struct {
	Progress Progress
	Stopped  bool // by RequestStop on some rank, before the last step
	// Loss is the mean over the epoch that the last step belongs to, so far; NaN when no step of
	// it counts. Perplexity is its exp.
	Loss, Perplexity float64
	// TokensPerSecond is the median over the steps of this run, to within 0.5 %, of G*T by this
	// rank's time for the step; evaluating, saving and sampling are not in it.
	TokensPerSecond float64
	Eval            *EvalReport // the last of this run; nil if there was none
}

// New makes the trainer of one rank. Reducer may be nil when there is one rank. The model, the
// batches and the reducer stay the caller's; until Close the model's gradients, and its device
// while a method runs, are the trainer's. A reducer that failed may go on reading the gradients:
// it must be closed before the model.
func New(m *model.Model, batches Batches, reducer Reducer, cfg Config) (*Trainer, error) {
	stepsPerEpoch := batches.StepsPerEpoch()
	if err := cfg.complete(stepsPerEpoch); err != nil {
		return nil, err
	}
	if reducer == nil && len(cfg.LaneEnds) > 1 {
		return nil, fmt.Errorf("train: %d ranks without a Reducer", len(cfg.LaneEnds))
	}
	t := &Trainer{cfg: cfg, model: m, dev: m.Device(), batches: batches, reducer: reducer,
		grads: m.Gradients(), laneSize: m.Config().StateSize(), stepsPerEpoch: stepsPerEpoch}
	t.first, t.count, t.all = cfg.lanes()
	for b := range t.count {
		t.laneNumbers = append(t.laneNumbers, t.first+b)
	}
	var err error
	if t.exchange, err = newExchange(m, reducer, len(cfg.LaneEnds), cfg.HostMemory); err != nil {
		return nil, err
	}
	t.states = make([]float32, t.count*t.laneSize)
	if cfg.Save {
		t.lanes = make([]float32, t.all*t.laneSize)
		for _, end := range cfg.LaneEnds {
			t.laneFloats = append(t.laneFloats, end*t.laneSize)
		}
	}
	if t.segment, err = m.NewSegment(cfg.BPTT, t.count); err != nil {
		return nil, err
	}
	for range cfg.Optimizer.Rule.Slots() {
		t.slots = append(t.slots, t.dev.Alloc(len(m.Params())))
	}
	return t, nil
}

// Run trains until the last step, a stop or an error, and is called once. When ctx ends it returns
// at once, between two steps or from a wait, and nothing is saved.
func (t *Trainer) Run(ctx context.Context) (Result, error) {
	t.ahead = readAhead(ctx, t.batches.Fill, t.cfg.BPTT*t.count, t.first, t.count,
		t.progress.Step, t.cfg.Steps)
	defer t.ahead.close()
	stop := false
	for !stop && t.progress.Step < t.cfg.Steps {
		index := t.progress.Step
		err := context.Cause(ctx)
		if err == nil {
			stop, err = t.step(ctx)
		}
		if err != nil {
			return t.result(false), fmt.Errorf("step %d: %w", index+1, err)
		}
	}
	return t.result(stop), t.flush(ctx)
}

func (t *Trainer) result(stop bool) Result {
	loss := t.progress.EpochLoss()
	return Result{Progress: t.progress, Stopped: stop && t.progress.Step < t.cfg.Steps, Loss: loss,
		Perplexity: math.Exp(loss), TokensPerSecond: t.rates.median(), Eval: t.evaluated}
}

// RequestStop asks all ranks to stop after the step that they are at, with a snapshot. Any
// goroutine may call it, on any rank, at any time.
func (t *Trainer) RequestStop() { t.stopping.Store(true) }

// Progress returns where the job is. It is not for use while Run runs.
func (t *Trainer) Progress() Progress { return t.progress }

// Close frees the trainer's memory.
func (t *Trainer) Close() {
	if t.segment != nil {
		t.segment.Close()
		t.segment = nil
	}
	for _, s := range t.slots {
		t.dev.Free(s)
	}
	t.slots = nil
}
