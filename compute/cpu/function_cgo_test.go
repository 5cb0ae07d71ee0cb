//go:build cgo

package cpu

import (
	"math"
	"testing"

	"rondo/compute"
)

// The functions' error bounds: relative for exp (of x <= 0, down to where it is set to zero) and
// tanh; sigmoid's is relative down to e^-87, where its argument is limited.
const (
	expBound     = 1.2e-7
	sigmoidBound = 1.5e-7
	tanhBound    = 2.5e-7
)

// TestFunctions walks the bits of all floats in steps of a prime, against float64.
func TestFunctions(t *testing.T) {
	const stride, batch = 4099, 4096
	for _, isa := range isas(compute.FP32) {
		n := newDevice(t, isa, Config{Threads: 1}).backend.(*native)
		x, y := make([]float32, batch), make([]float32, batch)
		var worst [3]float64
		for bits := uint64(0); bits < 1<<32; {
			for i := range x {
				x[i] = math.Float32frombits(uint32(bits))
				bits += stride
			}
			for f := range worst {
				n.function(f, y, x)
				for i, v := range x {
					worst[f] = worse(worst[f], functionError(f, float64(v), float64(y[i])))
				}
			}
		}
		t.Logf("%s: relative errors of exp, sigmoid, tanh: %.3g", isa, worst)
		for f, bound := range []float64{expBound, sigmoidBound, tanhBound} {
			if !(worst[f] <= bound) {
				t.Errorf("%s: function %d: relative error %.3g, want at most %.3g", isa, f,
					worst[f], bound)
			}
		}
	}
}

// functionError is the relative error of y = f(x); an x that is NaN must give NaN.
func functionError(f int, x, y float64) float64 {
	if math.IsNaN(x) {
		if math.IsNaN(y) {
			return 0
		}
		return math.Inf(1)
	}
	var want float64
	switch f {
	case 0:
		if x > 0 {
			return 0 // not asked of it
		}
		if want = math.Exp(x); x < float64(float32(-87.3)) {
			want = 0
		}
	case 1:
		want = 1 / (1 + math.Exp(-math.Max(x, -87)))
	default:
		want = math.Tanh(x)
	}
	if want == 0 || math.Abs(want) < 0x1p-126 {
		return math.Abs(y-want) / 0x1p-126
	}
	return math.Abs(y-want) / math.Abs(want)
}
