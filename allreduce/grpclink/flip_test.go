package grpclink_test

import (
	"bytes"
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

// flipping is a connection that flips one bit of a payload of ones.
type flipping struct {
	net.Conn
	after *atomic.Int64 // bytes that pass before the flip; negative after it
}

// RemoteAddr is not on this host, where no network could flip a bit.
func (flipping) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }

// Write flips a bit within a run of ones. A bit of HTTP/2's own headers would end the stream before
// a checksum is read.
func (f flipping) Write(b []byte) (int, error) {
	const one = "\x00\x00\x80\x3f" // float32(1)
	run := []byte(strings.Repeat(one, 16))
	if rest := f.after.Load(); rest >= int64(len(b)) {
		f.after.Add(-int64(len(b)))
	} else if rest >= 0 {
		if at := bytes.Index(b[rest:], run); at >= 0 {
			b = bytes.Clone(b)
			b[int(rest)+at+len(run)/2] ^= 1 << 6
			f.after.Store(-1)
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
			buf := slices.Repeat([]float32{float32(1 - rank)}, 1<<20) // rank 0 sends ones only
			err = ring.AllReduce(t.Context(), buf)
			if wrong := func(x float32) bool { return x != 1 }; err == nil &&
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
