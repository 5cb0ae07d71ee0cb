//go:build !cgo

package cpu

import (
	"math"

	"rondo/compute"
)

// attended is a query of a lane, with its place in Q and Y and its weights.
type attended struct {
	q, y    int // the first element in Q, in Y
	weights []float32
}

// eachQuery calls f with every query, by lanes, and with the places of the lane's keys and values:
// step s is s rows of B further.
func eachQuery(a compute.Attention, f func(at attended, b int)) {
	for b := range a.B {
		for t := range a.T {
			row := t*a.B + b
			f(attended{row * a.H, row * a.W, a.Weights[(b*a.T+t)*a.S:][:a.S]}, b)
		}
	}
}

// refAttend is Device.Attend.
func refAttend(a compute.Attention) {
	eachQuery(a, func(at attended, b int) {
		scores := at.weights[:a.Lengths[b]]
		clear(at.weights)
		largest := float32(math.Inf(-1))
		for s := range scores {
			scores[s] = refDot(a.Q[at.q:][:a.H], a.K[(s*a.B+b)*a.H:])
			largest = max(largest, scores[s])
		}
		sum := float32(0)
		for s, v := range scores {
			scores[s] = float32(math.Exp(float64(v - largest)))
			sum += scores[s]
		}
		y := a.Y[at.y:][:a.W]
		clear(y)
		for s := range scores {
			scores[s] /= sum
			refAddScaled(y, scores[s], a.V[(s*a.B+b)*a.W:])
		}
	})
}

// refAttendBackward is Device.AttendBackward.
func refAttendBackward(a compute.Attention, dy, dq, dk, dv []float32) {
	clear(dq)
	clear(dk)
	clear(dv)
	eachQuery(a, func(at attended, b int) {
		dy := dy[at.y:][:a.W]
		mean := refDot(dy, a.Y[at.y:])
		for s, weight := range at.weights[:a.Lengths[b]] {
			row := s*a.B + b
			d := weight * (refDot(dy, a.V[row*a.W:]) - mean)
			refAddScaled(dv[row*a.W:][:a.W], weight, dy)
			refAddScaled(dq[at.q:][:a.H], d, a.K[row*a.H:])
			refAddScaled(dk[row*a.H:][:a.H], d, a.Q[at.q:])
		}
	})
}

// refTanh is Device.Tanh.
func refTanh(x []float32) {
	for i, v := range x {
		x[i] = float32(math.Tanh(float64(v)))
	}
}

// refTanhBackward is Device.TanhBackward.
func refTanhBackward(dy, y []float32) {
	for i, v := range y {
		dy[i] *= 1 - v*v
	}
}

// refDot is the sum of the products of x and the first of y.
func refDot(x, y []float32) (sum float32) {
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// refAddScaled adds f times the first of x to y.
func refAddScaled(y []float32, f float32, x []float32) {
	for i := range y {
		y[i] += f * x[i]
	}
}
