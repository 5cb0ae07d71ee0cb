package cpu

import "time"

// Peak measures, for about the window, the floating-point operations per second of the products'
// instruction, on all threads at once, on operands in registers: an upper bound for products. It is
// the best of short runs, so it is too low if other work disturbs all of them. Without cgo it is
// the rate of the products' inner loop on a vector in the cache.
func (d *Device) Peak(window time.Duration) float64 {
	const long = time.Millisecond // long enough to hide the start of the threads
	best := 0.0
	for rounds, end := 1000, time.Now().Add(window); ; {
		start := time.Now()
		operations := d.backend.multiply(rounds)
		took := time.Since(start)
		best = max(best, operations/max(took, time.Microsecond).Seconds())
		if took < long {
			rounds *= 2
		}
		if time.Now().After(end) {
			return best
		}
	}
}
