// Package rpc is the coordinator's gRPC service and its clients. Workers report events; people
// watch them, and ask the job to stop or to scale. It makes no decision: reports and requests go to
// cluster/coordinator as cluster.Events, and the results come back through Lead, Follow, Planned
// and Notify. It is off the data path and never makes training wait. It may import cluster and
// proto.
package rpc

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	rondov1 "rondo/proto/rondo/v1"
)

// Limits of the service and its clients.
const (
	// HistoryLimit is the number of records that a leader keeps for later watchers. Step events are
	// thinned first.
	HistoryLimit = 4096
	// HistoryBytes bounds the memory of these records.
	HistoryBytes = 8 << 20
	// SourceLimit is the number of workers that may report in one leader's term.
	SourceLimit = 1 << 16
	// QueueLimit is the number of records that a worker keeps for the leader.
	QueueLimit = 1024
	// SourceBytes is the longest id of a worker or coordinator.
	SourceBytes = 256
	// EventLimit is the largest event in bytes. A reporter shortens a longer sample text.
	EventLimit = 64 << 10
	// MessageLimit is the largest message in bytes: an event with its source.
	MessageLimit = EventLimit + 1<<10
	// HeaderLimit is the largest list of a call's headers in bytes.
	HeaderLimit = 16 << 10
	// StreamLimit is the number of open calls per connection; a client has one.
	StreamLimit = 4
	// WatchLimit is the number of watchers of a leader.
	WatchLimit = 128

	answerTimeout = 5 * time.Second  // for an answer that is due
	queueTimeout  = 5 * time.Second  // for room in a worker's queue
	keepAlive     = 10 * time.Second // a silent connection is probed after this time
	idleLimit     = time.Minute      // for a connection without a call
	streamWindow  = 64 << 10         // bytes that a server takes in before they are read
	pauseFirst    = 50 * time.Millisecond
	pauseMax      = time.Second
	watchBatch    = 64 // records per read of the history
)

// LeaderFunc returns the address of the leader's Coordinator service.
type LeaderFunc func(ctx context.Context) (address string, err error)

// ClientConfig sets a client's connections and patience.
type ClientConfig struct {
	Dial     []grpc.DialOption // credentials, a dialer and others; nil: plaintext over the network
	Patience time.Duration     // how long a call retries without an answer; 0: 30 s
	Log      *slog.Logger      // retries and their reasons; nil: no log
}

// Client calls the present leader of a job.
type Client struct {
	leader LeaderFunc
	cfg    ClientConfig
}

// NewClient returns a client that asks leader for the address before each connection.
func NewClient(leader LeaderFunc, cfg ClientConfig) (*Client, error) {
	if leader == nil {
		return nil, errors.New("rpc: a client needs to know how to find the leader")
	}
	if cfg.Patience < 0 {
		return nil, errors.New("rpc: a client's patience must not be negative")
	}
	if cfg.Patience == 0 {
		cfg.Patience = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{leader: leader, cfg: cfg}, nil
}

// connect finds the leader and returns a connection, which is opened at its first call.
func (c *Client) connect(ctx context.Context) (*grpc.ClientConn, error) {
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	address, err := c.leader(limited)
	if err != nil {
		return nil, err
	}
	// The dialer resolves the address, which may have no meaning on this machine.
	return grpc.NewClient(passthrough+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepAlive, Timeout: answerTimeout,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.DefaultConfig, MinConnectTimeout: answerTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MessageLimit)),
	}, c.cfg.Dial...)...)
}

// passthrough is the resolver that passes an address to the dialer unchanged.
const passthrough = "passthrough:///"

func addressOf(conn *grpc.ClientConn) string {
	return strings.TrimPrefix(conn.Target(), passthrough)
}

// pause is a wait that doubles up to pauseMax.
type pause struct{ next time.Duration }

// wait returns false if ctx ends first.
func (p *pause) wait(ctx context.Context) bool {
	p.next = min(max(2*p.next, pauseFirst), pauseMax)
	timer := time.NewTimer(p.next)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// isStep reports whether an event is a step event, which may be dropped.
func isStep(e *rondov1.Event) bool { return e.GetStep() != nil }
