package allreduce

import (
	"encoding/binary"
	"math"
)

// What travels is rounded to the nearest number of the element, ties to the even one, as IEEE 754
// has it: NaN stays a NaN, and what lies beyond the largest finite number becomes an infinity. So
// a gradient with a number above 65504 makes a sum in binary16 infinite, and all ranks skip the
// step together. To saturate instead would hide the overflow: a partial sum that is cut off on its
// way is a wrong gradient that looks like a right one, and a residual that keeps 1e30 for later
// sends the largest number for ever after.
//
// With error feedback (Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et
// al., "Error feedback fixes SignSGD", 2019) what rounding takes away is added next time. A
// float32 holds it exactly: let u be the last place of x, and w, the nearest number of the
// element, finite. w is a multiple of u, as its own last place is coarser, and |x-w| <= |x| <
// 2^24 u, as 0 is no nearer. So x-w is a whole number of u with at most 24 binary digits.

// encode writes src to dst as numbers of e. dst has e.Bytes() for each, at any address.
func encode(dst []byte, src []float32, e Element) {
	if e == Float32 {
		copy(dst, Bytes(src))
		return
	}
	n := encodeVector(dst, src, e)
	encodeLoop(dst[2*n:], src[n:], e)
}

// encodeFeedback is encode of src+residual, and leaves in residual what rounding has taken away.
// Where the sum is not finite, or not any more when it is rounded, the residual is 0 then: the step
// is lost, and must not come back in the next.
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

// settleBlock is how many floats settle goes over twice while they are in the first cache.
const settleBlock = 1 << 10

// settle is encodeFeedback, or encode where residual is nil, and leaves in src what dst says: so
// that the rank that has a sum keeps what the others will have.
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

// addSettle adds src, which has numbers of e at any address, to dst, and settles that. out is nil
// where nothing goes on.
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

// addBlock is how many floats addEncode adds beside the buffer, which it leaves alone but for out.
const addBlock = 1 << 8

// addEncode is encode, or encodeFeedback where there is a residual, of the sum of x and src, which
// has numbers of e at any address. out may begin where x does.
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

// decode fills dst from src, which has numbers of e at any address.
func decode(dst []float32, src []byte, e Element) {
	if e == Float32 {
		copy(Bytes(dst), src)
		return
	}
	n := decodeVector(dst, src, e)
	decodeLoop(dst[n:], src[2*n:], e)
}

// addDecoded adds src, which has numbers of e at any address, to dst.
func addDecoded(dst []float32, src []byte, e Element) {
	if e == Float32 {
		add(dst, src)
		return
	}
	n := addDecodedVector(dst, src, e)
	addDecodedLoop(dst[n:], src[2*n:], e)
}

// encodeLoop is encode without vector instructions, for elements of two bytes, as are the other
// loops.
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

// A float32 has its sign in bit 31, 8 bits of exponent and 23 of fraction, a NaN that is quiet the
// highest of these; a bfloat16 is its upper half. A binary16 has 5 bits of exponent, less by 112,
// and 10 of fraction.
const (
	signBit       = 1 << 31
	infinityBits  = 0x7f800000
	quietBit      = 0x00400000
	leastNormal16 = 0x38800000 // 2^-14
	overflow16    = 0x477ff000 // 65520, halfway between 65504 and what would be next
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
	case b < leastNormal16: // 0.5 has the last place of subnormals, so the sum is rounded right
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
