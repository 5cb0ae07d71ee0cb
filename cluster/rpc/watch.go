package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rondov1 "rondo/proto/rondo/v1"
)

// Watch calls fn with the job's events, earlier ones first, each once, and in order for each
// source. It returns nil when the job has ended; the last event is then `done`, or `failure` with
// the job's reason. It follows the leadership to another coordinator. It returns fn's or ctx's
// error, or an error if no coordinator answers within the client's patience.
func (c *Client) Watch(ctx context.Context, fn func(*rondov1.Event) error) error {
	seen := make(map[string]uint64)
	return c.retry(ctx, "watching the job", func(heard func()) error {
		return c.watchOnce(ctx, seen, heard, fn)
	})
}

// callbackError marks an error of the caller's function.
type callbackError struct{ error }

func (c *Client) watchOnce(ctx context.Context, seen map[string]uint64, heard func(),
	fn func(*rondov1.Event) error) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(answerTimeout, cancel)
	defer silence.Stop()
	stream, err := rondov1.NewCoordinatorClient(conn).Watch(ctx, &rondov1.WatchRequest{})
	if err != nil {
		return err
	}
	// The leader sends the header at once, even without events.
	header, _ := stream.Header() // nil if the stream has ended; Recv returns the reason
	if !silence.Stop() {
		return fmt.Errorf("%s: no answer for %v", addressOf(conn), answerTimeout)
	}
	if header != nil {
		heard()
	}
	for {
		record, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		heard()
		if record.Sequence <= seen[record.Source] || record.Event.GetKind() == nil {
			continue
		}
		if len(seen) >= SourceLimit {
			clear(seen)
		}
		seen[record.Source] = record.Sequence
		if err := fn(record.Event); err != nil {
			return callbackError{err}
		}
	}
}

// retry repeats attempt until it succeeds, no leader has answered for Patience, or the error is
// final.
func (c *Client) retry(ctx context.Context, what string, attempt func(heard func()) error) error {
	var wait pause
	last := time.Now()
	for {
		err := attempt(func() {
			last = time.Now()
			wait = pause{}
		})
		var callback callbackError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &callback):
			return callback.error
		case ctx.Err() != nil:
			return ctx.Err()
		case final(status.Code(err)):
			return &RefusedError{what: what, err: err}
		case time.Since(last) > c.cfg.Patience:
			return fmt.Errorf("%s: no coordinator answered for %v: %w", what, c.cfg.Patience, err)
		}
		c.cfg.Log.Warn(what+": trying again", "error", err)
		if !wait.wait(ctx) {
			return ctx.Err()
		}
	}
}

// RefusedError is a leader's refusal. Asking again would get the same answer.
type RefusedError struct {
	what string
	err  error
}

func (e *RefusedError) Error() string {
	reason := e.err.Error()
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(e.err, &answer) {
		reason = answer.GRPCStatus().Message()
	}
	return e.what + ": " + reason
}

func (e *RefusedError) Unwrap() error { return e.err }

// Wrong reports whether the request is invalid in every state of the job.
func (e *RefusedError) Wrong() bool { return status.Code(e.err) == codes.InvalidArgument }

// final reports whether asking again would get the same answer.
func final(code codes.Code) bool {
	switch code {
	case codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied,
		codes.InvalidArgument, codes.FailedPrecondition:
		return true
	}
	return false
}
