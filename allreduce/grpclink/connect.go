package grpclink

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/connectivity"

	"rondo/allreduce"
)

// Connect joins the ring of seat: it dials the successor and accepts the predecessor's link at the
// same time, and returns both links for allreduce.New, which closes them. addresses are the
// members' in ring order. It waits for both neighbours until ctx or cfg.Timeout ends. A neighbour's
// fault is an allreduce.PeerError; it is ErrUnreachable if no connection to the successor opens. A ring of one has no links.
func Connect(
	ctx context.Context, server *Server, seat Seat, addresses []string, cfg DialConfig,
) (allreduce.Links, error) {
	var links allreduce.Links
	cfg, err := cfg.validate()
	if err == nil {
		err = seat.validate()
	}
	if err != nil {
		return links, err
	}
	if len(addresses) != seat.World {
		return links, fmt.Errorf("ring of %d: %d addresses", seat.World, len(addresses))
	}
	if seat.World == 1 {
		return links, server.advance(seat, nil)
	}
	ctx, stop := context.WithTimeout(ctx, cfg.Timeout)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	accepted := make(chan error, 1)
	go func() {
		var err error
		links.Predecessor, err = server.Accept(ctx, seat, addresses[seat.predecessor()])
		if err != nil {
			cancel(err)
		}
		accepted <- err
	}()
	var dialErr error
	links.Successor, dialErr = Dial(ctx, addresses[seat.successor()], seat, cfg)
	if dialErr != nil {
		cancel(dialErr)
	}
	acceptErr := <-accepted
	if dialErr == nil && acceptErr == nil {
		return links, nil
	}
	reason := fmt.Sprintf("rank %d could not join the ring", seat.name())
	if acceptErr == nil {
		links.Predecessor.Abort(reason)
		links.Predecessor.Close()
	}
	if dialErr == nil {
		links.Successor.Abort(reason)
		links.Successor.Close()
	}
	followed := acceptErr != nil && errors.Is(context.Cause(ctx), acceptErr)
	if dialErr == nil || followed && !errors.Is(dialErr, ErrUnreachable) {
		return allreduce.Links{}, acceptErr // a dial error, if any, followed from this one
	}
	return allreduce.Links{}, dialErr
}

// Reach returns nil once a connection to the worker at an address has opened, which it then closes.
// It tries until ctx ends.
func Reach(ctx context.Context, address string, cfg DialConfig) error {
	cfg, err := cfg.validate()
	if err != nil {
		return err
	}
	to, err := cfg.client(address)
	if err != nil {
		return err
	}
	defer func() { _ = to.close() }() // nothing was sent
	to.conn.Connect()
	for state := to.conn.GetState(); state != connectivity.Ready; state = to.conn.GetState() {
		if !to.conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("no connection to %s: %w", address, context.Cause(ctx))
		}
		to.conn.Connect() // again, if it had become idle
	}
	return nil
}
