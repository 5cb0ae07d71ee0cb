package train

import (
	"math"
	"testing"

	"rondo/compute"
	"rondo/train/optim"
)

// The default interval of the step schedule is an epoch. Reports show the rate.
func TestStepDecayByEpoch(t *testing.T) {
	j := newJob(1)
	j.config.Steps = 20
	j.config.Schedule = optim.Schedule{Kind: optim.StepDecay, Rate: 1, Decay: 0.5}
	for i, s := range j.mustRun(t).steps {
		if want := []float64{1, 0.5, 0.25}[i/9]; s.LearningRate != want {
			t.Errorf("step %d: a rate of %v, want %v", i+1, s.LearningRate, want)
		}
	}
}

// The plateau schedule measures evaluations that are due, or else epochs.
func TestPlateauMeasures(t *testing.T) {
	for name, c := range map[string]struct {
		evaluation Evaluation
		every      int64
		waiting    int64 // after 20 steps
	}{
		"epochs":      {nil, 0, 1},
		"evaluations": {newEvaluation(50), 6, 2}, // at 6, 12, 18, and 20, which is not due
	} {
		j := newJob(2)
		j.config.Steps, j.evaluation, j.config.EvalEvery = 20, c.evaluation, c.every
		// The rate is so small that no loss is better than the first.
		j.config.Schedule = optim.Schedule{Kind: optim.OnPlateau, Rate: 1e-30, Decay: 0.5,
			Patience: 100}
		got := j.mustRun(t).result.Progress.Plateau
		if got.Waiting != c.waiting || !got.Seen {
			t.Errorf("%s: %+v, want %d waiting", name, got, c.waiting)
		}
	}
}

// updates is a device that records its updates.
type updates struct {
	compute.Device
	noted *[]compute.Update
}

func (u updates) NewClipper() compute.Clipper {
	return notedUpdates{u.Device.NewClipper(), u.noted}
}

type notedUpdates struct {
	compute.Clipper
	noted *[]compute.Update
}

func (u notedUpdates) Update(a *compute.Update, params, grads, s1, s2 []float32) {
	if isFinite(u.Norm()) {
		*u.noted = append(*u.noted, *a)
	}
	u.Clipper.Update(a, params, grads, s1, s2)
}

// The device receives the step's rate and the update's number. Skipped steps are not counted in
// that number.
func TestUpdates(t *testing.T) {
	j := newJob(1)
	j.config.Steps = 6
	j.config.Optimizer = optim.Optimizer{Rule: compute.AdamW, Beta1: 0.8, Beta2: 0.95,
		Epsilon: 1e-6, WeightDecay: 0.01}
	j.config.Schedule = optim.Schedule{Kind: optim.Linear, Rate: 0.6}
	var noted []compute.Update
	j.device = func(_ int, dev compute.Device) compute.Device {
		return updates{&faulty{dev, func(run int) fault {
			if run == 2 {
				return gradInf
			}
			return healthy
		}}, &noted}
	}
	j.mustRun(t)
	want := []compute.Update{}
	for i, step := range []int{0, 1, 3, 4, 5} {
		want = append(want, compute.Update{Optimizer: compute.AdamW, Step: int64(i + 1),
			LR: float32(0.6 - 0.6*float64(step)/6), Beta1: 0.8, Beta2: 0.95, Epsilon: 1e-6,
			WeightDecay: 0.01})
	}
	for i := range want {
		if len(noted) != len(want) || math.Abs(float64(noted[i].LR-want[i].LR)) > 1e-7 {
			t.Fatalf("updates %+v, want %+v", noted, want)
		}
		noted[i].LR = want[i].LR
		if noted[i] != want[i] {
			t.Errorf("update %+v, want %+v", noted[i], want[i])
		}
	}
}
