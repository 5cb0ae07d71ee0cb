package train

import (
	"math"
	"testing"

	"rondo/compute"
)

func TestSchedules(t *testing.T) {
	const steps = 110
	base := Schedule{Rate: 2, Min: 0.5, Warmup: 10, Decay: 0.5, Every: 25}
	for kind, want := range map[ScheduleKind]map[int64]float64{
		// The warm-up is the same for all: 2 * (step+1)/10.
		Constant:  {0: 0.2, 4: 1, 9: 2, 10: 2, 109: 2},
		StepDecay: {0: 0.2, 9: 2, 10: 2, 34: 2, 35: 1, 59: 1, 60: 0.5, 85: 0.5, 109: 0.5},
		Linear:    {0: 0.2, 9: 2, 10: 2, 60: 1.25, 85: 0.875, 109: 0.5 + 1.5/100},
		Cosine: {0: 0.2, 9: 2, 10: 2, 60: 1.25, 35: 1.25 + 0.75*math.Sqrt2/2,
			85: 1.25 - 0.75*math.Sqrt2/2, 109: 1.25 - 0.75*math.Cos(math.Pi/100)},
		OnPlateau: {0: 0.2, 9: 2, 10: 1, 109: 1},
	} {
		s := base
		s.Kind = kind
		for step, rate := range want {
			if got := s.at(step, steps, 1); math.Abs(got-rate) > 1e-12 {
				t.Errorf("%s at %d: %v, want %v", kind, step, got, rate)
			}
		}
	}
	s := base
	s.Kind = OnPlateau
	for n, want := range []float64{2, 1, 0.5, 0.5} { // no lower than Min
		if got := s.at(50, steps, int64(n)); got != want {
			t.Errorf("plateau after %d reductions: %v, want %v", n, got, want)
		}
	}
	s = Schedule{Kind: Cosine, Rate: 1, Warmup: 5}
	for step := range int64(5) { // a warm-up as long as the job
		if got, want := s.at(step, 5, 0), float64(step+1)/5; got != want {
			t.Errorf("step %d: %v, want %v", step, got, want)
		}
	}
}

// The default interval of the step schedule is an epoch. Reports show the rate.
func TestStepDecayByEpoch(t *testing.T) {
	j := newJob(1)
	j.config.Steps = 20
	j.config.Schedule = Schedule{Kind: StepDecay, Rate: 1, Decay: 0.5}
	for i, s := range j.mustRun(t).steps {
		if want := []float64{1, 0.5, 0.25}[i/9]; s.LearningRate != want {
			t.Errorf("step %d: a rate of %v, want %v", i+1, s.LearningRate, want)
		}
	}
}

func TestPlateau(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		patience   int64
		losses     []float64
		reductions []int64 // reductions after each loss
	}{
		"better each time":   {0, []float64{3, 2, 1}, []int64{0, 0, 0}},
		"no patience":        {0, []float64{3, 3, 3, 2, 2}, []int64{0, 1, 2, 2, 3}},
		"patience":           {2, []float64{3, 4, 4, 4, 4, 4, 4}, []int64{0, 0, 0, 1, 1, 1, 2}},
		"a better one helps": {1, []float64{3, 4, 2, 4, 4}, []int64{0, 0, 0, 0, 1}},
		"too little better":  {0, []float64{1, 0.99995, 0.9998}, []int64{0, 1, 1}},
		"not finite":         {0, []float64{nan, nan, 5, nan}, []int64{1, 2, 2, 3}},
	} {
		var p Plateau
		for i, loss := range c.losses {
			if p.measure(loss, c.patience); p.Reductions != c.reductions[i] {
				t.Errorf("%s: after %v: %d reductions, want %d", name, c.losses[:i+1],
					p.Reductions, c.reductions[i])
			}
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
		j.config.Schedule = Schedule{Kind: OnPlateau, Rate: 1e-30, Decay: 0.5, Patience: 100}
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
	j.config.Optimizer = Optimizer{Rule: compute.AdamW, Beta1: 0.8, Beta2: 0.95, Epsilon: 1e-6,
		WeightDecay: 0.01}
	j.config.Schedule = Schedule{Kind: Linear, Rate: 0.6}
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

func TestOptimizerNames(t *testing.T) {
	if len(optimizers) != int(compute.Adagrad)+1 {
		t.Errorf("%d optimizers have names", len(optimizers))
	}
	for _, o := range optimizers {
		if rule, err := ParseOptimizer(o.name); err != nil || rule != o.rule {
			t.Errorf("%s: %v, %v", o.name, rule, err)
		}
		if got, want := len(slotNames(o.rule)), o.rule.Slots(); got != want {
			t.Errorf("%s has names for %d slots of %d", o.name, got, want)
		}
	}
	const want = `--optimizer "lion" is not one of sgd, momentum, nesterov, adam, adamw, ` +
		`rmsprop, adagrad`
	if _, err := ParseOptimizer("lion"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
