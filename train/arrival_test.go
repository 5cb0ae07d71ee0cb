package train

import (
	"testing"
	"time"
)

// The other ranks wait for a slow rank, which does not wait itself.
func TestWaitingIsForTheSlowest(t *testing.T) {
	var sum [arrivalSlots]float32
	took := make([]time.Duration, arrivalSlots+2) // two slots have two ranks each
	for rank := range took {
		took[rank] = time.Second
	}
	took[3], took[arrivalSlots] = 4*time.Second, 3*time.Second
	for rank, d := range took {
		var own [arrivalSlots]float32
		own[5] = 7 // left over from the last step
		putArrival(own[:], rank, d)
		for i, v := range own {
			sum[i] += v
		}
	}
	slowest := takeArrivals(sum[:], len(took))
	if slowest != 4*time.Second {
		t.Errorf("the slowest took %v", slowest)
	}
	for _, c := range []struct{ own, exposed, want time.Duration }{
		{time.Second, 5 * time.Second, 3 * time.Second},
		{time.Second, 2 * time.Second, 2 * time.Second}, // no longer than it was exposed
		{4 * time.Second, time.Second, 0}, {5 * time.Second, time.Second, 0},
	} {
		if got := waited(slowest, c.own, c.exposed); got != c.want {
			t.Errorf("%+v: waited %v", c, got)
		}
	}
}
