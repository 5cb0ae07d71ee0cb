package allreduce

import "golang.org/x/sys/cpu"

// add adds the little-endian floats of src, at any address, to dst.
func add(dst []float32, src []byte) {
	if cpu.X86.HasAVX && !raceDetector {
		n := addVector(dst, src)
		dst, src = dst[n:], src[4*n:]
	}
	addLoop(dst, src)
}

// addVector adds as many floats as whole vectors hold, and returns how many. The race detector
// does not see what it reads and writes.
func addVector(dst []float32, src []byte) int {
	n := len(dst) &^ 7
	if n > 0 {
		_ = src[4*n-1]
		addAVX(&dst[0], &src[0], n)
	}
	return n
}

// addAVX adds n floats, a multiple of 8, at src to those at dst. Neither need be aligned.
//
//go:noescape
func addAVX(dst *float32, src *byte, n int)
