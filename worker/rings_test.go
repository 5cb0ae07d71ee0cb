package worker

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/job/jobspec"
)

// TestSumsByTiers: with tiers, a Summer adds up everything through them, including sums that it
// waits for at once, and nothing through the ring of all ranks.
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
	s := compressible{tiers: by} // it has no other ring
	buf := []float32{1, 2, 3}
	if err := s.AllReduce(t.Context(), buf); err != nil || !slices.Equal(buf, []float32{1, 2, 3}) {
		t.Errorf("%v, %v", buf, err)
	}
}

// TestTiersEndWithTheRing: when the ring of all ranks breaks, a wait in the host's ring ends at
// once. The error is that of the broken ring, not a missing neighbour.
func TestTiersEndWithTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, err := allreduce.New(allreduce.Config{World: 1, Generation: 1,
			ChunkTimeout: time.Second, StepTimeout: time.Minute}, allreduce.Links{})
		if err != nil {
			t.Fatal(err)
		}
		defer ring.Close()
		innocent := allreduce.Peer{Rank: 1, Address: "b"}
		w := &worker{spec: jobspec.Textbook()}
		w.connect = func(ctx context.Context, _ grpclink.Seat, _ []string, _ time.Duration) (
			allreduce.Links, error) {
			<-ctx.Done()
			return allreduce.Links{}, &allreduce.PeerError{Peer: innocent, Err: ctx.Err()}
		}
		s := &seat{worker: w, ring: ring, plan: cluster.Plan{Generation: 1,
			Members: []cluster.Member{{Host: "a"}, {Host: "a"}}}}
		s.spec.Topology = "hierarchical"
		dead := &allreduce.PeerError{Peer: allreduce.Peer{Rank: 0}, Err: errors.New("is gone")}
		begun := time.Now()
		time.AfterFunc(time.Second, func() { ring.Break(dead) })
		_, err = s.openTiers(context.Background())
		var accused *allreduce.PeerError
		if !errors.As(err, &accused) || accused != dead || time.Since(begun) != time.Second {
			t.Errorf("%v after %v, want %v after 1s", err, time.Since(begun), dead)
		}
	})
}
