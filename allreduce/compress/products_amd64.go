package compress

import "golang.org/x/sys/cpu"

// vectorFloats is how many floats the vector loops take at a time at least.
const vectorFloats = 8

// addScaledVector does addScaled to as many floats as whole vectors hold, and returns how many.
func addScaledVector(dst, x []float32, a float32) int {
	n := len(dst) &^ (vectorFloats - 1)
	if n == 0 || !cpu.X86.HasAVX {
		return 0
	}
	_ = x[n-1]
	addScaledAVX(&dst[0], &x[0], n, a)
	return n
}

// dotVector is dot of as many floats as whole vectors hold, and how many those are.
func dotVector(x, y []float32) (int, float32) {
	n := len(x) &^ (vectorFloats - 1)
	if n == 0 || !cpu.X86.HasAVX {
		return 0, 0
	}
	_ = y[n-1]
	return n, dotAVX(&x[0], &y[0], n)
}

// addScaledAVX adds a times n floats, a multiple of 8, at x to those at dst, without fused
// operations.
//
//go:noescape
func addScaledAVX(dst, x *float32, n int, a float32)

// dotAVX is the sum of the products of n floats, a multiple of 8, at x and y.
//
//go:noescape
func dotAVX(x, y *float32, n int) float32
