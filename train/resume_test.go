package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/compute"
	"rondo/train/optim"
)

// sameBits reports whether two slices have the same bits.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y)
	})
}

// sameSnapshot fails unless two snapshots are bit-identical.
func sameSnapshot(t *testing.T, got, want *Snapshot) {
	t.Helper()
	if got.Progress != want.Progress {
		t.Errorf("progress is %+v, not %+v", got.Progress, want.Progress)
	}
	if !reflect.DeepEqual(got.Views, want.Views) || got.LaneSize != want.LaneSize {
		t.Error("the shapes differ")
	}
	if !sameBits(got.Params, want.Params) {
		t.Error("the parameters differ")
	}
	if !sameBits(got.Lanes, want.Lanes) {
		t.Error("the lanes' states differ")
	}
	if len(got.Slots) != len(want.Slots) {
		t.Fatalf("%d slots, not %d", len(got.Slots), len(want.Slots))
	}
	for i, slot := range got.Slots {
		if slot.Name != want.Slots[i].Name || !sameBits(slot.Data, want.Slots[i].Data) {
			t.Errorf("slot %s differs", slot.Name)
		}
	}
}

// reload returns a snapshot as it comes from storage: its progress through JSON, its tensors copied
// by name into a fresh snapshot, so that padding is lost.
func reload(t *testing.T, trainer *Trainer, s *Snapshot) *Snapshot {
	t.Helper()
	fresh := trainer.NewSnapshot()
	for _, v := range s.Views {
		copy(fresh.Params[v.Offset:][:v.Len], s.Params[v.Offset:])
		for i := range fresh.Slots {
			copy(fresh.Slots[i].Data[v.Offset:][:v.Len], s.Slots[i].Data[v.Offset:])
		}
	}
	copy(fresh.Lanes, s.Lanes)
	text, err := json.Marshal(s.Progress)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &fresh.Progress); err != nil {
		t.Fatal(err)
	}
	return fresh
}

// resumable is a job of 100 steps with everything that a snapshot must carry: two layers with
// dropout, evaluation, a schedule with memory, and a skipped step.
func resumable(cell compute.Cell, random bool, rule compute.Optimizer) job {
	j := newJob(2)
	j.model.Cell, j.model.Layers, j.model.Dropout, j.model.Hidden = cell, 2, 0.3, 8
	j.batches = newLanes(random)
	j.config.Steps, j.config.Save = 100, true
	j.config.Optimizer.Rule, j.config.Optimizer.WeightDecay = rule, 1e-4
	rate := map[compute.Optimizer]float64{compute.SGD: 2, compute.Momentum: 0.5,
		compute.Nesterov: 0.5, compute.Adagrad: 0.1}[rule]
	if rate == 0 {
		rate = 0.02
	}
	j.config.Schedule = optim.Schedule{Kind: optim.OnPlateau, Rate: rate, Warmup: 5, Decay: 0.7,
		Patience: 1}
	j.evaluation, j.config.EvalEvery = newEvaluation(60), 8
	j.device = func(rank int, dev compute.Device) compute.Device {
		return &faulty{Device: dev, fault: func(run int) fault {
			if rank == 1 && run == 17 {
				return lossNaN
			}
			return healthy
		}}
	}
	return j
}

// A job that is stopped and resumed on the same number of ranks equals an uninterrupted one, bit
// for bit, also in its reports.
func TestResume(t *testing.T) {
	for i, name := range optim.Names() {
		for _, cell := range []compute.Cell{compute.GRU, compute.LSTM} {
			for _, random := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, cell %d, random %v", name, cell, random),
					func(t *testing.T) {
						testResume(t, resumable(cell, random, compute.Optimizer(i)))
					})
			}
		}
	}
}

func testResume(t *testing.T, j job) {
	straight := j.mustRun(t)
	if p := straight.result.Progress; p.Nonfinite != 1 || p.Updates != 99 {
		t.Fatalf("the step that was to be skipped was not: %+v", p)
	}
	const stop = 50
	first := j
	first.prepare = func(rank int, trainer *Trainer) {
		if rank == 1 {
			trainer.cfg.Observer = &stopper{Observer: trainer.cfg.Observer, trainer: trainer,
				after: stop - 1}
		}
	}
	half := first.mustRun(t)
	if !half.result.Stopped || half.result.Progress.Step != stop {
		t.Fatalf("stopped at step %d: %v", half.result.Progress.Step, half.result.Stopped)
	}

	second := j
	second.device = nil
	second.reload = func(trainer *Trainer) *Snapshot { return reload(t, trainer, half.saved[0]) }
	rest := second.mustRun(t)
	sameSnapshot(t, rest.saved[0], straight.saved[0])
	want := straight.steps[stop:]
	for i := range rest.steps {
		if rest.steps[i].TokensPerSecond, want[i].TokensPerSecond = 0, 0; rest.steps[i] != want[i] {
			t.Fatalf("step %d is %+v, not %+v", stop+i+1, rest.steps[i], want[i])
		}
	}
	if got := len(half.evals) + len(rest.evals); got != len(straight.evals) {
		t.Errorf("%d evaluations, not %d", got, len(straight.evals))
	}
	if !straight.result.Progress.Plateau.Seen {
		t.Error("the schedule had nothing to remember")
	}
}

// stopper requests a stop once a step is done, so the next step is the last.
type stopper struct {
	Observer
	trainer *Trainer
	after   int64
}

func (s *stopper) Step(r StepReport) {
	if r.Step == s.after {
		s.trainer.RequestStop()
	}
	s.Observer.Step(r)
}

// A job resumes on another number of ranks: the lanes' states move with the lanes.
func TestResumeOnOtherRanks(t *testing.T) {
	j := newJob(1)
	j.config.Steps, j.config.Save, j.config.SaveEvery = 40, true, 20
	straight := j.mustRun(t)
	if got := straight.checkpoints; !slices.Equal(got, []int64{20, 40}) {
		t.Fatalf("checkpoints at %v", got)
	}
	j.from, j.ranks, j.ends = straight.saved[0], 3, []int{2, 3, testG}
	moved := j.mustRun(t)
	if d := apart(t, moved.losses(), straight.losses()[20:]); !(d <= 1e-4) {
		t.Errorf("the loss curve is off by %.2g", d)
	}

	stale := *straight.saved[0]
	stale.Lanes = make([]float32, len(stale.Lanes))
	j.from = &stale
	if d := apart(t, j.mustRun(t).losses(), straight.losses()[20:]); !(d > 1e-4) {
		t.Errorf("without the lanes' states the curve is only %.2g off", d)
	}
}

// A device with its own memory gives the same result.
func TestCopiesGiveTheSame(t *testing.T) {
	j := newJob(2)
	j.config.Steps, j.config.Save = 12, true
	j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 0.02
	want := j.mustRun(t)
	j.config.HostMemory, j.model.GradientTail = false, 0
	got := j.mustRun(t)
	sameSnapshot(t, got.saved[0], want.saved[0])
}

func TestRestoreRefuses(t *testing.T) {
	j := newJob(1)
	j.config.Steps, j.config.Save, j.config.Optimizer.Rule = 9, true, compute.Adam
	j.config.Schedule.Rate = 0.01
	good := j.mustRun(t).saved[0]
	for name, c := range map[string]struct {
		change func(*Snapshot)
		want   string
	}{
		"later step":    {func(s *Snapshot) { s.Progress.Step = 10 }, "raise --steps"},
		"no sense":      {func(s *Snapshot) { s.Progress.Updates = 7 }, "contradicts itself"},
		"not finite":    {func(s *Snapshot) { s.Progress.Loss = math.NaN() }, "contradicts itself"},
		"negative":      {func(s *Snapshot) { s.Progress.Nonfinite = -1 }, "contradicts itself"},
		"optimizer":     {func(s *Snapshot) { s.Slots = s.Slots[:1] }, "--optimizer"},
		"other slots":   {func(s *Snapshot) { s.Slots[0].Name = "sum" }, "--optimizer"},
		"model":         {func(s *Snapshot) { s.Params = s.Params[1:] }, "floats of parameters"},
		"lanes":         {func(s *Snapshot) { s.Lanes = s.Lanes[1:] }, "floats of lane states"},
		"slot's length": {func(s *Snapshot) { s.Slots[1].Data = nil }, "floats of exp_avg_sq"},
	} {
		bad := *good
		bad.Slots = slices.Clone(good.Slots)
		c.change(&bad)
		j.from = &bad
		o := j.run(t)[0]
		if o.err == nil || !strings.Contains(o.err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, o.err, c.want)
		}
	}
	j.from = good
	o := j.mustRun(t)
	if len(o.steps) != 0 || o.result.Progress != good.Progress || o.result.Stopped {
		t.Errorf("a job that is done did %d steps: %+v", len(o.steps), o.result)
	}
}

// A snapshot uses PyTorch's names.
func TestSnapshotNames(t *testing.T) {
	j := newJob(1)
	j.config.Steps, j.config.Save, j.config.Optimizer.Rule = 1, true, compute.AdamW
	s := j.mustRun(t).saved[0]
	names := []string{"output.weight", "output.bias", "rnn.weight_ih_l0", "rnn.weight_hh_l0",
		"rnn.bias_ih_l0", "rnn.bias_hh_l0"}
	named := func(x compute.Tensor, name string) bool { return x.Name == name }
	if !slices.EqualFunc(s.Views, names, named) || s.Slots[0].Name != "exp_avg" ||
		s.Slots[1].Name != "exp_avg_sq" || s.LaneSize != 2*16 {
		t.Errorf("views %v, slots %s and %s, lanes of %d", s.Views, s.Slots[0].Name,
			s.Slots[1].Name, s.LaneSize)
	}
}

// slowly is a slow Saver.
type slowly struct {
	memorySaver
	takes time.Duration
}

func (s *slowly) Save(ctx context.Context, snapshot *Snapshot) error {
	time.Sleep(s.takes)
	return s.memorySaver.Save(ctx, snapshot)
}

// impatient is one rank's part in a ring with a short timeout.
type impatient struct {
	breakingRing
	patience time.Duration
}

func (i *impatient) AllGather(ctx context.Context, buf []float32, ends []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, i.patience, errBroken)
	defer cancel()
	return i.breakingRing.AllGather(ctx, buf, ends)
}

func (i *impatient) AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, i.patience, errBroken)
	defer cancel()
	return i.breakingRing.AllReduceCarry(ctx, buf, out, in)
}

// Saving and sampling on rank 0 may each take almost as long as the ring's timeout.
func TestRanksMeetBetweenSavingAndSampling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Minute
		j := elasticJob(6)
		j.config.Saver = &slowly{takes: 9 * patience / 10}
		j.config.SampleEvery = 2
		j.config.Sample = func(context.Context, int64) (string, error) {
			time.Sleep(9 * patience / 10)
			return "text", nil
		}
		e := newElastic(t, j, 3)
		for _, h := range e.workers[1:] {
			h.trainer.cfg.Sample = nil // only rank 0 samples
		}
		e.wrap = func(f *breakingRing) sumRing { return &impatient{*f, patience} }
		e.ring(breakage{}, 0, 1, 2)
		e.allDone(0, 1, 2)
		if n := len(e.workers[0].samples); n != 3 {
			t.Errorf("%d samples", n)
		}
	})
}
