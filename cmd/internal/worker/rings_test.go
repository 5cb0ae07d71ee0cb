package worker

import (
	"slices"
	"testing"
	"time"

	"rondo/allreduce"
)

// TestSumsByTiers: where there are tiers, all that a Summer adds up goes by them, also what it
// waits for at once, and not around the ring of all.
func TestSumsByTiers(t *testing.T) {
	alone := func() *allreduce.Ring {
		ring, err := allreduce.New(allreduce.Config{World: 1, ChunkTimeout: time.Second,
			StepTimeout: time.Minute}, allreduce.Links{})
		if err != nil {
			t.Fatal(err)
		}
		return ring
	}
	by := &tiers{rings: []*allreduce.Ring{alone(), alone()}, unbind: func() {}}
	var err error
	by.Hierarchy, err = allreduce.NewHierarchy(allreduce.NewLayout([]string{"a"}, 0), by.rings[0],
		by.rings[1])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = by.close() }()
	s := sums{reducer: reducer{tiers: by}} // it has no other ring
	buf := []float32{1, 2, 3}
	if err := s.AllReduce(t.Context(), buf); err != nil || !slices.Equal(buf, []float32{1, 2, 3}) {
		t.Errorf("%v, %v", buf, err)
	}
}
