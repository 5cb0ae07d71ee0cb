package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestNonMonotone compares the trigger with Algorithm 1 of Merity et al. 2018 on random losses.
func TestNonMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	begins := map[int]int{}
	for range 2000 {
		n := 1 + rng.IntN(MaxPatience)
		a := Averaging{Kind: NonMonotone, Patience: n}
		var m Average
		var logs []float64
		for t1 := range 60 {
			v := 1/float64(t1+1) + 0.2*rng.Float64()
			trigger := t1 > n && v > slices.Min(logs[:t1-n])
			logs = append(logs, v)
			a.Measure(&m, math.NaN()) // is not one of the losses
			a.Measure(&m, v)
			if m.Triggered != trigger {
				t.Fatalf("n %d, losses %v: triggered %v, want %v", n, logs, m.Triggered, trigger)
			}
			if !m.Valid(0) {
				t.Fatalf("%+v is not valid", m)
			}
			if trigger {
				begins[t1]++
				break
			}
		}
	}
	if len(begins) < 10 {
		t.Errorf("triggered after %v", begins)
	}
}

// TestNext checks the factors of new parameters.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		a    Averaging
		m    Average
		step int64
		want float64
	}{
		{Averaging{Kind: Polyak, From: 3}, Average{}, 2, 0},
		{Averaging{Kind: Polyak, From: 3}, Average{}, 3, 1},
		{Averaging{Kind: Polyak, From: 3}, Average{Count: 3}, 6, 0.25},
		{Averaging{Kind: EMA, Decay: 0.75}, Average{}, 1, 1},
		{Averaging{Kind: EMA, Decay: 0.75}, Average{Count: 9}, 10, 0.25},
		{Averaging{Kind: EMA, Decay: MaxDecay}, Average{Count: 9}, 10, 1.0 / (1 << 24)},
		{Averaging{Kind: EMA, Decay: 0.9999}, Average{Count: 9}, 10, 1678.0 / (1 << 24)},
		{Averaging{Kind: NonMonotone, Patience: 5}, Average{Evaluations: 7}, 9, 0},
		{Averaging{Kind: NonMonotone, Patience: 5}, Average{Triggered: true}, 9, 1},
		{Averaging{Kind: NonMonotone, Patience: 5}, Average{Triggered: true, Count: 1}, 10, 0.5},
	} {
		if got := c.a.Next(&c.m, c.step); got != c.want {
			t.Errorf("%+v, %+v, step %d: %v, want %v", c.a, c.m, c.step, got, c.want)
		}
	}
}
