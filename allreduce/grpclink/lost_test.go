package grpclink_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

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
		if !errors.Is(err, grpclink.ErrUnreachable) || !errors.As(err, &lost) || lost.Peer.Rank != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want that rank 1 is lost: %s", err, want)
		}
	}
}
