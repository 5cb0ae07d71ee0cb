package cpu

import (
	"slices"

	"rondo/compute"
)

// The reference arithmetic: every kernel in plain Go, row-major, generic so that tests can run it
// in float64. The pure-Go build uses it, and tests compare the C kernels with it.

// float is a type that the reference computes in.
type float interface{ float32 | float64 }

// rows has the inner loops of products, gonum's in the pure-Go build and plain ones in tests, and
// the rounding of operands.
type rows[F float] struct {
	dot   func(x, y []F) F        // sum of x[i]*y[i]
	axpy  func(alpha F, x, y []F) // y += alpha x
	round *rounding[F]            // nil: operands are not rounded
}

// plainRows are simple inner loops.
func plainRows[F float](p compute.Precision) rows[F] {
	return rows[F]{
		round: newRounding[F](p),
		dot: func(x, y []F) F {
			var sum F
			for i, v := range x {
				sum += v * y[i]
			}
			return sum
		},
		axpy: func(alpha F, x, y []F) {
			for i, v := range x {
				y[i] += alpha * v
			}
		},
	}
}

// timesTransposed adds a bT to c. a: [m, k] in rows of lda, b: [n, k], c: [m, n] in rows of ldc.
func (r rows[F]) timesTransposed(m, n, k int, a []F, lda int, b []F, c []F, ldc int) {
	a, b = r.operands(a[:(m-1)*lda+k], b[:n*k])
	for i := range m {
		for j := range n {
			c[i*ldc+j] += r.dot(a[i*lda:i*lda+k], b[j*k:(j+1)*k])
		}
	}
}

// times adds a b to c. a: [m, k] in rows of lda, b: [k, n], c: [m, n].
func (r rows[F]) times(m, n, k int, a []F, lda int, b []F, c []F) {
	a, b = r.operands(a[:(m-1)*lda+k], b[:k*n])
	for i := range m {
		for p := range k {
			r.axpy(a[i*lda+p], b[p*n:(p+1)*n], c[i*n:(i+1)*n])
		}
	}
}

// transposedTimes adds aT b to c. a: [k, m] in rows of lda, b: [k, n], c: [m, n].
func (r rows[F]) transposedTimes(m, n, k int, a []F, lda int, b []F, c []F) {
	a, b = r.operands(a[:(k-1)*lda+m], b[:k*n])
	for p := range k {
		for i := range m {
			r.axpy(a[p*lda+i], b[p*n:(p+1)*n], c[i*n:(i+1)*n])
		}
	}
}

// gemm adds alpha op(a) op(b) to beta c.
func (r rows[F]) gemm(transA, transB bool, m, n, k int, alpha F, a, b []F, beta F, c []F) {
	a, b = r.operands(a, b)
	for i := range c {
		c[i] *= beta
	}
	at := func(i, p int) F {
		if transA {
			return a[p*m+i]
		}
		return a[i*k+p]
	}
	for i := range m {
		row := c[i*n : (i+1)*n]
		for p := range k {
			x := alpha * at(i, p)
			if !transB {
				r.axpy(x, b[p*n:(p+1)*n], row)
				continue
			}
			for j := range row {
				row[j] += x * b[j*k+p]
			}
		}
	}
}

// addRow adds b to every row of x.
func addRow[F float](x, b []F) {
	for i := range x {
		x[i] += b[i%len(b)]
	}
}

// refAdd adds x to y.
func refAdd[F float](y, x []F) {
	for i, v := range x {
		y[i] += v
	}
}

// refScale multiplies x by a.
func refScale[F float](x []F, a F) {
	for i := range x {
		x[i] *= a
	}
}

// refClamp limits x to [-limit, limit]; NaN stays.
func refClamp[F float](x []F, limit F) {
	for i, v := range x {
		if v > limit {
			x[i] = limit
		} else if v < -limit {
			x[i] = -limit
		}
	}
}

// refSumSquares sums in the order of compute.Device.SumSquares.
func refSumSquares(x []float32) float64 {
	total := 0.0
	for part := range slices.Chunk(x, compute.SquaresPart) {
		parts := 0.0
		for block := range slices.Chunk(part, compute.SquaresBlock) {
			var sums [compute.SquaresLanes]float64
			for i, v := range block {
				// The product is exact, so that fusing changes nothing.
				sums[i%compute.SquaresLanes] += float64(v) * float64(v)
			}
			squares := 0.0
			for _, s := range sums {
				squares += s
			}
			parts += squares
		}
		total += parts
	}
	return total
}
