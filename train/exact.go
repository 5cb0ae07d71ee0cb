package train

import "math"

// The order in which ranks add float32 values depends on their number. A sum that must not depend
// on it travels as digits. Each rank's digits are below 2^10, so a sum over up to 2^14 ranks is a
// whole number that float32 holds exactly, in any order.
const (
	digitBits   = 10
	digits      = 6 // of the whole part, and as many of the fraction
	exactFloats = 2 * digits
	maxRanks    = 1 << (24 - digitBits)
)

// exactLimit bounds a value's magnitude.
const exactLimit = 1 << (digitBits*digits - 1)

// exactable reports whether putExact can write x: it is finite and below exactLimit.
func exactable(x float64) bool { return math.Abs(x) < exactLimit }

// putExact writes x to dst, exactFloats long, within 2^-60.
func putExact(dst []float32, x float64) {
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

// takeExact returns the sum of values from the sum of their digits.
func takeExact(src []float32) (s exactSum) {
	for i, d := range src[:exactFloats] {
		s.digits[i] = int64(d)
	}
	return s
}

// exactSum is a sum that does not depend on the order of its terms, nor on partial sums. The zero
// value is 0.
type exactSum struct {
	digits [exactFloats]int64
	other  float64 // sum of the terms that are not exactable: not finite, or 0
}

// add adds x, within 2^-60. An x that is not exactable makes the sum non-finite.
func (s *exactSum) add(x float64) {
	if !exactable(x) {
		s.other += x * math.Inf(1) // infinite or NaN for large numbers too
		return
	}
	var d [exactFloats]float32
	putExact(d[:], x)
	for i := range d {
		s.digits[i] += int64(d[i])
	}
}

// settle normalises the digits: all but the highest are below 2^10, and all have the sum's sign.
// Equal sums then have equal digits.
func (s *exactSum) settle() {
	s.carry()
	if s.digits[exactFloats-1] < 0 {
		s.negate()
		s.carry()
		s.negate()
	}
}

// carry brings each digit but the highest into 0 to 2^10-1.
func (s *exactSum) carry() {
	for i := range exactFloats - 1 {
		over := s.digits[i] >> digitBits // rounded down
		s.digits[i] -= over << digitBits
		s.digits[i+1] += over
	}
}

func (s *exactSum) negate() {
	for i := range s.digits {
		s.digits[i] = -s.digits[i]
	}
}

// value returns the sum.
func (s *exactSum) value() float64 {
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

// put writes the sum's digits as putExact does. The sum must be exactable.
func (s *exactSum) put(dst []float32) {
	s.settle()
	for i, d := range s.digits {
		dst[i] = float32(d)
	}
}
