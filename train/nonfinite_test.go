package train

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/train/agree"
	"rondo/train/optim"
)

// fault is a fault in the output layer of a step.
type fault int

const (
	healthy  fault = iota
	lossNaN        // the loss is NaN
	gradInf        // the loss is finite, a gradient is not
	gradHuge       // every gradient is finite, but not their sum over two ranks
)

// faulty is a device whose output layer injects faults.
type faulty struct {
	compute.Device
	fault func(run int) fault // run: training steps before this one
}

func (f *faulty) NewOutput(s compute.OutputShape) compute.Output {
	return &faultyOutput{Output: f.Device.NewOutput(s), fault: f.fault}
}

type faultyOutput struct {
	compute.Output
	fault func(int) fault
	runs  int
	last  fault
}

func (f *faultyOutput) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	f.Output.ForwardBackward(x, w, b, targets, scale, dx, dw, db)
	f.last = f.fault(f.runs)
	f.runs++
	switch f.last {
	case gradInf:
		dw[3] = float32(math.Inf(1))
	case gradHuge:
		dw[3] = 3e38
	}
}

func (f *faultyOutput) Sum() float64 {
	if f.last == lossNaN {
		return math.NaN()
	}
	return f.Output.Sum()
}

// All ranks skip a step that is not finite on one rank, for every fault and every way of clipping.
// The job goes on as if the step had not happened.
func TestNonfiniteStepIsSkippedByAll(t *testing.T) {
	const bad = 7 // steps before it
	for name, c := range map[string]struct {
		fault     fault
		clip      optim.Clip
		wrongLoss bool
		notice    string
	}{
		"loss, worker": {lossNaN, byNorm(1, optim.ScopeWorker), true, "on 1 of 3 ranks"},
		"loss, global": {lossNaN, byNorm(1, optim.ScopeGlobal), true, "on 1 of 3 ranks"},
		"loss, never":  {lossNaN, byNorm(0, optim.ScopeWorker), true, "on 1 of 3 ranks"},
		"grad, worker": {gradInf, byNorm(1, optim.ScopeWorker), true, "on 1 of 3 ranks"},
		"grad, value":  {gradInf, byValue(0.1, optim.ScopeWorker), true, "on 1 of 3 ranks"},
		"grad, global": {gradInf, byValue(0.1, optim.ScopeGlobal), false, "summed gradient"},
		"huge, never":  {gradHuge, byValue(0, optim.ScopeWorker), false, "summed gradient"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(3)
			j.config.Clip, j.config.Schedule.Rate, j.config.Steps = c.clip, 0.5, 12
			if c.clip.BeforeSum() {
				j.summed = func(x []float32) {
					if !allFinite(x) {
						t.Error("what is not finite went into the ring")
					}
				}
			}
			var before []float32
			params := map[int64][]float32{}
			j.device = func(rank int, dev compute.Device) compute.Device {
				return &faulty{dev, func(run int) fault {
					if run == bad && (rank == 1 || c.fault == gradHuge && rank == 2) {
						return c.fault
					}
					return healthy
				}}
			}
			j.prepare = func(rank int, trainer *Trainer) {
				if rank == 0 {
					before = slices.Clone(trainer.task.Params())
					trainer.cfg.Observer = &paramWatch{trainer.cfg.Observer, trainer, params}
				}
			}
			o := j.mustRun(t)
			for _, s := range o.steps {
				if s.Skipped != (s.Step == bad+1) {
					t.Errorf("step %d: skipped is %v", s.Step, s.Skipped)
				}
			}
			if got := o.steps[bad].Loss; math.IsNaN(got) != c.wrongLoss {
				t.Errorf("the loss of the skipped step is %v", got)
			}
			if !slices.Equal(params[bad+1], params[bad]) || slices.Equal(params[bad+2], before) ||
				slices.Equal(params[bad+2], params[bad]) {
				t.Error("only the step that is not finite is to leave the parameters")
			}
			p := o.result.Progress
			if p.Nonfinite != 1 || p.NonfiniteRun != 0 || p.Updates != 11 || p.Step != 12 {
				t.Errorf("progress %+v", p)
			}
			if p.EpochSteps != 3 { // steps 10 to 12, of an epoch of 9
				t.Errorf("%d steps in the epoch's mean", p.EpochSteps)
			}
			if len(o.notices) != 1 || !strings.Contains(o.notices[0], c.notice) ||
				!strings.Contains(o.notices[0], "step 8 ") {
				t.Errorf("notices %q; want one with %q", o.notices, c.notice)
			}
			mean := 0.0
			for _, s := range o.steps[:bad] {
				mean += s.Loss / bad
			}
			if got := o.steps[bad].EpochLoss; math.Abs(got-mean) > 1e-12 {
				t.Errorf("the epoch's loss is %v; without the skipped step %v", got, mean)
			}
		})
	}
}

// faultyEvaluation is a device whose evaluations have a NaN loss.
type faultyEvaluation struct{ compute.Device }

func (f faultyEvaluation) NewOutput(s compute.OutputShape) compute.Output {
	return &faultyForward{Output: f.Device.NewOutput(s)}
}

type faultyForward struct {
	compute.Output
	evaluates bool
}

func (f *faultyForward) Forward(_, _, _ []float32, _ []int32) { f.evaluates = true }

func (f *faultyForward) Sum() float64 {
	if f.evaluates {
		return math.NaN()
	}
	return f.Output.Sum()
}

// An evaluation that is not finite on one rank is reported by all, and does not end the job.
func TestNonfiniteEvaluation(t *testing.T) {
	j := newJob(2)
	j.config.Steps, j.evaluation = 9, newEvaluation(60)
	j.device = func(rank int, dev compute.Device) compute.Device {
		if rank == 1 {
			return faultyEvaluation{dev}
		}
		return dev
	}
	for rank, o := range j.run(t) {
		if o.err != nil || len(o.evals) != 1 || !math.IsNaN(o.evals[0].Loss) ||
			o.evals[0].Tokens != 59 || o.result.Progress.Plateau.Seen {
			t.Errorf("rank %d: %+v, %v", rank, o.evals, o.err)
		}
	}
}

// paramWatch records the parameters after each step.
type paramWatch struct {
	Observer
	trainer *Trainer
	params  map[int64][]float32
}

func (w *paramWatch) Step(r StepReport) {
	w.params[r.Step] = slices.Clone(w.trainer.task.Params())
	w.Observer.Step(r)
}

func TestNonfiniteLimit(t *testing.T) {
	j := newJob(2)
	j.config.NonfiniteLimit, j.config.Save = 3, true
	bad := []int{2, 3, 5, 6, 7, 8}
	j.device = func(rank int, dev compute.Device) compute.Device {
		return &faulty{dev, func(run int) fault {
			if slices.Contains(bad, run) {
				return lossNaN
			}
			return healthy
		}}
	}
	e := newElastic(t, j, 2)
	e.ring(breakage{}, 0, 1)
	for rank, o := range e.workers {
		p := o.result.Progress
		if o.err == nil || !strings.Contains(o.err.Error(), "--nonfinite-limit: lower --lr") {
			t.Fatalf("rank %d: %v", rank, o.err)
		}
		if p.Step != 8 || p.Nonfinite != 5 || p.NonfiniteRun != 3 || len(o.steps) != 8 {
			t.Errorf("rank %d: %+v after %d steps", rank, p, len(o.steps))
		}
		if len(o.notices) != 4 || len(o.saved) != 0 || o.result.Stopped {
			t.Errorf("rank %d: notices %q, %d saved", rank, o.notices, len(o.saved))
		}
	}
}

// If the ranks sum before they clip, the first step that one rank spoils has no culprit: only the
// sum tells. From the next one on each rank looks at its own gradient before it sends any of it.
func TestSumThatIsNotFiniteGetsAName(t *testing.T) {
	j := elasticJob(9)
	j.config.NonfiniteLimit, j.config.Clip = 9, byNorm(1, optim.ScopeGlobal)
	j.bucketBytes = 256
	j.device = func(rank int, dev compute.Device) compute.Device {
		return &faulty{dev, func(run int) fault {
			if rank == 1 && run >= 3 && run < 6 {
				return gradInf
			}
			return healthy
		}}
	}
	e := newElastic(t, j, 2)
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
	e.audit()
	for rank, h := range e.workers {
		for i, c := range h.commits {
			want := Commit{Step: int64(i + 1), Digest: c.Digest, Skipped: i >= 3 && i < 6}
			if i == 4 || i == 5 {
				want.Nonfinite, want.Culprit = 1, 1
			}
			if c.Commit != want {
				t.Errorf("rank %d committed %+v; want %+v", rank, c.Commit, want)
			}
		}
	}
}

// A rank that alone makes more than half of --nonfinite-limit steps in a row not finite leaves the
// ring by name, without a state. The others go on without it, and it may return.
func TestRankThatMakesNaNIsPutOut(t *testing.T) {
	j := elasticJob(12)
	j.config.NonfiniteLimit = 5
	bad := []int{2, 3, 5, 6, 7} // only three in a row are too many
	j.device = func(rank int, dev compute.Device) compute.Device {
		return &faulty{dev, func(run int) fault {
			if rank == 1 && slices.Contains(bad, run) {
				return lossNaN
			}
			return healthy
		}}
	}
	e := newElastic(t, j, 3)
	e.ring(breakage{}, 0, 1, 2)
	const sign = "alone made 3 steps in a row not finite"
	for rank, h := range e.workers {
		var own *agree.CorruptError
		var others *agree.PeerCorruptError
		switch {
		case h.result.Progress.Step != 8 || h.result.Progress.NonfiniteRun != 3:
			t.Errorf("rank %d: %+v, %v", rank, h.result.Progress, h.err)
		case rank == 1 && (!errors.As(h.err, &own) || own.Rank != 1 || h.trainer.HasState()):
			t.Errorf("rank 1: %v, state %v", h.err, h.trainer.HasState())
		case rank != 1 && (!errors.As(h.err, &others) || !slices.Equal(others.Ranks, []int{1})):
			t.Errorf("rank %d: %v", rank, h.err)
		case !strings.Contains(h.err.Error(), sign):
			t.Errorf("rank %d: %v; want %q", rank, h.err, sign)
		}
		if c := h.commits[7].Commit; !c.Skipped || c.Nonfinite != 1 || c.Culprit != 1 {
			t.Errorf("rank %d committed %+v", rank, c)
		}
	}
	e.ring(breakage{}, 2, 0)
	e.allDone(2, 0)
	e.audit()
	if p := e.workers[0].result.Progress; p.Nonfinite != 5 || p.Updates != 7 {
		t.Errorf("%+v", p)
	}
}

// The least --nonfinite-limit with which a rank is put out is 3, or 5 if the first of its steps has
// no culprit.
func TestLeastLimitThatPutsARankOut(t *testing.T) {
	for _, c := range []struct {
		clip  optim.Clip
		what  fault
		least int64
	}{
		{byNorm(1, optim.ScopeWorker), gradInf, 3},
		{byNorm(1, optim.ScopeGlobal), lossNaN, 3},
		{byNorm(1, optim.ScopeGlobal), gradInf, 5},
		{byNorm(0, optim.ScopeWorker), gradInf, 5},
	} {
		for limit := int64(1); limit <= c.least; limit++ {
			j := elasticJob(9)
			j.config.NonfiniteLimit, j.config.Clip = limit, c.clip
			j.device = func(rank int, dev compute.Device) compute.Device {
				return &faulty{dev, func(run int) fault {
					if rank == 1 && run >= 2 {
						return c.what
					}
					return healthy
				}}
			}
			e := newElastic(t, j, 3)
			e.ring(breakage{}, 0, 1, 2)
			var out *agree.CorruptError
			var ended *NonfiniteError
			err := e.workers[1].err
			if errors.As(err, &out) != (limit == c.least) ||
				errors.As(err, &ended) != (limit < c.least) {
				t.Errorf("%+v, fault %v, limit %d: %v", c.clip, c.what, limit, err)
			}
		}
	}
}

// After a skipped step, lanes whose state is not finite restart from zero; the others go on.
func TestPoisonedLanesStartFromZero(t *testing.T) {
	j := newJob(2)
	j.config.Steps = 6
	poison := 0
	j.device = func(rank int, dev compute.Device) compute.Device {
		return &faulty{dev, func(run int) fault {
			if run == 3 && rank == 1 {
				return lossNaN
			}
			return healthy
		}}
	}
	var after, before []float32
	j.prepare = func(rank int, trainer *Trainer) {
		if rank == 1 {
			trainer.seat = &poisoned{Seat: trainer.seat, trainer: trainer, run: 3,
				before: &before, after: &after, hits: &poison}
		}
	}
	j.mustRun(t)
	size := 2 * 16
	if poison != 1 || len(after) != 6*size {
		t.Fatalf("poisoned %d times, %d floats after", poison, len(after))
	}
	for b := range 6 {
		got, want := after[b*size:][:size], before[b*size:][:size]
		if b == 2 {
			want = make([]float32, size)
		}
		if !slices.Equal(got, want) {
			t.Errorf("lane %d: its state is %v, not %v", b, got, want)
		}
	}
}

// poisoned is a seat in which one lane's state becomes infinite in one run. It records the states
// after that run, and the states before the next.
type poisoned struct {
	Seat
	trainer       *Trainer
	run, runs     int
	before, after *[]float32
	hits          *int
}

func (p *poisoned) Backward(in Pass) (float64, error) {
	state := make([]float32, p.trainer.count*p.trainer.laneSize)
	if p.runs == p.run+1 {
		if err := p.State(state); err != nil {
			return 0, err
		}
		*p.after = state
	}
	sum, err := p.Seat.Backward(in)
	if p.runs == p.run && err == nil {
		if err := p.State(state); err != nil {
			return 0, err
		}
		*p.before = slices.Clone(state)
		state[2*p.trainer.laneSize+5] = float32(math.Inf(-1))
		*p.hits++
		err = p.SetState(state)
	}
	p.runs++
	return sum, err
}

// TestRandomStep: with RandomStep a step that is not finite goes along a random direction, by the
// clipping limit and the rate. It is the same for any number of ranks, and another in another step.
func TestRandomStep(t *testing.T) {
	const limit, rate = 0.7, 0.5
	moves := map[[2]int][]float64{} // by ranks and step
	for _, ranks := range []int{1, 3} {
		for _, bad := range []int{4, 7} { // steps before it
			j := newJob(ranks)
			j.config.Clip, j.config.Steps = byNorm(limit, optim.ScopeGlobal), 12
			j.config.Schedule = optim.Schedule{Kind: optim.Constant, Rate: rate}
			j.config.RandomStep, j.config.Seed = true, 5
			j.device = func(rank int, dev compute.Device) compute.Device {
				return &faulty{dev, func(run int) fault {
					if run == bad && rank == ranks-1 {
						return gradInf
					}
					return healthy
				}}
			}
			params := map[int64][]float32{}
			j.prepare = func(rank int, trainer *Trainer) {
				if rank == 0 {
					trainer.cfg.Observer = &paramWatch{trainer.cfg.Observer, trainer, params}
				}
			}
			o := j.mustRun(t)
			move, squares := []float64{}, 0.0
			for i, x := range params[int64(bad)] {
				d := float64(params[int64(bad)+1][i]) - float64(x)
				move, squares = append(move, d), squares+d*d
			}
			if norm := math.Sqrt(squares); math.Abs(norm-limit*rate) > 1e-5 {
				t.Errorf("%d ranks: the step has norm %v, want %v", ranks, norm, limit*rate)
			}
			moves[[2]int{ranks, bad}] = move
			p := o.result.Progress
			if p.Nonfinite != 1 || p.Random != 1 || p.Updates != 12 || p.validate(12) != nil {
				t.Errorf("progress %+v: %v", p, p.validate(12))
			}
			if len(o.notices) != 1 || !strings.Contains(o.notices[0], "took a random direction") {
				t.Errorf("notices %q", o.notices)
			}
		}
	}
	for i, d := range moves[[2]int{1, 4}] {
		if math.Abs(d-moves[[2]int{3, 4}][i]) > 1e-6 {
			t.Fatalf("parameter %d: one rank moves by %v, three by %v", i, d,
				moves[[2]int{3, 4}][i])
		}
	}
	dot := 0.0
	for i, d := range moves[[2]int{1, 4}] {
		dot += d * moves[[2]int{1, 7}][i]
	}
	if math.Abs(dot) > 0.5*limit*limit*rate*rate {
		t.Errorf("two steps have nearly one direction: %v", dot)
	}
	for _, c := range []Config{{RandomStep: true, Clip: byNorm(0, "")},
		{RandomStep: true, Clip: byValue(1, "")},
		{RandomStep: true, Clip: byNorm(1, ""), Local: optim.Local{Every: 3}}} {
		if c.validateRandom() == nil {
			t.Errorf("%+v is no error", c)
		}
	}
}
