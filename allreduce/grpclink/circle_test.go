package grpclink_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
)

// circle returns rank's seat in the ring of some of four workers.
func circle(kind grpclink.Circle, rank int, members ...allreduce.Rank) grpclink.Seat {
	s := seat(0, len(members))
	s.Circle, s.Ranks = kind, members
	for place, member := range members {
		if int(member) == rank {
			s.Rank = allreduce.Rank(place)
		}
	}
	return s
}

// TestCircles: four workers on two hosts are at once in a ring of all, one of their host and one
// across the hosts. Each ring sums independently, and the end of one leaves the others open.
func TestCircles(t *testing.T) {
	const world = 4
	workers, addresses := make([]*worker, world), make([]string, world)
	for rank := range world {
		workers[rank] = startWorker(t, "opticks", grpclink.ServerConfig{})
		addresses[rank] = workers[rank].address
	}
	seats := func(rank int) []grpclink.Seat {
		host := allreduce.Rank(rank &^ 1)
		column := allreduce.Rank(rank & 1)
		return []grpclink.Seat{
			seat(rank, world),
			circle(grpclink.CircleHost, rank, host, host+1),
			circle(grpclink.CircleAcross, rank, column, column+2),
		}
	}
	want := []func(rank int) float32{
		func(int) float32 { return 0 + 1 + 2 + 3 },
		func(rank int) float32 { return float32(rank&^1 + rank&^1 + 1) },
		func(rank int) float32 { return float32(rank&1 + rank&1 + 2) },
	}
	rings := make([][]*allreduce.Ring, world)
	for rank, err := range linktest.Each(world, func(rank int) error {
		for _, s := range seats(rank) {
			ring, err := join(workers[rank], s, addresses)
			if err != nil {
				return err
			}
			rings[rank] = append(rings[rank], ring)
			t.Cleanup(func() { ring.Close() })
		}
		return nil
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	for rank, err := range linktest.Each(world, func(rank int) error {
		for i, ring := range rings[rank] {
			buf := []float32{float32(rank), 1}
			if err := ring.AllReduce(context.Background(), buf); err != nil {
				return err
			}
			if buf[0] != want[i](rank) {
				t.Errorf("rank %d, circle %d: the sum is %v, want %v", rank, i, buf[0],
					want[i](rank))
			}
		}
		return nil
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	rings[3][1].Break(context.Canceled)
	select {
	case <-rings[2][1].Broken():
	case <-time.After(linktest.Moment):
		t.Fatal("the other of the host has not heard that its circle is broken")
	}
	if err := rings[2][1].Err(); !strings.Contains(err.Error(), "rank 3") {
		t.Errorf("rank 2 of the host: %v, want rank 3 in it", err)
	}
	for rank := range world {
		for i, ring := range rings[rank] {
			if broken := rank >= 2 && i == 1; !broken && ring.Err() != nil {
				t.Errorf("rank %d, circle %d: %v", rank, i, ring.Err())
			}
		}
	}
}

// join joins a worker's circle. all has the addresses of all workers.
func join(w *worker, s grpclink.Seat, all []string) (*allreduce.Ring, error) {
	addresses := all
	if s.Ranks != nil {
		addresses = nil
		for _, rank := range s.Ranks {
			addresses = append(addresses, all[rank])
		}
	}
	links, err := grpclink.Connect(context.Background(), w.server, s, addresses, w.dial)
	if err != nil {
		return nil, err
	}
	return allreduce.New(allreduce.Config{Rank: s.Rank, World: s.World, Ranks: s.Ranks,
		Generation: s.Generation, ChunkTimeout: 5 * time.Second,
		StepTimeout: 2 * linktest.Moment}, links)
}

func TestCirclesRefused(t *testing.T) {
	w := startWorker(t, "opticks", grpclink.ServerConfig{})
	unknown := circle("outer", 0, 0, 1)
	few := circle(grpclink.CircleHost, 0, 0, 1)
	few.Ranks = few.Ranks[:1]
	for want, s := range map[string]grpclink.Seat{
		`there is no circle "outer"`: unknown,
		"1 names for a ring of 2":    few,
	} {
		_, err := grpclink.Connect(context.Background(), w.server, s, []string{"a", "b"}, w.dial)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

// TestCircleNames: a link that fails in a circle reports the neighbour's rank among all workers,
// not its place in the circle.
func TestCircleNames(t *testing.T) {
	members := []allreduce.Rank{1, 3}
	workers, addresses := make([]*worker, 2), make([]string, 2)
	for place := range workers {
		workers[place] = startWorker(t, "opticks", grpclink.ServerConfig{}) // no unix socket
		addresses[place] = workers[place].address
	}
	ctx, failed := context.Background(), make(chan error, 1)
	go func() {
		byUnix := workers[1].dial
		byUnix.Transport = grpclink.ByUnix
		_, err := grpclink.Connect(ctx, workers[1].server, circle(grpclink.CircleAcross, 3,
			members...), addresses, byUnix)
		failed <- err
	}()
	own := circle(grpclink.CircleAcross, 1, members...)
	successor, err := grpclink.Dial(ctx, addresses[1], own, workers[0].dial)
	if err != nil {
		t.Fatal(err)
	}
	predecessor, err := workers[0].server.Accept(ctx, own, addresses[1])
	if err != nil {
		t.Fatal(err)
	}
	var apart *grpclink.TransportError
	if err := <-failed; !errors.As(err, &apart) || apart.Peer.Rank != 1 {
		t.Errorf("rank 3: %v, want a TransportError of rank 1", err)
	}
	for _, end := range []struct {
		link allreduce.Link
		want string
	}{
		{predecessor, "rank 3: no unix socket with rank 1"},
		{successor, "rank 3 could not join the ring"},
	} {
		select {
		case <-end.link.Broken():
		case <-time.After(linktest.Moment):
			t.Fatalf("not broken within %v", linktest.Moment)
		}
		if err := end.link.Err(); !strings.Contains(err.Error(), end.want) {
			t.Errorf("broken by %q, want %q", err, end.want)
		}
		if err := end.link.Close(); err != nil {
			t.Error(err)
		}
	}
}
