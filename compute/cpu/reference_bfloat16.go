package cpu

import (
	"math"

	"rondo/compute"
)

// rounding rounds a product's operands to bfloat16. Its buffers hold the rounded copies, and are as
// large as the largest operands so far.
type rounding[F float] struct{ a, b []F }

// newRounding is nil for fp32.
func newRounding[F float](p compute.Precision) *rounding[F] {
	if p == compute.FP32 {
		return nil
	}
	return &rounding[F]{}
}

// operands are a and b, rounded if need be, valid until the next product.
func (r rows[F]) operands(a, b []F) ([]F, []F) {
	if r.round == nil {
		return a, b
	}
	return roundInto(&r.round.a, a), roundInto(&r.round.b, b)
}

func roundInto[F float](at *[]F, x []F) []F {
	if cap(*at) < len(x) {
		*at = make([]F, len(x))
	}
	y := (*at)[:len(x)]
	for i, v := range x {
		y[i] = F(bfloat16(float32(v)))
	}
	return y
}

// bfloat16 rounds x to 8 bits of significand, to nearest, ties to even. Above the largest number it
// becomes infinite; NaN stays NaN, with its sign.
func bfloat16(x float32) float32 {
	const dropped, quiet = 1<<16 - 1, 1 << 22
	bits := math.Float32bits(x)
	if x != x {
		return math.Float32frombits((bits | quiet) &^ dropped)
	}
	bits += dropped>>1 + bits>>16&1
	return math.Float32frombits(bits &^ dropped)
}
