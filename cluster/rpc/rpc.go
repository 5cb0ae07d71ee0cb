// Package rpc is the coordinator's gRPC service and its clients: workers report what happens,
// people watch it, and ask the job to stop or to scale. It decides nothing: what workers and
// people say goes to cluster/coordinator as cluster.Events, and what that decides comes back
// through the methods Lead, Follow, Planned and Notify. Nothing here is on the data path, and
// nothing makes training wait. It may import cluster and proto.
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
	// HistoryLimit is how many records a leader keeps for watchers that come later. Step events
	// are thinned before anything else goes.
	HistoryLimit = 4096
	// SourceLimit is how many different workers one leader listens to in its term.
	SourceLimit = 1 << 16
	// QueueLimit is how many records a worker keeps that the leader may still need.
	QueueLimit = 1024
	// MessageLimit is the size of a message in bytes; a sample text is the largest.
	MessageLimit = 4 << 20
	// StreamLimit is how many calls one connection may have open at a time.
	StreamLimit = 64

	answerTimeout = 5 * time.Second  // for the other side's next word, where one is due
	queueTimeout  = 5 * time.Second  // for room in a worker's queue
	keepAlive     = 10 * time.Second // after so long in silence a connection is probed
	pauseFirst    = 50 * time.Millisecond
	pauseMax      = time.Second
	watchBatch    = 64 // records that a watcher takes from the history at a time
)

// LeaderFunc returns the address of the leader's Coordinator service.
type LeaderFunc func(ctx context.Context) (address string, err error)

// ClientConfig says how to speak to the leader.
type ClientConfig struct {
	Dial     []grpc.DialOption // credentials, a dialer and the like; nil: plaintext, the network
	Patience time.Duration     // how long a call tries without an answer; 0: 30 s
	Log      *slog.Logger      // what is tried again, and why; nil: nothing
}

// Client speaks to the leader of a job, whoever that is at the moment.
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

// connect finds the leader and returns a connection, which is made when it is first used.
func (c *Client) connect(ctx context.Context) (*grpc.ClientConn, error) {
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	address, err := c.leader(limited)
	if err != nil {
		return nil, err
	}
	// The dialer resolves the address, which need not mean anything on this machine.
	return grpc.NewClient(asItIs+address, append([]grpc.DialOption{
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

// asItIs is the resolver that leaves an address to the dialer.
const asItIs = "passthrough:///"

func addressOf(conn *grpc.ClientConn) string { return strings.TrimPrefix(conn.Target(), asItIs) }

// pause is a wait that doubles up to a limit.
type pause struct{ next time.Duration }

// wait returns false if ctx ended first.
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

// isStep says whether an event is one of many alike, which may be dropped.
func isStep(e *rondov1.Event) bool { return e.GetStep() != nil }
