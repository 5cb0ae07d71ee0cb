package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"rondo/compute"
	"rondo/model"
	"rondo/task/lm"
	"rondo/train"
	"rondo/train/optim"
)

// TrainRow is the speed of a device at a shape. Its rates are of whole steps: reading the batch,
// forward, backward, clipping, update, and the rest of a step of train.Trainer with one rank.
type TrainRow struct {
	Case
	Device string `json:"device"`
	// TokensPerSecond is the median over the windows, and BestTokensPerSecond the highest.
	TokensPerSecond     float64   `json:"tokens_per_second"`
	BestTokensPerSecond float64   `json:"best_tokens_per_second"`
	Windows             []float64 `json:"windows"`
	// GFLOPS counts the products of a step as Shape.Flops does, at the median rate; PeakGFLOPS is
	// the highest that the Meter has seen; OfPeak is their quotient.
	GFLOPS     float64 `json:"gflops"`
	PeakGFLOPS float64 `json:"peak_gflops"`
	OfPeak     float64 `json:"of_peak"`
	// ParameterBytes are the parameters alone; PeakBytes the most that the device has held:
	// parameters, gradients and the workspaces of a step.
	ParameterBytes int64 `json:"parameter_bytes"`
	PeakBytes      int64 `json:"peak_bytes"`
}

// Windows is the number and length of measurements.
type Windows struct {
	Length time.Duration // of each, but at least one step
	Count  int
}

// Limits of Windows.
const (
	maxWindow  = time.Hour
	maxWindows = 1000
)

// Validate returns an error of one line that names the wrong flag.
func (w Windows) Validate() error {
	if w.Length <= 0 || w.Length > maxWindow {
		return fmt.Errorf("--seconds %v: must be more than 0, and %v at most",
			w.Length.Seconds(), maxWindow.Seconds())
	}
	if w.Count < 1 || w.Count > maxWindows {
		return fmt.Errorf("--windows %d: must be 1 to %d", w.Count, maxWindows)
	}
	return nil
}

// Train measures whole training steps: SGD, gradients clipped by norm, random tokens, the state
// carried from step to step. It ends early with ctx's cause when ctx ends.
func (m *Meter) Train(ctx context.Context, dev Device, s Shape, w Windows) (TrainRow, error) {
	if err := s.Validate(); err != nil {
		return TrainRow{}, err
	}
	if err := w.Validate(); err != nil {
		return TrainRow{}, err
	}
	m.look(dev)
	rates, parameters, err := trainRates(ctx, dev, s, w)
	if err != nil {
		return TrainRow{}, err
	}
	row := TrainRow{Case: newCase(s, dev), Device: dev.Name(), Windows: rates,
		TokensPerSecond: Median(rates), BestTokensPerSecond: slices.Max(rates),
		ParameterBytes: 4 * int64(parameters)}
	_, row.PeakBytes = dev.Bytes()
	m.look(dev)
	m.reached(dev, row.BestTokensPerSecond*s.Flops())
	row.GFLOPS, row.PeakGFLOPS = row.TokensPerSecond*s.Flops()/1e9, m.peak(dev)/1e9
	row.OfPeak = ratio(row.GFLOPS, row.PeakGFLOPS)
	return row, nil
}

// trainRates returns how many tokens a second each window had, and how many parameters there are.
func trainRates(ctx context.Context, dev Device, s Shape, w Windows) ([]float64, int, error) {
	config, inPlace := s.config(), hostMemory(dev)
	if !inPlace {
		config.GradientTail = 0
	}
	m, err := model.New(config, dev)
	if err != nil {
		return nil, 0, err
	}
	defer m.Close()
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	watch := newStopwatch(s.Tokens(), w, time.Now, enough)
	task, err := lm.New(m, lm.Config{BPTT: s.BPTT, Batches: newBatches(s)})
	if err != nil {
		return nil, 0, err
	}
	t, err := train.New(task, train.Config{
		Lanes: s.Batch, Steps: maxSteps,
		Optimizer:      optim.Optimizer{Rule: compute.SGD},
		Schedule:       optim.Schedule{Kind: optim.Constant, Rate: learningRate},
		Clip:           optim.Clip{Limit: 1, By: optim.ByNorm, Scope: optim.ScopeWorker},
		NonfiniteLimit: 1, Observer: watch, HostMemory: inPlace,
	})
	if err != nil {
		return nil, 0, err
	}
	defer t.Close()
	if _, err := t.Join(ctx, train.Ring{LaneEnds: []int{s.Batch}, Generation: 1}, nil); err != nil {
		return nil, 0, err
	}
	if _, err := t.Run(ctx); err == nil {
		return nil, 0, fmt.Errorf("%v: %d steps took less than %d windows", s, int64(maxSteps),
			w.Count)
	} else if !errors.Is(err, errEnough) {
		return nil, 0, err
	}
	return watch.rates, m.Count(), nil
}

// hostMemory reports whether a device's memory is the host's. A device with its own memory has a
// method for it.
func hostMemory(dev Device) bool {
	d, ok := dev.(interface{ HostMemory() bool })
	return !ok || d.HostMemory()
}

const (
	maxSteps     = 1 << 40 // the windows end the run before
	learningRate = 0.1
)

// errEnough ends a run whose windows are complete.
var errEnough = errors.New("measured")

// stopwatch hears a run's steps and divides them into windows. The first, as long as the others,
// does not count: in it memory is touched for the first time, and the processor reaches its speed.
type stopwatch struct {
	tokens  int // of a step
	windows Windows
	now     func() time.Time
	enough  func(cause error)

	began time.Time // of the window
	steps int       // in it
	warm  bool
	rates []float64
}

// newStopwatch starts the clock. When the windows are complete it calls enough once.
func newStopwatch(tokens int, w Windows, now func() time.Time, enough func(error)) *stopwatch {
	return &stopwatch{tokens: tokens, windows: w, now: now, enough: enough, began: now()}
}

// Step counts one.
func (w *stopwatch) Step(train.StepReport) {
	now := w.now()
	took := now.Sub(w.began)
	w.steps++
	if took < w.windows.Length {
		return
	}
	if w.warm {
		w.rates = append(w.rates, float64(w.steps*w.tokens)/took.Seconds())
	}
	w.warm, w.began, w.steps = true, now, 0
	if len(w.rates) == w.windows.Count {
		w.enough(errEnough)
	}
}

func (*stopwatch) Evaluated(train.EvalReport) {}
func (*stopwatch) Sampled(int64, string)      {}
func (*stopwatch) Checkpoint(int64)           {}
func (*stopwatch) Notice(string)              {}
func (*stopwatch) OwnNotice(string)           {}

// batches are random tokens, a few steps' worth, over and over.
type batches struct {
	tokens [][]int32 // each [B][T+1]
	bptt   int
}

// heldBatches is how many steps' tokens are held.
const heldBatches = 8

// newBatches draws tokens, each as likely as the others. With an adaptive softmax token k has a
// probability near to 1/(k+1), as words have by Zipf's law: its speed depends on that.
func newBatches(s Shape) batches {
	random := rand.New(rand.NewPCG(1, 2))
	b := batches{bptt: s.BPTT}
	for range heldBatches {
		ids := make([]int32, s.Batch*(s.BPTT+1))
		for i := range ids {
			if s.Adaptive == "" {
				ids[i] = int32(random.IntN(s.Vocab))
				continue
			}
			rank := int(math.Pow(float64(s.Vocab+1), random.Float64())) // from 1
			ids[i] = int32(min(rank, s.Vocab) - 1)
		}
		b.tokens = append(b.tokens, ids)
	}
	return b
}

func (b batches) SegmentsPerEpoch() int64 { return maxSteps }
func (b batches) Reset(step int64) bool   { return step == 0 }
func (b batches) Lengths() []int          { return []int{b.bptt} }
func (b batches) Length(int64) int        { return b.bptt }

func (b batches) Fill(ctx context.Context, step int64, first, count int,
	inputs, targets []int32) error {
	ids := b.tokens[step%heldBatches]
	for lane := range count {
		row := ids[(first+lane)*(b.bptt+1):]
		for t := range b.bptt {
			inputs[t*count+lane], targets[t*count+lane] = row[t], row[t+1]
		}
	}
	return ctx.Err()
}
