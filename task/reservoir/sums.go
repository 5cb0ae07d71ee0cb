package reservoir

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

// The normal equations of the readout, (A + ridge) R = B, with A = Σ z zᵀ and B = Σ z yᵀ over the
// rows; z = [1, u, x] is P wide, and y is the next row. Sums are of whole numbers, so that any
// number of workers has the same bits: each example's part of a sum is rounded to a multiple of
// 2^-fraction and cut into digits, base 2^12, of which the task adds each by itself.
const (
	fraction = 40
	base     = 12
	digits   = 5
	// largest bounds an example's part of a sum, so that it has so many digits.
	largest = 1 << (digits*base - 2 - fraction)
	// MaxExamples bounds the examples, so that float32 adds their digits, at most half of the base,
	// exactly.
	MaxExamples = 1 << (24 - base)
)

// packed is the number of sums: the upper triangle of A row by row, then B.
func packed(P, C int) int { return P*(P+1)/2 + P*C }

// accumulate adds the sums of a block of rows, z: [n, P] and y: [n, C], to sums.
func accumulate(sums []float64, z [][]float64, y [][]float32) {
	at := 0
	for i := range z[0] {
		row := sums[at : at+len(z[0])-i]
		for _, x := range z {
			a := x[i]
			for j, b := range x[i:] {
				row[j] += a * b
			}
		}
		at += len(row)
	}
	for i := range z[0] {
		for t, x := range z {
			for c, b := range y[t] {
				sums[at+c] += x[i] * float64(b)
			}
		}
		at += len(y[0])
	}
}

// cut subtracts the digits of sums from to: [S, digits].
func cut(sums []float64, to []float32) error {
	for s, sum := range sums {
		if !(math.Abs(sum) < largest) {
			return fmt.Errorf("a sum over an example's rows is %.3g, and the most is %d: give a "+
				"smaller --bptt", sum, largest)
		}
		rest := int64(math.Round(math.Ldexp(sum, fraction)))
		for k := range digits - 1 {
			const half = 1 << (base - 1)
			digit := (rest+half)&(2*half-1) - half
			to[s*digits+k] -= float32(digit)
			rest = (rest - digit) >> base
		}
		to[s*digits+digits-1] -= float32(rest)
	}
	return nil
}

// value is the sum with these digits.
func value(d []float32) (sum float64) {
	for k := digits - 1; k >= 0; k-- {
		sum += math.Ldexp(float64(d[k]), k*base-fraction)
	}
	return sum
}

// solve returns the readout R, [P, C], of the digits of sums.
func solve(flat []float32, P, C int, ridge float64) (*mat.Dense, error) {
	if value(flat) == 0 { // the number of rows: nothing was added
		return mat.NewDense(P, C, nil), nil
	}
	a, b := mat.NewSymDense(P, nil), mat.NewDense(P, C, nil)
	next := func() float64 {
		v := value(flat[:digits])
		flat = flat[digits:]
		return v
	}
	for i := range P {
		for j := i; j < P; j++ {
			a.SetSym(i, j, next())
		}
		a.SetSym(i, i, a.At(i, i)+ridge)
	}
	for i := range P {
		for c := range C {
			b.Set(i, c, next())
		}
	}
	var of mat.Cholesky
	var readout mat.Dense
	if !of.Factorize(a) {
		return nil, fmt.Errorf("the readout's equations have no solution: raise --ridge above %g",
			ridge)
	}
	if err := of.SolveTo(&readout, b); err != nil {
		if _, poor := err.(mat.Condition); !poor { //nolint:errorlint // gonum's own, not wrapped
			return nil, fmt.Errorf("the readout: %w", err)
		}
	}
	return &readout, nil
}
