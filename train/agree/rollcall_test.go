package agree

import (
	"math"
	"testing"
	"time"
)

func TestDelays(t *testing.T) {
	const ms = int64(time.Millisecond)
	answers := func(compute, sending []int64) []presence {
		all := make([]presence, len(compute))
		for i := range all {
			all[i] = presence{Compute: compute[i] * ms, Sending: sending[i] * ms}
		}
		return all
	}
	none := []int64{0, 0, 0, 0}
	for name, c := range map[string]struct {
		all  []presence
		want []Delay
	}{
		"alike": {answers([]int64{10, 11, 10, 12}, []int64{1, 2, 1, 1}),
			[]Delay{{1, "compute"}, {1, "compute"}, {1, "compute"}, {1.2, "compute"}}},
		"one computes for long": {answers([]int64{10, 30, 10, 10}, []int64{50, 0, 0, 0}),
			[]Delay{{1, "compute"}, {3, "compute"}, {1, "compute"}, {1, "compute"}}},
		"one cannot send": {answers([]int64{10, 10, 10, 10}, []int64{1, 1, 21, 1}),
			[]Delay{{1, "compute"}, {1, "compute"}, {3, "network"}, {1, "compute"}}},
		"one cannot send, and a busy machine": {answers([]int64{10, 10, 25, 10},
			[]int64{500, 1, 1, 1}),
			[]Delay{{50.9, "network"}, {1, "compute"}, {2.5, "compute"}, {1, "compute"}}},
		"noise": {answers(none, []int64{0, 1, 0, 0}),
			[]Delay{{1, "compute"}, {1, "compute"}, {1, "compute"}, {1, "compute"}}},
		"one of two": {answers([]int64{40, 10}, []int64{0, 0}),
			[]Delay{{4, "compute"}, {1, "compute"}}},
	} {
		got := delays(c.all)
		for i := range got {
			if got[i].cause != c.want[i].cause || math.Abs(got[i].factor-c.want[i].factor) > 1e-9 {
				t.Errorf("%s: rank %d is %v, want %v", name, i, got[i], c.want[i])
			}
		}
	}
}
