package train

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/train/optim"
)

// paramsOf records the parameters after each step.
type paramsOf struct {
	Observer
	trainer *Trainer
	steps   [][]float32
}

func (p *paramsOf) Step(r StepReport) {
	p.steps = append(p.steps, slices.Clone(p.trainer.task.Params()))
	p.Observer.Step(r)
}

// averaging is a job of 24 steps with an average.
func averaging(ranks int, a optim.Averaging) job {
	j := newJob(ranks)
	j.config.Average, j.evaluation = a, newEvaluation(60)
	j.config.Steps, j.config.Save, j.config.EvalEvery = 24, true, 2
	j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 0.02
	return j
}

func averages() map[string]optim.Averaging {
	return map[string]optim.Averaging{
		"polyak":    {Kind: optim.Polyak},
		"polyak:10": {Kind: optim.Polyak, From: 10},
		"ema":       {Kind: optim.EMA, Decay: 0.8},
		"nt":        {Kind: optim.NonMonotone, Patience: 1},
	}
}

// TestAverage compares the saved average with one of all parameters in float64. Training itself is
// that of a job without an average, to the bit.
func TestAverage(t *testing.T) {
	for name, a := range averages() {
		t.Run(name, func(t *testing.T) {
			j := averaging(2, a)
			if a.Kind == optim.NonMonotone {
				j.config.Schedule.Rate = 5 // the evaluations' losses soon rise
			}
			plain := j
			plain.config.Average = optim.Averaging{}
			want := plain.mustRun(t)
			seen := &paramsOf{}
			j.prepare = func(rank int, trainer *Trainer) {
				if rank == 0 {
					seen.Observer, seen.trainer = trainer.cfg.Observer, trainer
					trainer.cfg.Observer = seen
				}
			}
			got := j.mustRun(t)
			s := got.saved[0]
			slot := s.Slots[len(s.Slots)-1]
			if slot.Name != optim.TrainingWeights || !sameBits(slot.Data, want.saved[0].Params) {
				t.Error("the parameters of the training are others than without an average")
			}
			count := s.Progress.Average.Count
			if first := map[string]int64{"polyak": 24, "polyak:10": 15, "ema": 24}[name]; count !=
				first && a.Kind != optim.NonMonotone || count == 0 || count == 24 &&
				a.Kind == optim.NonMonotone {
				t.Fatalf("%d parameters in the average", count)
			}
			off := 0.0
			for i, x := range s.Params {
				mean := 0.0
				for k, params := range seen.steps[24-count:] {
					switch p := float64(params[i]); {
					case a.Kind == optim.EMA && k > 0:
						mean += (1 - a.Decay) * (p - mean)
					default:
						mean += (p - mean) / float64(k+1)
					}
				}
				off = max(off, math.Abs(mean-float64(x)))
			}
			if off > 1e-5 {
				t.Errorf("the average is off by %.2g", off)
			}
			begun := func(step int64) bool { return step > 25-count } // a mean of one is itself
			for i, e := range got.evals {
				if same := e.Loss == want.evals[i].Loss; same == begun(e.Step) {
					t.Errorf("step %d: loss %v, without an average %v", e.Step, e.Loss,
						want.evals[i].Loss)
				}
			}
		})
	}
}

// constant is a task whose parameters stay.
type constant struct {
	Task
	params []float32
}

func (c constant) Params() []float32 { return c.params }

// TestAverageOfConstants: an average of parameters that stay is these, however many steps it has.
func TestAverageOfConstants(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for _, decay := range []float64{0.9999, 0.99999, optim.MaxDecay} {
		rng := rand.New(rand.NewPCG(5, 6))
		params := make([]float32, 64)
		for i := range params {
			params[i] = rng.Float32() + 0.5
		}
		a := averager{&core{cfg: Config{HostMemory: true,
			Average: optim.Averaging{Kind: optim.EMA, Decay: decay}}, dev: dev,
			task:  constant{params: params},
			slots: &wholeSlots{dev: dev, slots: [][]float32{make([]float32, len(params))}}}}
		for step := range int64(20000) {
			a.addToAverage(step + 1)
		}
		for i, x := range a.average() {
			if off := math.Abs(float64(x - params[i])); !(off <= 1e-5) {
				t.Errorf("decay %v: the average of %v is %v", decay, params[i], x)
			}
		}
	}
}

// TestResumeAverage stops and resumes jobs with an average before and after it begins.
func TestResumeAverage(t *testing.T) {
	for name, a := range averages() {
		t.Run(name, func(t *testing.T) {
			for _, rate := range []float64{0.02, 5} {
				j := resumable(compute.GRU, false, compute.Adam)
				j.config.Average = a
				j.config.Schedule.Rate = rate
				testResume(t, j)
			}
		})
	}
}

// TestAverageOnDevice averages in memory of the device's own, and on other numbers of ranks.
func TestAverageOnDevice(t *testing.T) {
	j := averaging(1, optim.Averaging{Kind: optim.Polyak, From: 3})
	j.config.SampleEvery = 5
	want := j.mustRun(t)
	j.config.HostMemory, j.model.GradientTail = false, 0
	sameSnapshot(t, j.mustRun(t).saved[0], want.saved[0])
	j = averaging(3, j.config.Average)
	three := j.mustRun(t)
	for i, e := range three.evals {
		if d := math.Abs(e.Loss - want.evals[i].Loss); !(d < 1e-4) {
			t.Errorf("step %d: 3 ranks have loss %v, 1 has %v", e.Step, e.Loss, want.evals[i].Loss)
		}
	}
}

// TestRegularisersOnRanks trains with every regulariser and an average on one and on three ranks:
// masks and penalties are the same, so the snapshots are, to the bit.
func TestRegularisersOnRanks(t *testing.T) {
	j := canonical(6, optim.ScopeGlobal)
	j.config.Average = optim.Averaging{Kind: optim.EMA, Decay: 0.9}
	j.config.Steps, j.config.Save = 30, true
	j.model.Embed, j.model.Dropout, j.model.DropoutLocked = 6, 0.3, true
	j.model.DropoutWords, j.model.WeightDrop = 0.2, 0.4
	j.model.ActivationL2, j.model.TemporalL2 = 2, 1
	want := j.mustRun(t)
	j.ranks = 3
	j.ends = j.dealt(3)
	sameSnapshot(t, j.mustRun(t).saved[0], want.saved[0])
}

// TestAverageKilled kills a worker in collectives of a job with an average, evaluations among them:
// the others finish with the bits of an undisturbed job.
func TestAverageKilled(t *testing.T) {
	j := elasticJob(6)
	j.config.Canonical, j.config.LaneGroups = true, 6
	j.config.Average = optim.Averaging{Kind: optim.Polyak, From: 2}
	oracle := j.mustRun(t)
	want := oracle.saved[len(oracle.saved)-1]
	for how := (breakage{dead: []int{1}, call: 1}); ; how.call++ {
		e := newElastic(t, j, 4)
		if !e.ring(how, 0, 1, 2, 3) {
			if how.call < 15 {
				t.Errorf("only %d collectives", how.call)
			}
			return
		}
		e.ring(breakage{}, 0, 2, 3)
		e.allDone(0, 2, 3)
		for _, worker := range []int{0, 2, 3} {
			h := e.workers[worker]
			if !sameBits(averager{h.trainer.core}.average(), want.Params) ||
				h.result.Progress != oracle.result.Progress {
				t.Fatalf("call %d, worker %d: not the average of an undisturbed job", how.call,
					worker)
			}
		}
	}
}
