package cpu

import "time"

// Peak measures for about the window how many floating-point operations a second the instruction
// that the device's products use does, on all of its threads at once, on operands in registers: a
// bound on what any product can reach. It is the best of short runs, and the more often the
// processor's cores are free of other work within the window, the nearer to the truth. Without cgo
// it is the rate of the inner loop of products on a vector in the cache.
func (d *Device) Peak(window time.Duration) float64 {
	const long = time.Millisecond // enough to start the threads in nearly no time
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
