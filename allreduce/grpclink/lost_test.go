package grpclink_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
	"rondo/internal/port"
)

// TestDialLost: a successor whose host refuses connections has ended, and one to which none opens
// is cut off. Both are named long before the time is over in which one that lives may come.
func TestDialLost(t *testing.T) {
	never := func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for want, cfg := range map[string]grpclink.DialConfig{
		"its process has ended": {Refusals: brief},
		"it is cut off":         {Silence: brief, Dialer: never},
	} {
		cfg.Timeout = 10 * linktest.Moment
		_, err := grpclink.Dial(t.Context(), port.ForTest(t).Address(), seat(0, 2), cfg)
		var lost *allreduce.PeerError
		if !errors.Is(err, grpclink.ErrUnreachable) || !errors.As(err, &lost) ||
			lost.Peer.Rank != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want that rank 1 is lost: %s", err, want)
		}
	}
}

// TestSilentPredecessor: a predecessor that is cut off does not come, and is named although its
// successor would wait for it for long.
func TestSilentPredecessor(t *testing.T) {
	self := startWorker(t, "opticks", grpclink.ServerConfig{})
	next := startWorker(t, "opticks", grpclink.ServerConfig{})
	var links <-chan allreduce.Predecessor
	t.Cleanup(func() {
		select {
		case link := <-links:
			link.Close()
		default: // it came too late, or not at all
		}
	})
	links = accept(t, next, seat(1, 3))
	const gone = "192.0.2.1:1"
	cfg := grpclink.DialConfig{Silence: time.Second, Timeout: 10 * linktest.Moment,
		Dialer: func(ctx context.Context, address string) (net.Conn, error) {
			if address == gone {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}}
	_, err := grpclink.Connect(t.Context(), self.server, seat(0, 3),
		[]string{self.address, next.address, gone}, cfg)
	var lost *allreduce.PeerError
	if !errors.Is(err, grpclink.ErrUnreachable) || !errors.As(err, &lost) || lost.Peer.Rank != 2 {
		t.Errorf("%v, want that rank 2 is lost", err)
	}
}
