package compress

import "golang.org/x/sys/cpu"

// vectorFloats is the number of floats that the vector loops process at a time.
const vectorFloats = 8

// addScaledVector is addScaled for as many floats as fill whole vectors, and returns that count.
func addScaledVector(dst, x []float32, a float32) int {
	n := len(dst) &^ (vectorFloats - 1)
	if n == 0 || !cpu.X86.HasAVX {
		return 0
	}
	_ = x[n-1]
	addScaledAVX(&dst[0], &x[0], n, a)
	return n
}

// dotVector returns the inner product of as many floats as fill whole vectors, and that count.
func dotVector(x, y []float32) (int, float32) {
	n := len(x) &^ (vectorFloats - 1)
	if n == 0 || !cpu.X86.HasAVX {
		return 0, 0
	}
	_ = y[n-1]
	return n, dotAVX(&x[0], &y[0], n)
}

// addScaledAVX adds a times the n floats at x to those at dst, without fused operations. n is a
// multiple of 8.
//
//go:noescape
func addScaledAVX(dst, x *float32, n int, a float32)

// dotAVX returns the inner product of the n floats at x and y. n is a multiple of 8.
//
//go:noescape
func dotAVX(x, y *float32, n int) float32
