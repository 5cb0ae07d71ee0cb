package compress

import "math"

// dependent is the smallest norm of a vector, relative to its original one, after its parts along
// earlier vectors are subtracted. A smaller rest is rounding error, and is set to zero.
const dependent = 1e-6

// orthogonalise makes the r vectors in x, stored one after the other, orthonormal by the modified
// Gram-Schmidt process with two passes. It computes in float64, in a fixed order and with each
// product rounded, so equal x give equal bits on all ranks. A vector that is not finite becomes
// NaN.
func orthogonalise(x []float32, r int) {
	n := len(x) / r
	for c := range r {
		own := x[c*n:][:n]
		before := math.Sqrt(inner(own, own))
		subtract(own, x[:c*n])
		norm := math.Sqrt(inner(own, own))
		switch {
		case math.IsNaN(norm) || math.IsInf(norm, 0):
			fill(own, float32(math.NaN()))
			continue
		case norm <= dependent*before:
			clear(own)
			continue
		}
		scale(own, 1/norm)
		subtract(own, x[:c*n])
		scale(own, 1/math.Sqrt(inner(own, own)))
	}
}

// subtract subtracts from x its parts along the vectors in others, each of x's length.
func subtract(x, others []float32) {
	for ; len(others) > 0; others = others[len(x):] {
		other := others[:len(x)]
		along := inner(x, other)
		for i, v := range other {
			x[i] = float32(float64(x[i]) - float64(along*float64(v)))
		}
	}
}

// inner returns the inner product. float64 holds each product exactly.
func inner(x, y []float32) float64 {
	sum := 0.0
	for i, v := range x {
		sum += float64(float64(v) * float64(y[i]))
	}
	return sum
}

func scale(x []float32, a float64) {
	for i, v := range x {
		x[i] = float32(float64(v) * a)
	}
}

func fill(x []float32, a float32) {
	for i := range x {
		x[i] = a
	}
}
