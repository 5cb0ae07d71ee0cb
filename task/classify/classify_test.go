package classify

import (
	"math"
	"testing"
)

// Figures of scikit-learn 1.9.1: accuracy_score(right, predicted) and f1_score(right, predicted,
// average="macro"), in the second case with zero_division=0. Label 3 of the first case is neither
// right nor predicted anywhere.
func TestMetricsAreScikitLearns(t *testing.T) {
	for name, c := range map[string]struct {
		right, predicted []int32
		accuracy, f1     float64
	}{
		"six labels": {
			[]int32{0, 0, 1, 4, 0, 0, 2, 0, 0, 2, 0, 2, 0, 0, 0, 1, 1, 0, 0, 0, 2, 1, 0, 2, 0, 0,
				4, 4, 2, 0, 2, 2, 1, 0, 0, 0, 2, 0, 0, 1},
			[]int32{0, 0, 1, 1, 0, 0, 2, 0, 5, 2, 0, 4, 4, 0, 0, 1, 1, 0, 0, 0, 2, 1, 0, 2, 0, 1,
				4, 4, 5, 0, 2, 2, 1, 0, 0, 2, 2, 0, 2, 4},
			0.775, 0.5837606837606837},
		"all wrong": {[]int32{0, 0, 1}, []int32{1, 1, 0}, 0, 0},
		"all right": {[]int32{0, 3, 1}, []int32{0, 3, 1}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			counter := Counter{Labels: 6}
			// Counts of parts add up.
			n := counter.Counters()
			parts := [2][]int64{make([]int64, n), make([]int64, n)}
			for i := range c.right {
				counter.Count(parts[i%2], c.predicted[i:i+1], c.right[i:i+1])
			}
			for i, n := range parts[1] {
				parts[0][i] += n
			}
			got := counter.Metrics(parts[0])
			if len(got) != 2 || got[0].Name != "accuracy" || got[1].Name != "macro_f1" {
				t.Fatalf("metrics %v", got)
			}
			if math.Abs(got[0].Value-c.accuracy) > 1e-12 || math.Abs(got[1].Value-c.f1) > 1e-12 {
				t.Errorf("%v, want %v and %v", got, c.accuracy, c.f1)
			}
		})
	}
}
