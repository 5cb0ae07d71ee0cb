package corpus

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestVariedSegments reads epochs of texts of several lengths: each lane's segments follow one
// another, no token is a target twice, and few are left out.
func TestVariedSegments(t *testing.T) {
	for _, c := range []struct {
		tokens int64
		lanes  int
		bptt   int
		least  float64 // share of the tokens that are targets
	}{{100, 1, 20, 0.25}, {4000, 8, 35, 0.7}, {30000, 4, 20, 0.9}, {60000, 3, 70, 0.95}} {
		s := sampler(t, SamplerConfig{c.tokens, c.lanes, c.bptt, 5, Varied})
		for epoch := range int64(3) {
			seen, targets := make([]bool, c.tokens), 0
			next := make([]int64, c.lanes)
			for i := range s.SegmentsPerEpoch() {
				step := epoch*s.SegmentsPerEpoch() + i
				n := int64(s.Length(step))
				if !slices.Contains(s.Lengths(), int(n)) {
					t.Fatalf("%+v: step %d has %d tokens", c, step, n)
				}
				for lane := range c.lanes {
					from := s.Offset(step, lane)
					if i > 0 && from != next[lane] {
						t.Fatalf("%+v: step %d of lane %d begins at %d, and the one before ended "+
							"at %d", c, step, lane, from, next[lane])
					}
					next[lane] = from + n
					for target := from + 1; target <= from+n; target++ {
						if target >= c.tokens || seen[target] {
							t.Fatalf("%+v: token %d is a target twice or beyond the end", c, target)
						}
						seen[target] = true
						targets++
					}
				}
			}
			if share := float64(targets) / float64(c.tokens); share < c.least {
				t.Errorf("%+v: epoch %d has %.2f of the tokens", c, epoch, share)
			}
		}
	}
}

// TestVariedLengths compares the lengths' distribution with the paper's: a normal error of standard
// deviation 5, and a twentieth of half segments.
func TestVariedLengths(t *testing.T) {
	s := sampler(t, SamplerConfig{1 << 30, 1, 70, 9, Varied})
	const n = 100 * lengthBlock
	half, sum, squares, fourth := 0, 0.0, 0.0, 0.0
	orders := map[string]bool{}
	var order []int
	for step := range int64(n) {
		length := s.Length(step)
		if order = append(order, length); len(order) == lengthBlock {
			orders[fmt.Sprint(order)], order = true, nil
		}
		if length == 35 {
			half++
			continue
		}
		e := float64(length - 70)
		sum, squares, fourth = sum+e, squares+e*e, fourth+e*e*e*e
	}
	whole := float64(n - half)
	if half != n/20 || sum != 0 || math.Abs(math.Sqrt(squares/whole)-5.2) > 0.01 ||
		math.Abs(fourth/whole/(squares/whole)/(squares/whole)-3) > 0.01 {
		t.Errorf("%d half of %d, sum %g, squares %g, fourth powers %g", half, n, sum,
			squares/whole, fourth/whole)
	}
	if len(orders) < 100 {
		t.Errorf("100 blocks have %d orders", len(orders))
	}
}

// TestVariedNeverChanges pins the segments of a seed, as TestSamplesNeverChange does.
func TestVariedNeverChanges(t *testing.T) {
	s := sampler(t, SamplerConfig{100000, 4, 35, 7, Varied})
	var got []int64
	for _, step := range []int64{0, 1, 130, s.SegmentsPerEpoch() + 1, 40001} {
		got = append(got, s.Offset(step, 0), s.Offset(step, 3), int64(s.Length(step)))
	}
	const want = "[21 75003 35 56 75038 35 4454 79436 26 50 75038 35 21697 96694 35]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v; want %s", got, want)
	}
	if !s.Reset(s.SegmentsPerEpoch()) || s.Reset(1) {
		t.Error("the state is zero at an epoch's first step only")
	}
}

func TestVariedRefuses(t *testing.T) {
	for want, cfg := range map[string]SamplerConfig{
		"--bptt-random needs a --bptt of 20": {1000, 1, 19, 1, Varied},
		"times --bptt 20 needs 78":           {77, 2, 20, 1, Varied},
	} {
		if _, err := NewSampler(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", cfg, err, want)
		}
	}
}
