package exact

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// Sums of digits are exact: every order gives the same value, and it equals the sum to the last bit
// of a float64.
func TestSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for _, ranks := range []int{1, 2, 7, 300, MaxTerms} {
		values := make([]float64, ranks)
		for i := range values {
			// Of any size down to 2^-7, so that all 53 bits lie above 2^-60.
			values[i] = math.Ldexp(2*rng.Float64()-1, rng.IntN(40)-7)
		}
		want := new(big.Float).SetPrec(200)
		var forth, back [Floats]float32
		for i := range values {
			want.Add(want, big.NewFloat(values[i]))
			addExact(forth[:], values[i])
			addExact(back[:], values[ranks-1-i])
		}
		if forth != back {
			t.Errorf("%d ranks: the order matters", ranks)
		}
		exact, _ := want.Float64()
		if got := value(forth[:]); math.Abs(got-exact) > 1e-15*math.Abs(exact) {
			t.Errorf("%d ranks: %v, want %v", ranks, got, exact)
		}
	}
}

func value(digits []float32) float64 {
	s := Take(digits)
	return s.Value()
}

func addExact(sum []float32, x float64) {
	var d [Floats]float32
	Put(d[:], x)
	for i := range d {
		sum[i] += d[i]
	}
}

func TestLimits(t *testing.T) {
	const limit = 1 << 59
	for x, want := range map[float64]bool{
		0: true, -3.5: true, limit - 64: true, 64 - limit: true, limit: false, -limit: false,
		math.NaN(): false, math.Inf(1): false, math.Inf(-1): false,
	} {
		if Fits(x) != want {
			t.Errorf("Fits(%v) is %v", x, !want)
		}
	}
}

func FuzzExact(f *testing.F) {
	for _, x := range []float64{0, 1, -1, math.Pi, 1e-9, -1e17, 1<<59 - 64, 1023.999999} {
		f.Add(x)
	}
	f.Fuzz(func(t *testing.T, x float64) {
		if !Fits(x) {
			return
		}
		var d [Floats]float32
		Put(d[:], x)
		for _, v := range d {
			if math.Abs(float64(v)) >= 1<<digitBits || v != float32(math.Trunc(float64(v))) {
				t.Fatalf("%v has the digit %v", x, v)
			}
		}
		if got := value(d[:]); math.Abs(got-x) > math.Ldexp(1, -60) {
			t.Fatalf("%v came back as %v", x, got)
		}
	})
}
