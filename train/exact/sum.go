// Package exact adds float64 values over ranks to the same bits in any order. The ranks add float32
// values around a ring, so a value travels as digits: each is a whole number below 2^10, and a sum
// over up to 2^14 ranks is one that float32 holds exactly.
//
// It knows no ranks and no ring, and imports nothing of this module.
package exact

import "math"

// Sizes of a value's digits.
const (
	digitBits = 10
	digits    = 6 // of the whole part, and as many of the fraction
	// Floats is the number of digits of a value.
	Floats = 2 * digits
	// MaxTerms is the largest number of values that add up exactly.
	MaxTerms = 1 << (24 - digitBits)
)

// Limit bounds a value's magnitude.
const Limit = 1 << (digitBits*digits - 1)

// Fits reports whether Put can write x: it is finite and below Limit.
func Fits(x float64) bool { return math.Abs(x) < Limit }

// Put writes x to dst, Floats long, within 2^-60.
func Put(dst []float32, x float64) {
	whole, fraction := math.Modf(x)
	putDigits(dst[digits:], int64(whole))
	putDigits(dst[:digits], int64(math.Ldexp(fraction, digitBits*digits)))
}

// putDigits writes the digits of v, the lowest first, each with the sign of v.
func putDigits(dst []float32, v int64) {
	for i := range digits {
		dst[i] = float32(v % (1 << digitBits))
		v /= 1 << digitBits
	}
}

// Take returns the sum of values from the sum of their digits.
func Take(src []float32) (s Sum) {
	for i, d := range src[:Floats] {
		s.digits[i] = int64(d)
	}
	return s
}

// Sum is a sum that does not depend on the order of its terms, nor on partial sums. The zero
// value is 0.
type Sum struct {
	digits [Floats]int64
	other  float64 // sum of the terms that do not fit: not finite, or 0
}

// Add adds x, within 2^-60. An x that does not fit makes the sum non-finite.
func (s *Sum) Add(x float64) {
	if !Fits(x) {
		s.other += x * math.Inf(1) // infinite or NaN for large numbers too
		return
	}
	var d [Floats]float32
	Put(d[:], x)
	for i := range d {
		s.digits[i] += int64(d[i])
	}
}

// settle normalises the digits: all but the highest are below 2^10, and all have the sum's sign.
// Equal sums then have equal digits.
func (s *Sum) settle() {
	s.carry()
	if s.digits[Floats-1] < 0 {
		s.negate()
		s.carry()
		s.negate()
	}
}

// carry brings each digit but the highest into 0 to 2^10-1.
func (s *Sum) carry() {
	for i := range Floats - 1 {
		over := s.digits[i] >> digitBits // rounded down
		s.digits[i] -= over << digitBits
		s.digits[i+1] += over
	}
}

func (s *Sum) negate() {
	for i := range s.digits {
		s.digits[i] = -s.digits[i]
	}
}

// Value returns the sum.
func (s *Sum) Value() float64 {
	if s.other != 0 {
		return s.other
	}
	s.settle()
	x := 0.0
	for i, d := range s.digits {
		x += math.Ldexp(float64(d), digitBits*(i-digits))
	}
	return x
}

// Put writes the sum's digits as Put does. The sum must fit.
func (s *Sum) Put(dst []float32) {
	s.settle()
	for i, d := range s.digits {
		dst[i] = float32(d)
	}
}
