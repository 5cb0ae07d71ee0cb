package main

import (
	"math"
	"slices"
	"time"
)

// seconds of each duration, sorted.
func seconds(durations []time.Duration) []float64 {
	all := make([]float64, len(durations))
	for i, d := range durations {
		all[i] = d.Seconds()
	}
	slices.Sort(all)
	return all
}

// percentile is the smallest of the sorted values that at least the share p (0 to 1) of them do not
// exceed (nearest rank): a value that was measured, never one between two. NaN if there is none.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
