package train

import "time"

// arrivalSlots is the number of arrival times in a tail. With more ranks, ranks with the same
// number modulo arrivalSlots share a slot, and only their mean is known.
const arrivalSlots = 16

// Ranks have no common clock, but all leave a sum at about the same time. Each rank measures the
// time from the last sum to the point where it only waits for the others. The rank with the longest
// time is the one that the others wait for. Later all ranks look equally late.

// putArrival writes a rank's time to dst, arrivalSlots long.
func putArrival(dst []float32, rank int, took time.Duration) {
	clear(dst[:arrivalSlots])
	dst[rank%arrivalSlots] = float32(took.Seconds())
}

// takeArrivals returns the slowest rank's time from the sum of all ranks' putArrival.
func takeArrivals(src []float32, ranks int) time.Duration {
	slowest := 0.0
	for i, sum := range src[:min(arrivalSlots, ranks)] {
		sharing := (ranks - i + arrivalSlots - 1) / arrivalSlots
		slowest = max(slowest, float64(sum)/float64(sharing))
	}
	return time.Duration(slowest * float64(time.Second))
}

// waited returns how much of its exposed time a rank waited for the slowest rank. slowest and own
// are the times that both took to reach the sum.
func waited(slowest, own, exposed time.Duration) time.Duration {
	return min(max(slowest-own, 0), exposed)
}
