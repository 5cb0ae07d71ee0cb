package train

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMedianRate(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 9))
	var r rates
	if r.median() != 0 {
		t.Error("a median of nothing")
	}
	for i := range 4001 { // the median is 5000; one half is slower, the other faster
		switch {
		case i < 2000:
			r.add(5000 * rng.Float64())
		case i == 2000:
			r.add(5000)
		default:
			r.add(5000 / (rng.Float64() + 1e-9))
		}
	}
	if got := r.median(); math.Abs(got/5000-1) > 0.006 {
		t.Errorf("median %v, want 5000", got)
	}
	for _, x := range []float64{0.002, 1, 17.3, 9.9e11} {
		var r rates
		r.add(x)
		if got := r.median(); math.Abs(got/x-1) > 0.005 {
			t.Errorf("median of %v is %v", x, got)
		}
	}
	var out rates
	for _, x := range []float64{0, 1e-9, 1e30, math.Inf(1), math.NaN(), -1} {
		out.add(x) // must not fall outside
	}
	if out.total != 4 {
		t.Errorf("%d counted", out.total)
	}
}
