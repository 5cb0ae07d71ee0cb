package predict

import (
	"math"
	"math/rand/v2"
)

// jitterSteps is how many values the latency's jitter has: the quantiles of its distribution.
const jitterSteps = 1 << 12

// jitter draws the extra latency of messages: exponentially distributed, as of a queue that is not
// full, and cut off at its last quantile. A message's value depends on its place in the schedule,
// not on the order of drawing.
type jitter struct {
	quantiles [jitterSteps]float64
}

// newJitter returns jitter of a mean, in seconds; nil if there is none.
func newJitter(mean float64) *jitter {
	if mean == 0 {
		return nil
	}
	j := &jitter{}
	sum := 0.0
	for i := range j.quantiles {
		j.quantiles[i] = -math.Log1p(-(float64(i) + 0.5) / jitterSteps)
		sum += j.quantiles[i]
	}
	for i := range j.quantiles {
		j.quantiles[i] *= mean * jitterSteps / sum
	}
	return j
}

// draw returns the jitter of a message: key is the collective's, and message counts those that a
// place sends in it.
func (j *jitter) draw(key, place, message uint64) float64 {
	x := key*0x9e3779b97f4a7c15 ^ place*0xbf58476d1ce4e5b9 ^ message*0x94d049bb133111eb
	x ^= x >> 31 // the finalizer of SplitMix64, without its last step
	x *= 0x94d049bb133111eb
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return j.quantiles[x>>(64-12)]
}

// Compute is how long workers compute.
type Compute struct {
	Seconds float64 // of a step, the mean over workers that are not slowed down

	// Sigma is the standard deviation of the logarithm of a worker's time in a step: times are
	// lognormal with mean Seconds.
	Sigma float64
	// Samples, if any, are times that were measured: drawn with the same chance each, in the place
	// of Seconds and Sigma.
	Samples []float64

	// Of the steps of a worker a fraction of Stragglers take StragglerFactor times as long.
	Stragglers, StragglerFactor float64

	// Forward is the fraction of a step before the first gradient is begun.
	Forward float64
}

// varies reports whether workers differ.
func (c Compute) varies() bool {
	return c.Sigma > 0 || len(c.Samples) > 1 || c.Stragglers > 0
}

// mean is that of a worker's time, stragglers' not counted.
func (c Compute) mean() float64 {
	if len(c.Samples) == 0 {
		return c.Seconds
	}
	sum := 0.0
	for _, s := range c.Samples {
		sum += s
	}
	return sum / float64(len(c.Samples))
}

// draw returns a worker's time for this many steps.
func (c Compute) draw(source *rand.Rand, steps int) float64 {
	if !c.varies() {
		return c.mean() * float64(steps)
	}
	sum := 0.0
	for range steps {
		one := c.Seconds
		switch {
		case len(c.Samples) > 0:
			one = c.Samples[source.IntN(len(c.Samples))]
		case c.Sigma > 0:
			one *= math.Exp(c.Sigma*source.NormFloat64() - c.Sigma*c.Sigma/2)
		}
		if c.Stragglers > 0 && source.Float64() < c.Stragglers {
			one *= c.StragglerFactor
		}
		sum += one
	}
	return sum
}

// Failures describes how often workers fail, and what a failure costs.
type Failures struct {
	// MTBF is the mean time in seconds between a worker's failures, exponentially distributed; 0:
	// there are none.
	MTBF float64
	// Detect and Regroup are the seconds until the others know, and until they go on.
	Detect, Regroup float64
}

// productive returns the fraction of the workers' time that is spent on steps that count. A step
// counts if no worker fails in it. Otherwise it is repeated after a new ring has formed, and a
// failure while it forms starts that anew. This is the more complete of Daly's models of checkpoint
// and restart (2006), with a free checkpoint at each step. For a step of s seconds, the failure
// rate L of all workers and R = Detect + Regroup,
//
//	E[time] = exp(L R) (exp(L s) - 1) / L
func (f Failures) productive(step float64, workers int) float64 {
	if f.MTBF == 0 {
		return 1
	}
	rate := float64(workers) / f.MTBF
	return rate * step / (math.Exp(rate*(f.Detect+f.Regroup)) * math.Expm1(rate*step))
}
