package grpclink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"

	"rondo/allreduce"
)

// ErrUnreachable is the error of a neighbour to which no connection opens. It is true in every ring
// that contains the neighbour.
var ErrUnreachable = errors.New("no connection to it opens")

// Connect joins the ring of seat: it dials the successor and accepts the predecessor's link at the
// same time, and returns both links for allreduce.New, which closes them. addresses are the
// members' in ring order. It waits for both neighbours until ctx or cfg.Timeout ends. A neighbour's
// fault is an allreduce.PeerError, and ErrUnreachable if no connection to it opens. A ring of one
// has no links.
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
		from := addresses[seat.predecessor()]
		waiting, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		endWatch := cfg.watchPredecessor(waiting, seat, from, giveUp)
		var err error
		links.Predecessor, err = server.Accept(waiting, seat, from)
		endWatch()
		if err != nil && errors.Is(context.Cause(waiting), errSilentPredecessor) {
			err = fmt.Errorf("%w: %w", err, ErrUnreachable)
		}
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
	followed := acceptErr != nil && (errors.Is(context.Cause(ctx), acceptErr) ||
		errors.Is(acceptErr, ErrUnreachable))
	if dialErr == nil || followed && !errors.Is(dialErr, ErrUnreachable) {
		return allreduce.Links{}, acceptErr // a dial error, if any, followed from this one
	}
	return allreduce.Links{}, dialErr
}

// errSilentPredecessor ends the wait for a predecessor that cannot come.
var errSilentPredecessor = errors.New("it is cut off, or its host is down")

// watchPredecessor cancels with errSilentPredecessor if no connection to the predecessor opens
// within c.Silence. It begins to try only after a while, since most predecessors come at once. It
// ends with the returned function.
func (c DialConfig) watchPredecessor(ctx context.Context, seat Seat, address string,
	cancel context.CancelCauseFunc) (stop func()) {
	if c.Silence == 0 || seat.World == 2 {
		return func() {}
	}
	ctx, end := context.WithTimeout(ctx, c.Silence+c.Silence/5)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.Silence / 5):
		}
		if !c.opens(ctx, address) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel(errSilentPredecessor)
		}
	})
	return func() {
		end()
		watching.Wait()
	}
}

// opens reports whether a connection to the worker at an address opens before ctx ends.
func (c DialConfig) opens(ctx context.Context, address string) bool {
	to, err := c.client(address)
	if err != nil {
		return true // whatever is wrong, it is not the network
	}
	defer func() { _ = to.close() }() // nothing was sent
	return to.connectUntil(ctx, to.under.isReached)
}

// Reach returns nil once a connection to the worker at an address has opened and the worker speaks
// gRPC there. It tries until ctx ends, and closes the connection.
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
	if !to.connectUntil(ctx, func() bool { return to.conn.GetState() == connectivity.Ready }) {
		return fmt.Errorf("no connection to %s: %w", address, context.Cause(ctx))
	}
	return nil
}

// connectUntil connects, again after each failure, until the condition is fulfilled, which changes
// with the connection's state only. It returns false if ctx ends before.
func (c client) connectUntil(ctx context.Context, fulfilled func() bool) bool {
	for {
		state := c.conn.GetState() // before the condition, so that no change is missed
		if fulfilled() {
			return true
		}
		c.conn.Connect()
		if !c.conn.WaitForStateChange(ctx, state) {
			return fulfilled()
		}
	}
}
