// Package etcdstore keeps a job's membership in etcd v3, under /rondo/<job>/:
//
//	spec           the JobSpec
//	leader/<lease> the candidates for leadership, each under its lease; the oldest leads
//	members/<id>   the workers, each under its lease
//	plan           what the leader decided
//	claims/        names that a process of this run has claimed
//
// It implements the interfaces of package cluster and decides nothing itself. Every write of the
// leader is a transaction on the create revision of its key, so that one that was paused and
// wakes up cannot write. Leases are kept by a clock of our own, because etcd's client does not
// tell when one has ended. It may import cluster and proto.
package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/cluster"
)

// Limits of what the store waits for, where Config does not say otherwise.
const (
	defaultStartTimeout   = 10 * time.Second
	defaultRequestTimeout = 5 * time.Second
	startAttempt          = 2 * time.Second // of one attempt to reach etcd at the start
	backoffFirst          = 50 * time.Millisecond
	backoffMax            = 2 * time.Second
	// The client's own retries, which hide their reason; we retry by ourselves.
	clientRetries = 3
	// A connection that is silent for keepAliveTime is probed; one on which something is sent, and
	// not taken for keepAliveTimeout, is given up.
	keepAliveTime    = 10 * time.Second // gRPC takes no less
	keepAliveTimeout = 3 * time.Second
	leastAttempt     = time.Second // of one attempt to renew a lease, where the lease allows it
	// releaseTimeout bounds giving a lease back. One that is not given back ends by itself.
	releaseTimeout = 2 * time.Second
)

// Config says how to reach etcd.
type Config struct {
	Endpoints []string // host:port or URL
	Job       string
	TLS       *tls.Config // nil: plaintext

	StartTimeout   time.Duration // how long Open tries; 0: 10 s
	RequestTimeout time.Duration // of one request; 0: 5 s

	Log         *slog.Logger // what is retried, and why; nil: nothing
	ClientLog   *zap.Logger  // of etcd's own client; nil: nothing
	DialOptions []grpc.DialOption
}

// Validate returns an error that names what is wrong.
func (c Config) Validate() error {
	if len(c.Endpoints) == 0 {
		return errors.New("--etcd: no endpoints; give host:port,host:port")
	}
	if c.Job == "" || strings.Contains(c.Job, "/") {
		return fmt.Errorf("--job %q: a name must not be empty or contain a slash", c.Job)
	}
	if c.StartTimeout < 0 || c.RequestTimeout < 0 {
		return fmt.Errorf("etcd timeouts %v and %v: must not be negative",
			c.StartTimeout, c.RequestTimeout)
	}
	return nil
}

// Store is one job's part of etcd. It implements cluster.Submissions, Registry,
// Election and Viewer.
type Store struct {
	client  *clientv3.Client
	root    string // "/rondo/<job>/"
	servers string // the endpoints, for errors
	timeout time.Duration
	log     *slog.Logger
}

var (
	_ cluster.Submissions = (*Store)(nil)
	_ cluster.Registry    = (*Store)(nil)
	_ cluster.Election    = (*Store)(nil)
	_ cluster.Viewer      = (*Store)(nil)
)

// Open connects to etcd and makes sure that it answers: the error says which endpoints were
// tried, and for how long.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		root:    "/rondo/" + cfg.Job + "/",
		servers: strings.Join(cfg.Endpoints, ", "),
		timeout: orDefault(cfg.RequestTimeout, defaultRequestTimeout),
		log:     cfg.Log,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	clientLog := cfg.ClientLog
	if clientLog == nil {
		clientLog = zap.NewNop()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Endpoints,
		TLS:                  cfg.TLS,
		DialTimeout:          s.timeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxUnaryRetries:      clientRetries,
		Logger:               clientLog,
		DialOptions:          cfg.DialOptions,
	})
	if err != nil {
		return nil, fmt.Errorf("--etcd %s: %w", s.servers, err)
	}
	s.client = client
	if err := s.reach(ctx, orDefault(cfg.StartTimeout, defaultStartTimeout)); err != nil {
		client.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the connection. Registrations and leaderships that have not been given up end with
// their leases.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd at %s: closing: %w", s.servers, err)
	}
	return nil
}

// reach reads one key, again and again until etcd answers or patience ends.
func (s *Store) reach(ctx context.Context, patience time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := newBackoff()
	for first := true; ; first = false {
		attempt, cancel := context.WithTimeout(limited, startAttempt)
		_, err := s.client.Get(attempt, s.root+"spec", clientv3.WithCountOnly())
		cancel()
		if err == nil {
			return nil
		}
		if permanent(err) {
			return fmt.Errorf("etcd at %s refuses: %w", s.servers, err)
		}
		if first && patience > defaultStartTimeout { // for which nobody would wait unasked
			s.log.Warn("etcd does not answer: waiting for it", "at", s.servers, "for", patience,
				"error", err)
		}
		if !pause.wait(limited) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("etcd at %s did not answer for %v: start it, or correct --etcd (%w)",
				s.servers, patience, err)
		}
	}
}

// once makes one request within the request timeout. what is in the error: "reading the spec".
func (s *Store) once(ctx context.Context, what string, request func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := request(limited)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("etcd at %s: %s: no answer for %v: %w", s.servers, what, s.timeout, err)
	}
	return fmt.Errorf("etcd at %s: %s: %w", s.servers, what, err)
}

// untilDone makes a request again and again until it succeeds, ctx ends, or trying again cannot
// help. The request must be one that may be made twice.
func (s *Store) untilDone(ctx context.Context, what string,
	request func(context.Context) error) error {
	pause := newBackoff()
	for {
		err := s.once(ctx, what, request)
		if err == nil || ctx.Err() != nil || permanent(err) {
			return err
		}
		s.log.Warn("etcd: trying again", "error", err)
		if !pause.wait(ctx) {
			return ctx.Err()
		}
	}
}

// follow calls fn with everything whose key starts with prefix, and again whenever it has
// changed. Changes in quick succession are told once. It returns when ctx ends, with its error,
// with fn's error, or with one that trying again does not cure.
//
// Each round lists and then waits for the first change after the revision of that list, so that
// nothing is missed, and a watch that breaks for any reason (compaction, a lost leader, a server
// that restarts) only starts the next round.
func (s *Store) follow(ctx context.Context, prefix string,
	fn func([]*mvccpb.KeyValue) error) error {
	pause := newBackoff()
	for {
		var list *clientv3.GetResponse
		err := s.untilDone(ctx, "listing "+prefix, func(ctx context.Context) (err error) {
			list, err = s.client.Get(ctx, prefix, clientv3.WithPrefix())
			return err
		})
		if err != nil {
			return err
		}
		if err := fn(list.Kvs); err != nil {
			return err
		}
		err = s.change(ctx, prefix, list.Header.Revision+1)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			pause = newBackoff()
		case permanent(err) && !errors.Is(err, rpctypes.ErrCompacted):
			return err
		default:
			s.log.Warn("etcd: listing again", "error", err)
			if !pause.wait(ctx) {
				return ctx.Err()
			}
		}
	}
}

// change returns nil once something under prefix has changed at or after revision, or the reason
// for which the watch ended.
func (s *Store) change(ctx context.Context, prefix string, revision int64) error {
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for answer := range s.client.Watch(watching, prefix,
		clientv3.WithPrefix(), clientv3.WithRev(revision)) {
		if err := answer.Err(); err != nil {
			return fmt.Errorf("etcd at %s: watching %s: %w", s.servers, prefix, err)
		}
		if len(answer.Events) > 0 {
			return nil
		}
	}
	return fmt.Errorf("etcd at %s: watching %s: the watch ended", s.servers, prefix)
}

// errUnreadable: a key holds what no Rondo of this version has written.
var errUnreadable = errors.New("cannot be read")

// permanent reports whether the server has answered, and would answer the same again.
func permanent(err error) bool {
	for _, final := range []error{cluster.ErrDeposed, errUnreadable, rpctypes.ErrNoSpace} {
		if errors.Is(err, final) {
			return true
		}
	}
	var answered rpctypes.EtcdError
	code := codes.Unknown
	if errors.As(err, &answered) {
		code = answered.Code()
	} else if s, ok := status.FromError(err); ok {
		code = s.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}

// backoff is a pause that doubles up to a limit.
type backoff struct{ next time.Duration }

func newBackoff() *backoff { return &backoff{next: backoffFirst} }

// wait returns false if ctx ended first.
func (b *backoff) wait(ctx context.Context) bool {
	timer := time.NewTimer(b.next)
	defer timer.Stop()
	b.next = min(2*b.next, backoffMax)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}
