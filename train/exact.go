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
func takeExact(src []float32) float64 {
	x := 0.0
	for i, d := range src[:exactFloats] {
		x += math.Ldexp(float64(d), digitBits*(i-digits))
	}
	return x
}
