package train

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/model"
	"rondo/train/optim"
)

// If one rank requests a stop, all stop after the same step with the same snapshot.
func TestStop(t *testing.T) {
	var want *Snapshot
	for who := range 3 {
		j := newJob(3)
		j.config.Save = true
		j.config.Sample = func(context.Context, int64) (string, error) { return "never", nil }
		j.prepare = func(rank int, trainer *Trainer) {
			if rank == who {
				trainer.cfg.Observer = &stopper{trainer.cfg.Observer, trainer, 12}
			}
		}
		for rank, o := range j.run(t) {
			if o.err != nil || !o.result.Stopped || o.result.Progress.Step != 13 {
				t.Fatalf("rank %d: %+v, %v", rank, o.result, o.err)
			}
			if rank > 0 {
				continue
			}
			if len(o.saved) != 1 || o.flushed != 1 || len(o.samples) != 0 {
				t.Fatalf("%d saved, %d samples", len(o.saved), len(o.samples))
			}
			if want == nil {
				want = o.saved[0]
			}
			sameSnapshot(t, o.saved[0], want)
		}
	}
}

// askedLanes requests a stop from another goroutine when a batch is read.
type askedLanes struct {
	lanesOfText
	stop func(step int64)
}

func (a askedLanes) Fill(ctx context.Context, step int64, first, count int,
	inputs, targets []int32) error {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		a.stop(step)
	}()
	<-asked
	return a.lanesOfText.Fill(ctx, step, first, count, inputs, targets)
}

// Another goroutine may request the stop at any time: all ranks still stop after the same step.
func TestStopFromAnotherGoroutine(t *testing.T) {
	j := newJob(3)
	var trainer atomic.Pointer[Trainer]
	j.batches = askedLanes{newLanes(false), func(step int64) {
		if asked := trainer.Load(); step == 10 && asked != nil {
			asked.RequestStop()
		}
	}}
	j.prepare = func(rank int, t *Trainer) {
		if rank == 2 {
			trainer.Store(t)
		}
	}
	outcomes := j.run(t)
	at := outcomes[0].result.Progress.Step
	for rank, o := range outcomes {
		if o.err != nil || !o.result.Stopped || o.result.Progress.Step != at || at < 9 || at > 13 {
			t.Errorf("rank %d: %+v, %v", rank, o.result, o.err)
		}
	}
}

// A stop requested at the last step changes nothing: the job is done.
func TestStopAtTheEnd(t *testing.T) {
	j := newJob(1)
	j.config.Steps = 1
	j.prepare = func(_ int, trainer *Trainer) { trainer.RequestStop() }
	if o := j.mustRun(t); o.result.Stopped || o.result.Progress.Step != 1 {
		t.Errorf("%+v", o.result)
	}
}

// blockedRing blocks until its caller's ctx ends.
type blockedRing struct{ sumRing }

func (blockedRing) Timing() (sending, waiting time.Duration) { return 0, 0 }

func (blockedRing) AllGather(context.Context, []float32, []int) error { return nil }

func (blockedRing) Start(context.Context, []float32, *time.Time) (Pending, error) {
	return summed{}, nil
}

func (blockedRing) AllReduceCarry(ctx context.Context, _ []float32, _, _ [][]float32) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// blockedText blocks until its reader's ctx ends.
type blockedText struct{ lanesOfText }

func (blockedText) Fill(ctx context.Context, _ int64, _, _ int, _, _ []int32) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// blockedSaver ends the job's ctx and blocks until its own ends.
type blockedSaver struct {
	memorySaver
	giveUp func()
}

func (b *blockedSaver) Save(ctx context.Context, _ *Snapshot) error {
	b.giveUp()
	<-ctx.Done()
	return ctx.Err()
}

// When ctx ends, Run returns from any wait with ctx's cause, and saves nothing.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct {
		ring    sumRing
		batches Batches
	}{
		"in the ring": {blockedRing{}, newLanes(false)},
		"reading":     {nil, blockedText{newLanes(false)}},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		j := newJob(1)
		j.batches, j.config.Save = c.batches, true
		j.prepare = func(int, *Trainer) { cancel(errTest) }
		var o outcome
		err := j.runRank(ctx, 0, c.ring, &o)
		if !errors.Is(err, errTest) || !strings.HasPrefix(err.Error(), "step 1: ") ||
			len(o.saved) != 0 || o.flushed != 0 {
			t.Errorf("%s: %v, %d saved", name, err, len(o.saved))
		}
	}
}

func TestCancelWhileSaving(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	j := newJob(1)
	j.config.Save, j.config.SaveEvery = true, 3
	saver := &blockedSaver{giveUp: func() { cancel(errTest) }}
	j.config.Saver = saver
	var o outcome
	if err := j.runRank(ctx, 0, nil, &o); !errors.Is(err, errTest) || len(o.notices) != 0 ||
		saver.flushed != 0 || err.Error() != "step 3: it broke" {
		t.Errorf("%v, notices %q", err, o.notices)
	}
}

// canceller ends the context after a step.
type canceller struct {
	Observer
	after  int64
	cancel func()
}

func (c *canceller) Step(r StepReport) {
	if c.Observer.Step(r); r.Step == c.after {
		c.cancel()
	}
}

// Run ends before the next step even if it never waits.
func TestCancelBetweenSteps(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	j := newJob(1)
	j.prepare = func(_ int, trainer *Trainer) {
		trainer.cfg.Observer = &canceller{trainer.cfg.Observer, 3, func() { cancel(errTest) }}
	}
	var o outcome
	err := j.runRank(ctx, 0, nil, &o)
	if !errors.Is(err, errTest) || err.Error() != "step 4: it broke" || len(o.steps) != 3 {
		t.Errorf("%v after %d steps", err, len(o.steps))
	}
}

// watched is a seat that records its inputs.
type watched struct {
	Seat
	inputs []Pass
	zeroed []int // runs before each ZeroState
}

func (w *watched) Backward(in Pass) (float64, error) {
	w.inputs = append(w.inputs, in)
	return w.Seat.Backward(in)
}

func (w *watched) ZeroState() {
	w.zeroed = append(w.zeroed, len(w.inputs))
	w.Seat.ZeroState()
}

// A rank's seat receives its own lanes and the segment, which determine the dropout masks, and
// starts from zero where the batches reset.
func TestWhatSegmentsAreGiven(t *testing.T) {
	for _, random := range []bool{false, true} {
		for _, scope := range []optim.ClipScope{optim.ScopeWorker, optim.ScopeGlobal} {
			j := newJob(2)
			j.ends = []int{5, testG}
			j.config.Clip.Scope, j.batches, j.config.Steps = scope, newLanes(random), 12
			var w *watched
			j.prepare = func(rank int, trainer *Trainer) {
				if rank == 1 {
					w = &watched{Seat: trainer.seat}
					trainer.seat = w
				}
			}
			j.mustRun(t)
			zeroed := []int{0, 9}
			if random {
				zeroed = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
			}
			lanes := map[optim.ClipScope]float32{
				optim.ScopeWorker: 7, optim.ScopeGlobal: testG}[scope]
			if !slices.Equal(w.zeroed, zeroed) || len(w.inputs) != 12 {
				t.Errorf("random %v: zeroed before %v, %d runs", random, w.zeroed, len(w.inputs))
			}
			for i, in := range w.inputs {
				span := Span{int64(i) + 1, 0, int64(i), Lanes{First: 5, Count: 7}}
				if in.Span != span || in.Scale != 1/(lanes*testT) {
					t.Errorf("step %d: given %+v, scale %v", i, in.Span, in.Scale)
				}
			}
		}
	}
}

// brokenLanes fails to read one step.
type brokenLanes struct {
	lanesOfText
	at int64
}

func (b brokenLanes) Fill(ctx context.Context, step int64, first, count int,
	inputs, targets []int32) error {
	if step == b.at {
		return errTest
	}
	return b.lanesOfText.Fill(ctx, step, first, count, inputs, targets)
}

// brokenRing fails in its nth call.
type brokenRing struct {
	localRank
	calls, last int
}

func (b *brokenRing) fails() bool { b.calls++; return b.calls == b.last }

func (b *brokenRing) AllReduce(ctx context.Context, buf []float32) error {
	if b.fails() {
		return errTest
	}
	return b.localRank.AllReduce(ctx, buf)
}

func (b *brokenRing) Start(
	ctx context.Context, buf []float32, _ *time.Time,
) (Pending, error) {
	return summed{}, b.AllReduce(ctx, buf)
}

func (b *brokenRing) AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error {
	if b.fails() {
		return errTest
	}
	return b.localRank.AllReduceCarry(ctx, buf, out, in)
}

func (b *brokenRing) AllGather(ctx context.Context, buf []float32, ends []int) error {
	if b.fails() {
		return errTest
	}
	return b.localRank.AllGather(ctx, buf, ends)
}

func TestErrorsSayWhere(t *testing.T) {
	ring := func(last int) *brokenRing {
		return &brokenRing{localRank: localRank{localRing: newLocalRing(1)}, last: last}
	}
	for want, c := range map[string]struct {
		ring    sumRing
		batches Batches
	}{
		"step 5: reading the batch: it broke":          {nil, brokenLanes{newLanes(false), 4}},
		"joining the ring: it broke":                   {ring(2), newLanes(false)},
		"step 3: it broke":                             {ring(6), newLanes(false)},
		"step 6: gathering the lanes' state: it broke": {ring(10), newLanes(false)},
		"step 6: evaluation: it broke":                 {ring(11), newLanes(false)},
	} {
		j := newJob(1)
		j.bucketBytes = onePiece // so that a step is one collective
		j.batches, j.config.Save, j.config.SaveEvery = c.batches, true, 6
		if strings.Contains(want, "evaluation") {
			j.config.Save, j.evaluation, j.config.EvalEvery = false, newEvaluation(40), 6
			c.ring = ring(10)
		}
		var o outcome
		err := j.runRank(t.Context(), 0, c.ring, &o)
		if !errors.Is(err, errTest) || err.Error() != want {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// Ranks that start from different steps must not add their gradients.
func TestRanksAtDifferentSteps(t *testing.T) {
	j := newJob(2)
	j.prepare = func(rank int, trainer *Trainer) {
		trainer.progress = Progress{Step: int64(rank), Updates: int64(rank)}
	}
	for _, o := range j.run(t) {
		if o.err == nil || !strings.Contains(o.err.Error(), "ranks are at different steps") {
			t.Errorf("%v", o.err)
		}
	}
}

// A save that fails before a good one is reported at once, and is no failure at the end.
func TestLaterSaveSucceeds(t *testing.T) {
	j := newJob(2)
	saver := memorySaver{err: errTest}
	j.config.Steps, j.config.Save, j.config.SaveEvery, j.config.Saver = 8, true, 2, &saver
	j.config.SampleEvery = 5
	j.config.Sample = func(context.Context, int64) (string, error) {
		saver.err = nil // after the saves of steps 2 and 4
		return "", nil
	}
	o := j.run(t)[0]
	notes := slices.DeleteFunc(o.notices, func(s string) bool {
		return !strings.Contains(s, "not saved")
	})
	if o.err != nil || len(notes) != 2 || len(saver.saved) != 2 {
		t.Errorf("%v, notices %q, %d saved", o.err, notes, len(saver.saved))
	}
}

// A failed save is reported at once and at the end; the training goes on.
func TestSaveFails(t *testing.T) {
	for name, c := range map[string]struct {
		saver memorySaver
		rate  float64
		want  string
		notes int
	}{
		"saver": {memorySaver{err: errTest}, 1,
			"2 checkpoints were not saved; the last: step 8", 2},
		"background": {memorySaver{flushErr: errTest}, 1, "it broke", 0},
		"diverged":   {memorySaver{}, 3e38, "are not finite: lower --lr", 1},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(2)
			saver := c.saver
			j.config.Steps, j.config.Save, j.config.SaveEvery = 8, true, 4
			j.config.Saver, j.config.Clip = &saver, byNorm(0, optim.ScopeWorker)
			j.config.Schedule.Rate, j.config.NonfiniteLimit = c.rate, 100
			if c.rate > 1 {
				j.config.SaveEvery = 0
				j.batches = newLanes(true)
				j.config.Optimizer = optim.Optimizer{Rule: compute.Momentum, Momentum: 0.9}
				j.config.Optimizer.WeightDecay = 1e30
			}
			for rank, o := range j.run(t) {
				if len(o.steps) != 8 || o.result.Progress.Step != 8 {
					t.Errorf("rank %d did %d steps", rank, len(o.steps))
				}
				if rank > 0 {
					if o.err != nil {
						t.Errorf("rank %d: %v", rank, o.err)
					}
					continue
				}
				if o.err == nil || !strings.Contains(o.err.Error(), c.want) {
					t.Errorf("%v; want %q", o.err, c.want)
				}
				notes := slices.DeleteFunc(o.notices, func(s string) bool {
					return !strings.Contains(s, "not saved")
				})
				if len(notes) != c.notes || saver.flushed != 1 {
					t.Errorf("notices %q, %d flushes", notes, saver.flushed)
				}
			}
		})
	}
}

func TestSamples(t *testing.T) {
	j := newJob(2)
	j.config.Steps, j.config.SampleEvery = 7, 3
	j.config.Sample = func(_ context.Context, step int64) (string, error) {
		if step == 6 {
			return "", errTest
		}
		return "la", nil
	}
	outcomes := j.run(t)
	if got := outcomes[0]; !slices.Equal(got.samples, []string{"3 la", "7 la"}) ||
		!slices.Equal(got.notices, []string{"step 6: no sample: it broke"}) || got.err != nil {
		t.Errorf("%q, %q, %v", got.samples, got.notices, got.err)
	}
	if got := outcomes[1]; len(got.samples) != 0 || got.err != nil {
		t.Errorf("rank 1: %q, %v", got.samples, got.err)
	}
}

// The epoch's mean loss covers its own steps. The result has the last epoch's.
func TestEpochs(t *testing.T) {
	j := newJob(2)
	j.config.Steps = 22 // 9, 9 and 4
	o := j.mustRun(t)
	for i, s := range o.steps {
		mean, first := 0.0, i/9*9
		for _, before := range o.steps[first : i+1] {
			mean += before.Loss / float64(i+1-first)
		}
		if s.Step != int64(i+1) || s.Epoch != int64(i/9+1) || s.Steps != 22 ||
			math.Abs(s.EpochLoss-mean) > 1e-12 {
			t.Errorf("%+v; the epoch's mean is %v", s, mean)
		}
	}
	r := o.result
	if r.Loss != o.steps[21].EpochLoss || r.Perplexity != math.Exp(r.Loss) ||
		r.Progress.EpochSteps != 4 || r.Progress.Loss != o.steps[21].Loss {
		t.Errorf("%+v", r)
	}
}

// Tokens per second are the global batch's tokens over the clock's time.
func TestTokensPerSecond(t *testing.T) {
	j := newJob(1)
	now := time.Unix(0, 0)
	calls := 0
	j.config.Steps = 9
	clock := func() time.Time { // a step reads the clock four times
		if calls++; calls%4 == 0 {
			now = now.Add(time.Duration(calls/2) * time.Second) // steps of 2, 4, … 18 s
		}
		return now
	}
	j.prepare = func(_ int, trainer *Trainer) { trainer.cfg.Now = clock }
	o := j.mustRun(t)
	for i, s := range o.steps {
		if want := float64(testG*testT) / float64(2*i+2); s.TokensPerSecond != want {
			t.Errorf("step %d: %v tokens/s, want %v", i+1, s.TokensPerSecond, want)
		}
	}
	if got, want := o.result.TokensPerSecond, testG*testT/10.0; math.Abs(got/want-1) > 0.005 {
		t.Errorf("median %v, want %v", got, want)
	}
}

func TestNewRefuses(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	adam, noDecay := compute.Adam, optim.Schedule{Kind: optim.StepDecay, Rate: 1}
	type rule = optim.Optimizer
	optimizer := func(o rule) func(*job) { return func(j *job) { j.config.Optimizer = o } }
	for want, change := range map[string]func(*job){
		"there is no step to do":         func(j *job) { j.config.Steps = 0 },
		"--nonfinite-limit 0":            func(j *job) { j.config.NonfiniteLimit = 0 },
		"--eval-every -1":                func(j *job) { j.config.EvalEvery = -1 },
		"--checkpoint-every -2":          func(j *job) { j.config.SaveEvery = -2 },
		"--sample-every -3":              func(j *job) { j.config.SampleEvery = -3 },
		"--batch 0":                      func(j *job) { j.config.Lanes = 0 },
		"--check-every -1":               func(j *job) { j.config.CheckEvery = -1 },
		"--evict-stragglers 1":           func(j *job) { j.config.EvictStragglers = 1 },
		"there is no Saver":              func(j *job) { j.config.Save = true },
		"a save timeout of -1":           func(j *job) { j.config.SaveTimeout = -1 },
		"an epoch of 0 segments":         func(j *job) { j.batches = lanesOfText{} },
		"3 floats behind the gradients":  func(j *job) { j.model.GradientTail = 3 },
		"--lr 0":                         func(j *job) { j.config.Schedule.Rate = 0 },
		"--lr NaN":                       func(j *job) { j.config.Schedule.Rate = math.NaN() },
		"--lr-min 5":                     func(j *job) { j.config.Schedule.Min = 5 },
		"--warmup-steps -1":              func(j *job) { j.config.Schedule.Warmup = -1 },
		"--lr-step-every -1":             func(j *job) { j.config.Schedule.Every = -1 },
		"--lr-patience -1":               func(j *job) { j.config.Schedule.Patience = -1 },
		`--lr-schedule "" is not one of`: func(j *job) { j.config.Schedule.Kind = "" },
		"--lr-decay 0":                   func(j *job) { j.config.Schedule = noDecay },
		"--clip -1":                      func(j *job) { j.config.Clip.Limit = -1 },
		"--clip 1e+31":                   func(j *job) { j.config.Clip.Limit = 1e31 },
		`--clip-by "x" is not one of`:    func(j *job) { j.config.Clip.By = "x" },
		`--clip-scope "x" is not one of`: func(j *job) { j.config.Clip.Scope = "x" },
		"--optimizer: 9":                 optimizer(rule{Rule: 9}),
		"--weight-decay -1":              optimizer(rule{WeightDecay: -1}),
		"--momentum 1":                   optimizer(rule{Rule: compute.Nesterov, Momentum: 1}),
		"--beta1 1":                      optimizer(rule{Rule: adam, Beta1: 1}),
		"--beta2 -1":                     optimizer(rule{Rule: compute.AdamW, Beta2: -1}),
		"--rho 1":                        optimizer(rule{Rule: compute.RMSProp, Rho: 1}),
		"--epsilon 0: must be positive":  optimizer(rule{Rule: compute.Adagrad}),
		"--epsilon 1e-60: must be":       optimizer(rule{Rule: adam, Epsilon: 1e-60}),
	} {
		j := newJob(1)
		change(&j)
		m, err := model.New(j.model, dev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(j.task(m, nil), j.config); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
		m.Close()
	}
}
