package grpclink_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
)

// flipping is a connection that flips one bit of the payloads that go over it.
type flipping struct {
	net.Conn
	after *atomic.Int64 // payload bytes until then
}

// RemoteAddr is not on this host, where no network could flip a bit.
func (flipping) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }

func (f flipping) Write(b []byte) (int, error) {
	const longest = 4 << 10 // of anything else
	if n := int64(len(b)); n > longest {
		if rest := f.after.Add(-n); rest < 0 && rest+n >= 0 {
			b = slices.Clone(b)
			b[rest+n] ^= 1 << 6
		}
	}
	return f.Conn.Write(b)
}

// TestFlippedBit: a bit that flips between two ranks breaks the link, with an error that names it.
// A rank that completes the sum has the right one.
func TestFlippedBit(t *testing.T) {
	for _, after := range []int64{1, 100_000, 3_000_000} {
		var rest atomic.Int64
		rest.Store(after)
		const world = 2
		var workers [world]*worker
		addresses := make([]string, world)
		for rank := range world {
			workers[rank] = startWorker(t, "opticks",
				grpclink.ServerConfig{Transport: grpclink.ByTCP})
			workers[rank].dial.Transport = grpclink.ByTCP
			addresses[rank] = workers[rank].address
		}
		dial := workers[0].dial.Dialer
		workers[0].dial.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dial(ctx, address)
			return flipping{conn, &rest}, err
		}
		errs := linktest.Each(world, func(rank int) error {
			links, err := grpclink.Connect(t.Context(), workers[rank].server, seat(rank, world),
				addresses, workers[rank].dial)
			if err != nil {
				return err
			}
			ring, err := allreduce.New(allreduce.Config{Rank: allreduce.Rank(rank), World: world,
				Generation: 1, ChunkTimeout: time.Minute, StepTimeout: time.Hour}, links)
			if err != nil {
				return err
			}
			defer ring.Close()
			buf := slices.Repeat([]float32{float32(rank + 1)}, 1<<20)
			err = ring.AllReduce(t.Context(), buf)
			if wrong := func(x float32) bool { return x != 1+2 }; err == nil &&
				slices.ContainsFunc(buf, wrong) {
				t.Errorf("after %d bytes: rank %d has a wrong sum", after, rank)
			}
			return err
		})
		for _, w := range workers {
			w.kill()
		}
		var lost *allreduce.PeerError
		if !errors.As(errs[1], &lost) || lost.Peer.Rank != 0 ||
			!strings.Contains(errs[1].Error(), "damaged on the way") {
			t.Errorf("after %d bytes: rank 1: %v", after, errs[1])
		}
	}
}
