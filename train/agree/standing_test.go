package agree

import "testing"

// The newest ring decides, then the step, then the ring that completed it; of equal ranks the first
// with pending work, or else the first.
func TestElect(t *testing.T) {
	at := func(joined, step, ring int64) Standing[int64] {
		return Standing[int64]{Has: true, Joined: joined, Version: Version{step, ring}}
	}
	pending := at(2, 7, 2)
	pending.Pending = true
	none := Standing[int64]{}
	for name, c := range map[string]struct {
		want int
		all  []Standing[int64]
	}{
		"nobody":                 {-1, []Standing[int64]{none, none}},
		"one":                    {1, []Standing[int64]{none, at(0, 0, 1), none}},
		"the furthest step":      {2, []Standing[int64]{at(2, 6, 2), none, at(2, 7, 2)}},
		"the newest ring":        {0, []Standing[int64]{at(3, 5, 1), at(2, 7, 2)}},
		"the later completion":   {1, []Standing[int64]{at(2, 7, 1), at(2, 7, 2)}},
		"the first of equals":    {1, []Standing[int64]{at(2, 6, 2), at(2, 7, 2), at(2, 7, 2)}},
		"who has work pending":   {1, []Standing[int64]{at(2, 7, 2), pending, pending}},
		"pending, but not there": {0, []Standing[int64]{at(2, 8, 2), pending}},
	} {
		if got := elect(c.all); got != c.want {
			t.Errorf("%s: rank %d was elected, want %d", name, got, c.want)
		}
	}
}
