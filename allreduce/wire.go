package allreduce

import (
	"encoding/binary"
	"math"
)

// Numbers are rounded to the nearest number of the element, ties to even (IEEE 754). NaN stays NaN,
// and a number beyond the largest finite one becomes an infinity. So a gradient above 65504 makes a
// sum in binary16 infinite, and all ranks skip the step together. Saturating instead would hide the
// overflow: a partial sum that is cut off is a wrong gradient that looks right, and a residual of
// 1e30 would send the largest number in every later step.
//
// Error feedback (Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al.,
// "Error feedback fixes SignSGD", 2019) adds the rounding error to the next sum. A float32 holds
// this error exactly. Let u be the last place of x, and w its nearest number of the element,
// finite. w is a multiple of u, because its own last place is coarser. |x-w| <= |x| < 2^24 u,
// because 0 is no nearer. So x-w is a whole number of u with at most 24 binary digits.

// encode writes src to dst as numbers of e. dst holds e.Bytes() for each number, at any address.
func encode(dst []byte, src []float32, e Element) {
	if e == Float32 {
		copy(dst, Bytes(src))
		return
	}
	n := encodeVector(dst, src, e)
	encodeLoop(dst[2*n:], src[n:], e)
}

// encodeFeedback encodes src+residual, and stores the rounding error in residual. The residual
// becomes 0 where the sum is not finite before or after rounding: the step is lost, and must not
// return in the next one.
func encodeFeedback(dst []byte, src, residual []float32, e Element) {
	if e == Float32 {
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x+residual[i]))
			residual[i] = 0
		}
		return
	}
	n := encodeFeedbackVector(dst, src, residual, e)
	encodeFeedbackLoop(dst[2*n:], src[n:], residual[n:], e)
}

// settleBlock is the number of floats that settle encodes and decodes at a time, so that they stay
// in the first-level cache.
const settleBlock = 1 << 10

// settle encodes src to dst and then writes the rounded numbers back to src, so that the rank that
// completes a sum keeps the same numbers as the others. residual may be nil: then the rounding
// error is lost.
func settle(dst []byte, src, residual []float32, e Element) {
	width := e.Bytes()
	for len(src) > 0 {
		n := min(len(src), settleBlock)
		if residual == nil {
			encode(dst[:width*n], src[:n], e)
		} else {
			encodeFeedback(dst[:width*n], src[:n], residual[:n], e)
			residual = residual[n:]
		}
		decode(src[:n], dst[:width*n], e)
		dst, src = dst[width*n:], src[n:]
	}
}

// addSettle adds src, numbers of e at any address, to dst and settles the result. out may be nil:
// then nothing is sent on.
func addSettle(out []byte, dst []float32, src []byte, residual []float32, e Element) {
	var unsent [2 * settleBlock]byte
	width := e.Bytes()
	for at := 0; at < len(dst); at += settleBlock {
		n := min(len(dst)-at, settleBlock)
		to := unsent[:width*n]
		if out != nil {
			to = out[width*at:][:width*n]
		}
		x, s := dst[at:at+n], src[width*at:][:width*n]
		if residual != nil {
			addDecoded(x, s, e)
			settle(to, x, residual[at:at+n], e)
			continue
		}
		done := addSettleVector(to, x, s, e)
		x, s, to = x[done:], s[width*done:], to[width*done:]
		addDecoded(x, s, e)
		settle(to, x, nil, e)
	}
}

// addBlock is the number of floats that addEncode adds at a time in memory of its own.
const addBlock = 1 << 8

// addEncode encodes the sum of x and src, numbers of e at any address, to out. x stays as it is,
// except where out begins at x's address, which is allowed. residual may be nil.
func addEncode(out []byte, x []float32, src []byte, residual []float32, e Element) {
	if residual == nil {
		n := addEncodeVector(out, x, src, e)
		out, x, src = out[2*n:], x[n:], src[2*n:]
	}
	var sums [addBlock]float32
	for len(x) > 0 {
		sum := sums[:min(len(x), addBlock)]
		n := len(sum)
		copy(sum, x)
		addDecoded(sum, src[:2*n], e)
		if residual == nil {
			encode(out[:2*n], sum, e)
		} else {
			encodeFeedback(out[:2*n], sum, residual[:n], e)
			residual = residual[n:]
		}
		out, x, src = out[2*n:], x[n:], src[2*n:]
	}
}

// decode fills dst from src, numbers of e at any address.
func decode(dst []float32, src []byte, e Element) {
	if e == Float32 {
		copy(Bytes(dst), src)
		return
	}
	n := decodeVector(dst, src, e)
	decodeLoop(dst[n:], src[2*n:], e)
}

// addDecoded adds src, numbers of e at any address, to dst.
func addDecoded(dst []float32, src []byte, e Element) {
	if e == Float32 {
		add(dst, src)
		return
	}
	n := addDecodedVector(dst, src, e)
	addDecodedLoop(dst[n:], src[2*n:], e)
}

// encodeLoop is encode without vector instructions. This loop and those below take elements of two
// bytes only.
func encodeLoop(dst []byte, src []float32, e Element) {
	if e == Float16 {
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], narrowFloat16(x))
		}
		return
	}
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], narrowBFloat16(x))
	}
}

func encodeFeedbackLoop(dst []byte, src, residual []float32, e Element) {
	for i := range src {
		x := src[i] + residual[i]
		short := narrow(x, e)
		binary.LittleEndian.PutUint16(dst[2*i:], short)
		lost := x - widen(short, e)
		if lost-lost != 0 { // an infinity or NaN
			lost = 0
		}
		residual[i] = lost
	}
}

func decodeLoop(dst []float32, src []byte, e Element) {
	for i := range dst {
		dst[i] = widen(binary.LittleEndian.Uint16(src[2*i:]), e)
	}
}

func addDecodedLoop(dst []float32, src []byte, e Element) {
	for i := range dst {
		dst[i] += widen(binary.LittleEndian.Uint16(src[2*i:]), e)
	}
}

func narrow(x float32, e Element) uint16 {
	if e == Float16 {
		return narrowFloat16(x)
	}
	return narrowBFloat16(x)
}

func widen(short uint16, e Element) float32 {
	if e == Float16 {
		return widenFloat16(short)
	}
	return math.Float32frombits(uint32(short) << 16)
}

// A float32 has a sign in bit 31, 8 bits of exponent and 23 of fraction; the highest fraction bit
// makes a NaN quiet. A bfloat16 is its upper half. A binary16 has 5 bits of exponent, with a bias
// smaller by 112, and 10 of fraction.
const (
	signBit       = 1 << 31
	infinityBits  = 0x7f800000
	quietBit      = 0x00400000
	leastNormal16 = 0x38800000 // 2^-14
	overflow16    = 0x477ff000 // 65520, halfway between 65504 and the next step
	infinity16    = 0x7c00
	quiet16       = 0x0200
)

func narrowBFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&^uint32(signBit) > infinityBits {
		return uint16((b | quietBit) >> 16)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func narrowFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, b := uint16(b>>16&0x8000), b&^uint32(signBit)
	switch {
	case b > infinityBits:
		return sign | infinity16 | quiet16 | uint16(b>>13&0x3ff)
	case b >= overflow16:
		return sign | infinity16
	case b < leastNormal16: // 0.5 has the last place of subnormals, so the addition rounds right
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
}

func widenFloat16(short uint16) float32 {
	sign, b := uint32(short&0x8000)<<16, uint32(short&0x7fff)
	switch {
	case b > infinity16:
		return math.Float32frombits(sign | infinityBits | quietBit | b<<13&0x7fffff)
	case b == infinity16:
		return math.Float32frombits(sign | infinityBits)
	case b < 0x400:
		return math.Float32frombits(sign | math.Float32bits(float32(b)*0x1p-24))
	}
	return math.Float32frombits(sign | (b<<13 + 112<<23))
}
