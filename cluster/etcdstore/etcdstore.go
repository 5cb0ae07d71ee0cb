// Package etcdstore stores a job's membership in etcd v3, under /rondo/<job>/:
//
//	spec           the JobSpec
//	leader/<lease> the candidates for the leadership, each under its lease; the oldest leads
//	members/<id>   the workers, each under its lease
//	plan           the leader's last decision
//	claims/        names claimed by processes of this run
//	rosters/       the lists of a plan with many workers, by digest and part
//	tip            the furthest state of this run on record
//
// It implements the interfaces of package cluster and makes no decision itself. Each write of the
// leader is a transaction on its key's create revision, so that a leader that was paused cannot
// write after it was replaced. It tracks leases by its own clock, because etcd's client does not
// report their end. It may import cluster and proto.
package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
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

// Limits of the store's waits, unless Config sets others.
const (
	defaultStartTimeout   = 10 * time.Second
	defaultRequestTimeout = 5 * time.Second
	startAttempt          = 2 * time.Second // for one attempt at the start
	backoffFirst          = 50 * time.Millisecond
	backoffMax            = 2 * time.Second
	// Retries by etcd's client. It hides their reason, so the store retries by itself.
	clientRetries = 3
	// A silent connection is probed after keepAliveTime by gRPC, and after probeIdle by the kernel.
	// A connection that accepts no data, or answers no probe, for keepAliveTimeout is closed: time
	// for a packet that is lost twice.
	keepAliveTime    = 10 * time.Second // gRPC's minimum
	probeIdle        = time.Second
	keepAliveTimeout = 1500 * time.Millisecond
	// probeInterval is how often a watch asks whether etcd has lost writes. A watch alone would
	// wait for revisions that etcd will reach again much later.
	probeInterval = 5 * time.Second
	// gatherTime, for each key, is how long a watch waits for more changes after one, so that
	// workers that join or leave together cause one decision.
	gatherTime = 50 * time.Microsecond
	// releaseTimeout limits the release of a lease. After that it ends by itself.
	releaseTimeout = 2 * time.Second
)

// Config sets the connection to etcd.
type Config struct {
	Endpoints []string // host:port or URL
	Job       string
	TLS       *tls.Config // nil: plaintext

	StartTimeout   time.Duration // how long Open tries; 0: 10 s
	RequestTimeout time.Duration // for one request; 0: 5 s

	Log         *slog.Logger // retries and their reasons; nil: no log
	ClientLog   *zap.Logger  // of etcd's client; nil: no log
	DialOptions []grpc.DialOption
}

// Validate returns an error that names the flag at fault.
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

// Store is one job's keys in etcd. It implements cluster.Submissions, Registry, Election and
// Viewer.
type Store struct {
	keys
	client  *clientv3.Client
	servers string // the endpoints, for errors
	timeout time.Duration
	log     *slog.Logger
	history history
	rosters rosterReader
}

var (
	_ cluster.Submissions = (*Store)(nil)
	_ cluster.Registry    = (*Store)(nil)
	_ cluster.Election    = (*Store)(nil)
	_ cluster.Viewer      = (*Store)(nil)
)

// Open connects to etcd and waits until it answers. The error names the endpoints and the time.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		keys:    keys{"/rondo/" + cfg.Job + "/"},
		servers: strings.Join(cfg.Endpoints, ", "),
		timeout: orDefault(cfg.RequestTimeout, defaultRequestTimeout),
		log:     cfg.Log,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.rosters.store = s
	s.history = history{log: s.log, rewound: make(chan struct{})}
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
		DialOptions: slices.Concat([]grpc.DialOption{grpc.WithContextDialer(dial),
			grpc.WithChainUnaryInterceptor(s.history.observe)}, cfg.DialOptions),
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

// Close closes the connection. Remaining registrations and leaderships end with their leases.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd at %s: closing: %w", s.servers, err)
	}
	return nil
}

// reach reads one key, repeatedly until etcd answers or patience ends.
func (s *Store) reach(ctx context.Context, patience time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := newBackoff()
	for first := true; ; first = false {
		attempt, cancel := context.WithTimeout(limited, startAttempt)
		_, err := s.client.Get(attempt, s.specKey(), clientv3.WithCountOnly())
		cancel()
		if err == nil {
			return nil
		}
		if permanent(err) {
			return fmt.Errorf("etcd at %s refuses: %w", s.servers, err)
		}
		if first && patience > defaultStartTimeout { // tell the user why it takes long
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

// dial opens a connection that ends soon after its host is cut off, although a watch only listens.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeIdle,
		Interval: probeIdle, Count: 2}}
	return d.DialContext(ctx, network, address)
}

// once makes one request within the request timeout. what describes it in errors: "reading the
// spec".
func (s *Store) once(ctx context.Context, what string, request func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := request(limited)
	for pause := newBackoff(); errors.Is(err, rpctypes.ErrAuthOldRevision) && pause.wait(limited); {
		err = request(limited) // a user was made meanwhile
	}
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

// untilDone repeats a request until it succeeds, ctx ends, or its error is permanent. It must be
// safe to make the request twice.
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

// follow calls fn with all keys under prefix, and again after each change. Changes in quick
// succession may cause one call; among many keys it waits for them. It returns ctx's error when ctx
// ends, fn's error, or a permanent error.
//
// Each round lists the keys and then waits for the first change after the list's revision, so no
// change is missed. A watch that breaks for any reason (compaction, a lost leader, a restarted
// server) only starts the next round. So does an etcd that has lost writes: in its history the
// list's revision may lie in the future.
func (s *Store) follow(ctx context.Context, prefix string,
	fn func([]*mvccpb.KeyValue) error) error {
	pause := newBackoff()
	for {
		var list *clientv3.GetResponse
		rewound := s.history.next()
		err := s.untilDone(ctx, "listing "+prefix, func(ctx context.Context) (err error) {
			list, err = s.client.Get(ctx, prefix, clientv3.WithPrefix())
			return err
		})
		if err != nil {
			return err
		}
		if err = fn(list.Kvs); err != nil && !errors.Is(err, errRosterGone) {
			return err
		}
		if err == nil {
			err = s.change(ctx, prefix, list.Header.Revision+1, rewound)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			pause = newBackoff()
			more := backoff{time.Duration(len(list.Kvs)) * gatherTime}
			if !more.wait(ctx) {
				return ctx.Err()
			}
		case permanent(err) && !errors.Is(err, rpctypes.ErrCompacted) &&
			!errors.Is(err, errRosterGone):
			return err
		default:
			s.log.Warn("etcd: listing again", "error", err)
			if !pause.wait(ctx) {
				return ctx.Err()
			}
		}
	}
}

// change returns nil after a change under prefix at or after revision, or when etcd has lost
// writes; otherwise the error that ended the watch.
func (s *Store) change(ctx context.Context, prefix string, revision int64,
	rewound <-chan struct{}) error {
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	var probing sync.WaitGroup
	defer probing.Wait()
	defer cancel()
	probing.Go(func() { probe(watching, s) })
	changes := s.client.Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	for {
		var answer clientv3.WatchResponse
		var open bool
		select {
		case answer, open = <-changes:
		case <-rewound:
			return nil
		}
		if !open {
			return fmt.Errorf("etcd at %s: watching %s: the watch ended", s.servers, prefix)
		}
		if err := answer.Err(); err != nil {
			return fmt.Errorf("etcd at %s: watching %s: %w", s.servers, prefix, err)
		}
		if len(answer.Events) > 0 {
			return nil
		}
	}
}

// probe reads a key at each interval until ctx ends, so that history sees the answers' revisions.
func probe(ctx context.Context, s *Store) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		_ = s.once(ctx, "probing", func(ctx context.Context) error { // the next one asks again
			_, err := s.client.Get(ctx, s.specKey(), clientv3.WithCountOnly())
			return err
		})
	}
}

// errUnreadable: a key's value was not written by this version of Rondo.
var errUnreadable = errors.New("cannot be read")

// isTooLarge reports whether a request is larger than etcd, or its client, allows.
func isTooLarge(err error) bool {
	var answered rpctypes.EtcdError
	if errors.As(err, &answered) {
		return errors.Is(answered, rpctypes.ErrRequestTooLarge)
	}
	s, ok := status.FromError(err) // gRPC has no code for this alone
	return ok && s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than")
}

// permanent reports whether the server answered with an error that a retry would not change. A
// request that met a change of etcd's users is worth one.
func permanent(err error) bool {
	if errors.Is(err, rpctypes.ErrAuthOldRevision) {
		return false
	}
	for _, final := range []error{cluster.ErrDeposed, errUnreadable, errRosterGone,
		rpctypes.ErrNoSpace} {
		if errors.Is(err, final) {
			return true
		}
	}
	if isTooLarge(err) {
		return true
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

// backoff is a pause that doubles up to backoffMax.
type backoff struct{ next time.Duration }

func newBackoff() *backoff { return &backoff{next: backoffFirst} }

// wait returns false if ctx ends first.
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
