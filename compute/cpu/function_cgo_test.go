//go:build cgo

package cpu

import (
	"math"
	"testing"

	"rondo/compute"
)

// What simd.h states of exp (of x <= 0, 0 below -87.3), sigmoid and tanh: errors as shares of the
// result, and for the first two of 1+|x| too; and sigmoid's absolute one.
const (
	expBound             = 1.5e-7
	sigmoidBound         = 1.5e-7
	tanhBound            = 3.5e-7
	sigmoidAbsoluteBound = 1e-7
)

// TestFunctions walks the bits of all floats in steps of a prime, against float64.
func TestFunctions(t *testing.T) {
	for _, p := range precisions {
		for _, isa := range isas(p) {
			t.Run(isa+" "+p.String(), func(t *testing.T) { testFunctions(t, isa, p) })
		}
	}
}

func testFunctions(t *testing.T, isa string, p compute.Precision) {
	const stride, batch = 4099, 4096
	b, err := newBackend(1, p, isa)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	n := b.(*native)
	x, y := make([]float32, batch), make([]float32, batch)
	var worst [3]float64
	absolute, largest := 0.0, 0.0 // sigmoid's error, and the largest value of it and tanh
	for bits := uint64(0); bits < 1<<32; {
		for i := range x {
			x[i] = math.Float32frombits(uint32(bits))
			bits += stride
		}
		for f := range worst {
			n.function(f, y, x)
			for i, v := range x {
				worst[f] = math.Max(worst[f], functionError(f, float64(v), float64(y[i])))
				if f == 1 && v == v {
					want := 1 / (1 + math.Exp(-float64(v)))
					absolute = math.Max(absolute, math.Abs(float64(y[i])-want))
				}
				if f > 0 && v == v {
					largest = math.Max(largest, math.Abs(float64(y[i])))
				}
			}
		}
	}
	t.Logf("errors of exp, sigmoid, tanh: %.3g; sigmoid's absolute: %.3g", worst, absolute)
	for f, bound := range []float64{expBound, sigmoidBound, tanhBound} {
		if !(worst[f] <= bound) {
			t.Errorf("function %d: error %.3g, want at most %.3g", f, worst[f], bound)
		}
	}
	if !(absolute <= sigmoidAbsoluteBound) {
		t.Errorf("sigmoid: absolute error %.3g, want at most %.3g", absolute, sigmoidAbsoluteBound)
	}
	if !(largest <= 1) { // or 1-f is negative
		t.Errorf("sigmoid or tanh reaches %.9g", largest)
	}
}

// functionError is the error of y = f(x) as the bounds mean it; an x that is NaN must give NaN.
func functionError(f int, x, y float64) float64 {
	if math.IsNaN(x) {
		if math.IsNaN(y) {
			return 0
		}
		return math.Inf(1)
	}
	want, scale := math.Tanh(x), 1.0
	switch f {
	case 0:
		if x > 0 {
			return 0 // not asked of it
		}
		if scale, want = 1-x, math.Exp(x); x < float64(float32(-87.3)) {
			return math.Abs(y)
		}
	case 1:
		scale, want = 1+math.Abs(x), 1/(1+math.Exp(-x))
		if x < -87 {
			return math.Abs(y - want) // tiny, and no more is said of it
		}
	}
	if math.Abs(want) < 0x1p-126 {
		return math.Abs(y-want) / 0x1p-126
	}
	return math.Abs(y-want) / math.Abs(want) / scale
}
