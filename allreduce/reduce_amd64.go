package allreduce

import "golang.org/x/sys/cpu"

// add adds src, little-endian floats at any address, to dst.
func add(dst []float32, src []byte) {
	if cpu.X86.HasAVX && !raceDetector {
		n := addVector(dst, src)
		dst, src = dst[n:], src[4*n:]
	}
	addLoop(dst, src)
}

// addVector adds as many floats as fill whole vectors, and returns that count. The race detector
// does not see its memory accesses.
func addVector(dst []float32, src []byte) int {
	n := len(dst) &^ 7
	if n > 0 {
		_ = src[4*n-1]
		addAVX(&dst[0], &src[0], n)
	}
	return n
}

// addAVX adds n floats at src to those at dst; n is a multiple of 8. Addresses need no alignment.
//
//go:noescape
func addAVX(dst *float32, src *byte, n int)
