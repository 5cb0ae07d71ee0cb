package compress

import "math"

// dependent is how small a column may become, as a share of what it was, when the part of it that
// those before it span is taken out. What is left of a smaller one is rounding: it is made zeros.
const dependent = 1e-6

// orthogonalise makes the r vectors that x holds one after the other orthonormal, by the modified
// Gram-Schmidt process, each taken through it twice. It computes in float64, in one order and with
// every product rounded, so that ranks with the same x have the same after it. A vector that is not
// finite becomes no numbers.
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

// subtract takes out of x its part along each of the vectors of its length in others.
func subtract(x, others []float32) {
	for ; len(others) > 0; others = others[len(x):] {
		other := others[:len(x)]
		along := inner(x, other)
		for i, v := range other {
			x[i] = float32(float64(x[i]) - float64(along*float64(v)))
		}
	}
}

// inner is the sum of the products, each of which float64 holds exactly.
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
