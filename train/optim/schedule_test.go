package optim

import (
	"math"
	"testing"
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
			if got := s.At(step, steps, 1); math.Abs(got-rate) > 1e-12 {
				t.Errorf("%s at %d: %v, want %v", kind, step, got, rate)
			}
		}
	}
	held := base
	held.Kind, held.Hold = StepDecay, 3
	for step, want := range map[int64]float64{10: 2, 84: 2, 85: 1, 109: 1} {
		if got := held.At(step, steps, 0); got != want {
			t.Errorf("step at %d, held for 3 periods: %v, want %v", step, got, want)
		}
	}
	s := base
	s.Kind = OnPlateau
	for n, want := range []float64{2, 1, 0.5, 0.5} { // no lower than Min
		if got := s.At(50, steps, int64(n)); got != want {
			t.Errorf("plateau after %d reductions: %v, want %v", n, got, want)
		}
	}
	s = Schedule{Kind: Cosine, Rate: 1, Warmup: 5}
	for step := range int64(5) { // a warm-up as long as the job
		if got, want := s.At(step, 5, 0), float64(step+1)/5; got != want {
			t.Errorf("step %d: %v, want %v", step, got, want)
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
			if p.Measure(loss, c.patience); p.Reductions != c.reductions[i] {
				t.Errorf("%s: after %v: %d reductions, want %d", name, c.losses[:i+1],
					p.Reductions, c.reductions[i])
			}
		}
	}
}
