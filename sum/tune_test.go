package sum

import (
	"math"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
)

// choose takes the cut with the least wait, or one bucket if none is much better.
func TestChoose(t *testing.T) {
	const million = 1 << 20
	points := []int{million, 2 * million, 3 * million, 4 * million}
	even := []float32{0.3, 0.2, 0.1, 0} // seconds before the last part
	probe := func(latency, each float64) []float32 {
		return append(slices.Clone(even), float32(latency+each*probeSmall),
			float32(latency+each*probeLarge))
	}
	for name, c := range map[string]struct {
		means   []float32
		buckets int
		exposed float64 // seconds
	}{
		"a fast link, whose latency counts": {probe(0.01, 1e-12), 1, 0.01},
		"communication of 80 %":             {probe(0, 0.08/million), 4, 0.08},
		"a slow link":                       {probe(0, 0.4/million), 4, 1.3},
		"latency as long as a part's way":   {probe(0.08, 0.08/million), 2, 0.28},
	} {
		least, found := choose(points, c.means)
		cut := bucketsOf(points, least)
		if least == 0 {
			cut = points[3:]
		}
		if len(cut) != c.buckets || math.Abs(found.Exposed.Seconds()-c.exposed) > 0.02*c.exposed {
			t.Errorf("%s: %d buckets, %v", name, len(cut), found)
		}
		if found.Exposed > found.Whole {
			t.Errorf("%s: %v", name, found)
		}
	}
}

func TestBucketsOf(t *testing.T) {
	points := []int{10, 30, 35, 90, 100}
	for least, want := range map[int][]int{
		1: points, 10: {10, 30, 90, 100}, 30: {30, 90, 100}, 60: {90, 100}, 95: {100}, 1000: {100},
	} {
		if got := bucketsOf(points, least); !slices.Equal(got, want) {
			t.Errorf("at least %d: %v, want %v", least, got, want)
		}
	}
}

// TestSetCut: a ring that takes an earlier one's cut does not measure, and cuts as that one did. A
// size that the job gives stays. The one that is taken is told.
func TestSetCut(t *testing.T) {
	gradient := make([]float32, leastTuned)
	points := []int{leastTuned / 4, leastTuned / 2, leastTuned}
	for given, want := range map[int64]int{0: 2, leastTuned / 4 * floatBytes: 3} {
		var told []Tuning
		b := newBuckets(Config{Overlaps: true, Finishes: points, BucketBytes: given,
			Gradient: &compute.Mirror{Device: gradient},
			Tuned:    func(t Tuning) { told = append(told, t) }}, pair{})
		b.SetCut(leastTuned / 2)
		if len(b.ends) != want || b.tuning.wanted {
			t.Errorf("given %d bytes: %d buckets, want %d; measures %t", given, len(b.ends), want,
				b.tuning.wanted)
		}
		if kept := given == 0; len(told) == 1 != kept || kept && (told[0].Buckets != want ||
			!strings.Contains(told[0].String(), "overrides it")) {
			t.Errorf("given %d bytes: told %v", given, told)
		}
	}
}
