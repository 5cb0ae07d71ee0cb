package allreduce

import "golang.org/x/sys/cpu"

// The functions below process as many numbers of e as fill whole vectors, and return that count.
// The race detector does not see their memory accesses.

// vectors returns how many of n numbers of e the processor's vector instructions can process.
func vectors(n int, e Element) int {
	if raceDetector || !cpu.X86.HasAVX2 || e == Float16 && !cpu.X86.HasF16C {
		return 0
	}
	return n &^ 15
}

func encodeVector(dst []byte, src []float32, e Element) int {
	n := vectors(len(src), e)
	if n > 0 {
		_ = dst[2*n-1]
		switch {
		case e == Float16:
			encodeFloat16AVX2(&dst[0], &src[0], n)
		case cpu.X86.HasAVX512F:
			encodeBFloat16AVX512(&dst[0], &src[0], n)
		default:
			encodeBFloat16AVX2(&dst[0], &src[0], n)
		}
	}
	return n
}

func encodeFeedbackVector(dst []byte, src, residual []float32, e Element) int {
	n := vectors(len(src), e)
	if n > 0 {
		_, _ = dst[2*n-1], residual[n-1]
		switch {
		case e == Float16:
			encodeFeedbackFloat16AVX2(&dst[0], &src[0], &residual[0], n)
		case cpu.X86.HasAVX512F:
			encodeFeedbackBFloat16AVX512(&dst[0], &src[0], &residual[0], n)
		default:
			encodeFeedbackBFloat16AVX2(&dst[0], &src[0], &residual[0], n)
		}
	}
	return n
}

func decodeVector(dst []float32, src []byte, e Element) int {
	n := vectors(len(dst), e)
	if n > 0 {
		_ = src[2*n-1]
		if e == Float16 {
			decodeFloat16AVX2(&dst[0], &src[0], n)
		} else {
			decodeBFloat16AVX2(&dst[0], &src[0], n)
		}
	}
	return n
}

func addDecodedVector(dst []float32, src []byte, e Element) int {
	n := vectors(len(dst), e)
	if n > 0 {
		_ = src[2*n-1]
		if e == Float16 {
			addDecodedFloat16AVX2(&dst[0], &src[0], n)
		} else {
			addDecodedBFloat16AVX2(&dst[0], &src[0], n)
		}
	}
	return n
}

// addEncodeVector does no bfloat16s on a processor without AVX-512; neither does addSettleVector.
func addEncodeVector(out []byte, x []float32, src []byte, e Element) int {
	n := vectors(len(x), e)
	if n == 0 || e == BFloat16 && !cpu.X86.HasAVX512F {
		return 0
	}
	_, _ = out[2*n-1], src[2*n-1]
	if e == Float16 {
		addEncodeFloat16AVX2(&out[0], &x[0], &src[0], n)
	} else {
		addEncodeBFloat16AVX512(&out[0], &x[0], &src[0], n)
	}
	return n
}

func addSettleVector(out []byte, x []float32, src []byte, e Element) int {
	n := vectors(len(x), e)
	if n == 0 || e == BFloat16 && !cpu.X86.HasAVX512F {
		return 0
	}
	_, _ = out[2*n-1], src[2*n-1]
	if e == Float16 {
		addSettleFloat16AVX2(&out[0], &x[0], &src[0], n)
	} else {
		addSettleBFloat16AVX512(&out[0], &x[0], &src[0], n)
	}
	return n
}

// Each function below processes n numbers; n is a multiple of 16 and not 0. Addresses need no
// alignment. Rounding to bfloat16 is bound by arithmetic, so it also has AVX-512 forms; the other
// operations are bound by memory.

//go:noescape
func encodeBFloat16AVX2(dst *byte, src *float32, n int)

//go:noescape
func encodeFeedbackBFloat16AVX2(dst *byte, src, residual *float32, n int)

//go:noescape
func encodeBFloat16AVX512(dst *byte, src *float32, n int)

//go:noescape
func encodeFeedbackBFloat16AVX512(dst *byte, src, residual *float32, n int)

//go:noescape
func decodeBFloat16AVX2(dst *float32, src *byte, n int)

//go:noescape
func addDecodedBFloat16AVX2(dst *float32, src *byte, n int)

//go:noescape
func encodeFloat16AVX2(dst *byte, src *float32, n int)

//go:noescape
func encodeFeedbackFloat16AVX2(dst *byte, src, residual *float32, n int)

//go:noescape
func decodeFloat16AVX2(dst *float32, src *byte, n int)

//go:noescape
func addDecodedFloat16AVX2(dst *float32, src *byte, n int)

//go:noescape
func addEncodeBFloat16AVX512(out *byte, x *float32, src *byte, n int)

//go:noescape
func addSettleBFloat16AVX512(out *byte, x *float32, src *byte, n int)

//go:noescape
func addEncodeFloat16AVX2(out *byte, x *float32, src *byte, n int)

//go:noescape
func addSettleFloat16AVX2(out *byte, x *float32, src *byte, n int)
