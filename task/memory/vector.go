package memory

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// Float is what a network computes with: float32, and float64 to check its gradients.
type Float interface{ float32 | float64 }

// aligned is a number of floats whose memory is aligned.
const aligned = 16

// Zeros returns n zeros for the functions below. Multiply adds up in an order that depends on where
// its arguments begin, modulo 16 bytes: with this memory, and fixed parts of it, the order is
// always the same. Go aligns objects of whole 64 bytes so.
func Zeros[F Float](n int) []F {
	return make([]F, (n+aligned-1)/aligned*aligned)[:n:n]
}

// Multiply adds w x to y; w: [len(y), len(x)].
func Multiply[F Float](y, w, x []F) { gemv(blas.NoTrans, len(y), len(x), w, x, y) }

// MultiplyTransposed adds wᵀ y to x; w: [len(y), len(x)].
func MultiplyTransposed[F Float](x, w, y []F) { gemv(blas.Trans, len(y), len(x), w, y, x) }

// gemv adds op(w) x to y; w: [m, n].
func gemv[F Float](op blas.Transpose, m, n int, w, x, y []F) {
	switch w := any(w).(type) {
	case []float32:
		gonum.Implementation{}.Sgemv(op, m, n, 1, w, n, any(x).([]float32), 1, 1,
			any(y).([]float32), 1)
	case []float64:
		gonum.Implementation{}.Dgemv(op, m, n, 1, w, n, any(x).([]float64), 1, 1,
			any(y).([]float64), 1)
	}
}

// AddOuter adds y xᵀ to w: [len(y), len(x)].
func AddOuter[F Float](w, y, x []F) {
	switch w := any(w).(type) {
	case []float32:
		gonum.Implementation{}.Sger(len(y), len(x), 1, any(y).([]float32), 1, any(x).([]float32),
			1, w, len(x))
	case []float64:
		gonum.Implementation{}.Dger(len(y), len(x), 1, any(y).([]float64), 1, any(x).([]float64),
			1, w, len(x))
	}
}

// Dot is the inner product.
func Dot[F Float](x, y []F) (sum F) {
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// Add adds x to y.
func Add[F Float](y, x []F) {
	for i, v := range x {
		y[i] += v
	}
}

// AddScaled adds a x to y.
func AddScaled[F Float](y []F, a F, x []F) {
	for i, v := range x {
		y[i] += a * v
	}
}

// Norm is the Euclidean norm.
func Norm[F Float](x []F) F { return F(math.Sqrt(float64(Dot(x, x)))) }

// Exp is e^x.
func Exp[F Float](x F) F { return F(math.Exp(float64(x))) }

// Tanh is the hyperbolic tangent.
func Tanh[F Float](x F) F { return F(math.Tanh(float64(x))) }

// Sigmoid is 1 / (1 + e^-x).
func Sigmoid[F Float](x F) F { return 1 / (1 + Exp(-x)) }

// Softplus is log(1 + e^x).
func Softplus[F Float](x F) F {
	v := float64(x)
	return F(math.Max(v, 0) + math.Log1p(math.Exp(-math.Abs(v))))
}

// Softmax sets y to the softmax of x. They may be the same slice.
func Softmax[F Float](y, x []F) {
	largest := x[0]
	for _, v := range x {
		largest = max(largest, v)
	}
	var sum F
	for i, v := range x {
		y[i] = Exp(v - largest)
		sum += y[i]
	}
	for i := range y {
		y[i] /= sum
	}
}

// SoftmaxBackward adds to dx the gradient of the softmax's input, given its output y and that
// output's gradient dy.
func SoftmaxBackward[F Float](dx, y, dy []F) {
	inner := Dot(y, dy)
	for i, v := range y {
		dx[i] += v * (dy[i] - inner)
	}
}
