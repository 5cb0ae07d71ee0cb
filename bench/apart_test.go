package bench

import (
	"math"
	"slices"
	"testing"
)

// timings are the times that layerParts would measure of a layer with known parts, disturbed in
// each round by at most jitter.
func timings(parts apart, factor, jitter float64) [][]float64 {
	took := make([][]float64, timed)
	const rounds = 9
	for round := range rounds {
		all := 1 + jitter*float64(round%3-1) // of everything in a round
		add := func(thing int, seconds float64) { took[thing] = append(took[thing], seconds*all) }
		products := parts.recurrentForward + parts.inputForward
		add(forward, products+parts.gates/2)
		inputs := parts.inputBackward + 2 // which d^T x takes, and d^T h the rest
		weights := parts.weightGradient - 2
		add(backward, parts.recurrentBackward+weights+inputs+parts.gates/2)
		add(reluForward, parts.recurrentForward/factor)
		add(reluBackward, (parts.recurrentBackward+weights)/factor)
		add(recurrentBack, parts.recurrentBackward*1.1)
		add(recurrentWeight, weights*1.1)
		add(inputForward, parts.inputForward)
		add(inputBack, parts.inputBackward)
		add(inputWeight, 2)
	}
	return took
}

func (a apart) sum() float64 {
	return a.recurrentForward + a.recurrentBackward + a.inputForward + a.inputBackward +
		a.weightGradient + a.gates
}

func closeTo(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// Known parts are found, whatever the rounds' speeds.
func TestTakeApart(t *testing.T) {
	want := apart{recurrentForward: 5, recurrentBackward: 6, inputForward: 3, inputBackward: 4,
		weightGradient: 9, gates: 8}
	for _, jitter := range []float64{0, 0.1} {
		got := takeApart(timings(want, 1.25, jitter), 1.25)
		for _, pair := range [][2]float64{{got.recurrentForward, want.recurrentForward},
			{got.recurrentBackward, want.recurrentBackward},
			{got.inputForward, want.inputForward}, {got.inputBackward, want.inputBackward},
			{got.weightGradient, want.weightGradient}, {got.gates, want.gates}} {
			if !closeTo(pair[0], pair[1]) {
				t.Errorf("jitter %v: %+v, want %+v", jitter, got, want)
				break
			}
		}
	}
}

// If the products alone take longer than the layer, or if the rest is below the scatter of the
// rounds, the gates are hidden and the products have all of the layer's time.
func TestTakeApartHidesNoise(t *testing.T) {
	parts := apart{recurrentForward: 5, recurrentBackward: 6, inputForward: 3, inputBackward: 4,
		weightGradient: 9}
	noisy := timings(parts, 1, 0)
	for round := range noisy[forward] {
		noisy[forward][round] += 0.5 * float64(round%3-1)
		noisy[backward][round] += 0.5*float64(round%3-1) + 0.01
	}
	slow := timings(parts, 1, 0)
	for round := range slow[reluForward] {
		slow[reluForward][round] *= 2
		slow[reluBackward][round] *= 2
	}
	for name, took := range map[string][][]float64{"noisy": noisy, "slow": slow} {
		a := takeApart(took, 1)
		if whole := Median(took[forward]) + Median(took[backward]); !closeTo(a.sum(), whole) {
			t.Errorf("%s: the parts take %v, and the layer %v", name, a.sum(), whole)
		}
		if a.gates != 0 || a.recurrentForward <= 0 || a.recurrentBackward <= 0 ||
			a.inputForward <= 0 || a.inputBackward <= 0 || a.weightGradient <= 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestAbove(t *testing.T) {
	for _, c := range []struct {
		values []float64
		median float64
		sure   bool
	}{
		{[]float64{3, 3, 3}, 3, true},
		{[]float64{2.9, 3, 3.1, 900}, 3.05, true}, // one that was disturbed
		{[]float64{-4, 1, 6, -3, 5}, 1, false},
		{[]float64{-3, -3, -3}, -3, false},
		{[]float64{0, 0, 0}, 0, false},
	} {
		if median, sure := above(c.values); !closeTo(median, c.median) || sure != c.sure {
			t.Errorf("%v: %v, %t; want %v, %t", c.values, median, sure, c.median, c.sure)
		}
	}
}

func TestFastest(t *testing.T) {
	rounds := [][]float64{{5, 5}, {1, 2}, {9, 9}, {2, 2}, {1, 1}}
	got := fastest(rounds)
	if len(got) != 2 || !slices.Equal(got[0], []float64{1, 1, 2}) ||
		!slices.Equal(got[1], []float64{1, 2, 2}) {
		t.Errorf("%v", got)
	}
	many := make([][]float64, 40)
	for i := range many {
		many[i] = []float64{float64(i)}
	}
	if got := fastest(many); len(got[0]) != 10 || got[0][9] != 9 {
		t.Errorf("%v, want the first quarter", got)
	}
}
