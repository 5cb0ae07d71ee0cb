package train

import "time"

// arrivalSlots is how many ranks each tell how long they took to come to a step's sum. Of more
// ranks, every so many-th share a slot, and what is known of them is their mean.
const arrivalSlots = 16

// Ranks have no common clock, but a sum that all are given begins a common time: from the sum
// before, each took so long to where it could only wait for the others. Who took the longest is
// whom the others waited for, however they look afterwards: from then on all look equally late.

// putArrival writes how long a rank took to dst, arrivalSlots long.
func putArrival(dst []float32, rank int, took time.Duration) {
	clear(dst[:arrivalSlots])
	dst[rank%arrivalSlots] = float32(took.Seconds())
}

// takeArrivals returns how long the slowest of so many ranks took, of what they have put added up.
func takeArrivals(src []float32, ranks int) time.Duration {
	slowest := 0.0
	for i, sum := range src[:min(arrivalSlots, ranks)] {
		sharing := (ranks - i + arrivalSlots - 1) / arrivalSlots
		slowest = max(slowest, float64(sum)/float64(sharing))
	}
	return time.Duration(slowest * float64(time.Second))
}

// waited is how much of the time that a rank was exposed to the ring it waited for the slowest one,
// which took so long to come when this one took its own time.
func waited(slowest, own, exposed time.Duration) time.Duration {
	return min(max(slowest-own, 0), exposed)
}
