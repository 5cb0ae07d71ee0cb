package train

import "math"

// Ranks add up float32 values, in an order that depends on how many they are. A number that must
// not depend on that travels as digits: each rank's are below 2^10, so the sums of up to 2^14
// ranks are whole numbers that a float32 holds exactly, in whatever order they are added.
const (
	digitBits   = 10
	digits      = 6 // of the whole part, and of the fraction
	exactFloats = 2 * digits
	maxRanks    = 1 << (24 - digitBits)
)

// exactLimit is what a value's magnitude must be below.
const exactLimit = 1 << (digitBits*digits - 1)

// exactable says whether putExact takes x: it is finite, and not absurdly large.
func exactable(x float64) bool { return math.Abs(x) < exactLimit }

// putExact writes x to dst, exactFloats long, to within 2^-60.
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

// takeExact returns the sum of the values whose digits were added up in src.
func takeExact(src []float32) (s exactSum) {
	for i, d := range src[:exactFloats] {
		s.digits[i] = int64(d)
	}
	return s
}

// exactSum is a sum of numbers to which their order does not matter, nor how many of them were
// added up elsewhere. The zero value is 0.
type exactSum struct {
	digits [exactFloats]int64
	other  float64 // the sum of what was added and is not exactable: not finite, or 0
}

// add adds x, to within 2^-60. What is not exactable makes a sum that is not finite.
func (s *exactSum) add(x float64) {
	if !exactable(x) {
		s.other += x * math.Inf(1) // of a large number too
		return
	}
	var d [exactFloats]float32
	putExact(d[:], x)
	for i := range d {
		s.digits[i] += int64(d[i])
	}
}

// settle makes each digit but the highest less than 2^10, all of the sum's sign, so that equal sums
// have equal digits.
func (s *exactSum) settle() {
	s.carry()
	if s.digits[exactFloats-1] < 0 {
		s.negate()
		s.carry()
		s.negate()
	}
}

// carry makes each digit but the highest 0 to 2^10-1.
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

// put writes the digits of a sum that is exactable as putExact does.
func (s *exactSum) put(dst []float32) {
	s.settle()
	for i, d := range s.digits {
		dst[i] = float32(d)
	}
}
