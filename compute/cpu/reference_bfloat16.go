package cpu

import (
	"math"

	"rondo/compute"
)

// rounding makes a product's operands bfloat16. It holds the rounded copies, which are as large as
// the largest product's operands so far.
type rounding[F float] struct{ a, b []F }

// newRounding is nil for fp32, which rounds nothing.
func newRounding[F float](p compute.Precision) *rounding[F] {
	if p == compute.FP32 {
		return nil
	}
	return &rounding[F]{}
}

// operands are what a product of a and b multiplies; good until the next product.
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

// bfloat16 is x with 8 bits of significand, to nearest, ties to even. What rounds past the largest
// becomes infinite; NaN stays one, of the same sign.
func bfloat16(x float32) float32 {
	const dropped, quiet = 1<<16 - 1, 1 << 22
	bits := math.Float32bits(x)
	if x != x {
		return math.Float32frombits((bits | quiet) &^ dropped)
	}
	bits += dropped>>1 + bits>>16&1
	return math.Float32frombits(bits &^ dropped)
}
