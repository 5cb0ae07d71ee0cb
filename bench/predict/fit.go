package predict

import (
	"errors"
	"fmt"
	"math"
)

// Measured is a time of an all-reduce that somebody has measured.
type Measured struct {
	World   int
	Bytes   float64
	Seconds float64
}

// maxFitRounds bounds the improvements of a fit; a few are enough, unless two alternate.
const maxFitRounds = 50

// Fit returns the link whose latency and seconds per byte explain the measurements best: with the
// least sum of squared relative errors, and neither below 0. message, gamma and chunkBytes are
// given. It needs times of at least two sizes.
//
// A time is the length of the longest path through the schedule, which is linear in both as long as
// the path stays the same: a few rounds of linear least squares find it.
func Fit(all []Measured, message, gamma, chunkBytes float64) (Link, error) {
	sizes := map[float64]bool{}
	for _, m := range all {
		if m.World < 2 || m.World > MaxWorkers || !(m.Bytes >= 4) || !(m.Seconds > 0) ||
			math.IsInf(m.Bytes+m.Seconds, 0) {
			return Link{}, fmt.Errorf("not an all-reduce: %d ranks, %v bytes, %v s", m.World,
				m.Bytes, m.Seconds)
		}
		sizes[m.Bytes/float64(m.World)] = true
	}
	if len(sizes) < 2 {
		return Link{}, errors.New("all-reduces of at least two sizes are needed, to tell " +
			"latency from bandwidth")
	}
	first := all[0]
	guess := Link{Alpha: first.Seconds / 10, Beta: first.Seconds / first.Bytes, Message: message}
	best, least := guess, math.Inf(1)
	for range maxFitRounds {
		next := refine(all, guess, gamma, chunkBytes)
		if next == guess {
			break
		}
		guess = next
		if e := squaredError(all, guess, gamma, chunkBytes); e < least {
			best, least = guess, e
		}
	}
	return best, nil
}

func squaredError(all []Measured, link Link, gamma, chunkBytes float64) float64 {
	sum := 0.0
	for _, m := range all {
		e := AllReduce(m.World, m.Bytes, chunkBytes, link, gamma)/m.Seconds - 1
		sum += e * e
	}
	return sum
}

// refine fits Alpha and Beta to all with the paths that are the longest at guess: with
// T = a Alpha + b Beta + c, of relative errors.
func refine(all []Measured, guess Link, gamma, chunkBytes float64) Link {
	const nudge = 1e-6 // relative, so small that paths stay and so large that rounding is less
	var aa, ab, bb, ar, br float64
	for _, m := range all {
		at := func(l Link) float64 {
			return AllReduce(m.World, m.Bytes, chunkBytes, l, gamma) / m.Seconds
		}
		slope := func(of func(*Link) *float64) float64 {
			lo, hi := guess, guess
			step := max(*of(&guess), 1e-15) * nudge
			*of(&hi) += step
			return (at(hi) - at(lo)) / step
		}
		a := slope(func(l *Link) *float64 { return &l.Alpha })
		b := slope(func(l *Link) *float64 { return &l.Beta })
		rest := 1 - (at(guess) - a*guess.Alpha - b*guess.Beta)
		aa, ab, bb, ar, br = aa+a*a, ab+a*b, bb+b*b, ar+a*rest, br+b*rest
	}
	next := guess
	det := aa*bb - ab*ab
	next.Alpha, next.Beta = (ar*bb-br*ab)/det, (br*aa-ar*ab)/det
	switch {
	case !(det > 1e-12*aa*bb): // latency shows in none of them
		next.Alpha, next.Beta = guess.Alpha, max(0, (br-ab*guess.Alpha)/bb)
	case next.Alpha < 0:
		next.Alpha, next.Beta = 0, max(0, br/bb)
	case next.Beta < 0:
		next.Alpha, next.Beta = max(0, ar/aa), 0
	}
	return next
}
