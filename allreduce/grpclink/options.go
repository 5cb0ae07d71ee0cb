package grpclink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
)

const (
	// writeBufferBytes is gRPC's write buffer if there is no framing.Writer. readBufferBytes is its
	// read buffer.
	writeBufferBytes = 512 << 10
	readBufferBytes  = 64 << 10

	// unsentBytes limits the kernel's unsent data, so that a sender on a slow link waits visibly.
	// It is one batch of a framing.Writer.
	unsentBytes = framing.BatchBytes

	// maxStreams is the limit per connection: its link, and aborts beside it.
	maxStreams = 4

	// maxMetadataBytes limits the handshake.
	maxMetadataBytes = 16 << 10

	// connectTimeout limits one attempt to connect, up to the HTTP/2 preface.
	connectTimeout = 5 * time.Second

	// idleLimit ends a connection without a stream.
	idleLimit = time.Minute

	// After a failed attempt gRPC waits firstRetry, and then retryFactor longer each time, up to
	// lastRetry. So a successor that starts is reached soon.
	firstRetry  = 5 * time.Millisecond
	lastRetry   = 50 * time.Millisecond
	retryFactor = 1.5
)

// ServerOptions returns the options that a gRPC server with a [Server] needs. creds is nil for a
// server without TLS.
func ServerOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(framing.Credentials(creds)),
		grpc.ForceServerCodecV2(codec{}),
		grpc.StaticStreamWindowSize(framing.WindowBytes), // without both, the other stays at 64 KiB
		grpc.StaticConnWindowSize(framing.WindowBytes),
		grpc.ReadBufferSize(readBufferBytes),
		experimental.BufferPool(&frames{}),
		grpc.WriteBufferSize(writeBufferBytes),
		grpc.MaxRecvMsgSize(framing.HeaderBytes + allreduce.MaxChunkBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxMetadataBytes),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: framing.PingInterval,
			Timeout: framing.PingTimeout, MaxConnectionIdle: idleLimit}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             framing.PingInterval / 2,
			PermitWithoutStream: true,
		}),
		grpc.WaitForHandlers(true),
	}
}

// DialConfig sets how a worker reaches its successor. The zero value has no TLS.
type DialConfig struct {
	// Credentials is nil for a connection without TLS.
	Credentials credentials.TransportCredentials

	// Timeout limits the wait until the successor is up and in the same generation, together with
	// the context; 0 is 30 s.
	Timeout time.Duration

	// Refusals is how long the successor's host may refuse connections to its address until its
	// process counts as ended; 0: it may still start, within Timeout.
	Refusals time.Duration

	// Silence is how long no connection to a neighbour may open until it counts as cut off, or its
	// host as down; 0: as long as Timeout.
	Silence time.Duration

	// AbortGrace is how long Abort waits for the successor to take the reason; 0 is 250 ms. After
	// that the successor sees the stream end without a reason.
	AbortGrace time.Duration

	// Dialer opens the connection. nil is TCP, or a unix socket for an address unix:/path. An
	// address that begins with @ is another worker's socket on this host.
	Dialer func(ctx context.Context, address string) (net.Conn, error)

	// Transport is how chunks travel to the successor.
	Transport Transport
}

func (c DialConfig) validate() (DialConfig, error) {
	if c.Timeout < 0 {
		return c, fmt.Errorf("ring link: timeout %v is negative", c.Timeout)
	}
	if c.AbortGrace < 0 {
		return c, fmt.Errorf("ring link: abort grace %v is negative", c.AbortGrace)
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.AbortGrace == 0 {
		c.AbortGrace = 250 * time.Millisecond
	}
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	return c, nil
}

// client is a gRPC connection, with the socket under it.
type client struct {
	conn  *grpc.ClientConn
	under *socket
}

// close closes the socket first, so that gRPC does not wait to write its farewell.
func (c client) close() error {
	c.under.close()
	return c.conn.Close()
}

// client returns a connection to address. gRPC connects at the first call, and again after each
// failure.
func (c DialConfig) client(address string) (client, error) {
	if address == "" {
		return client{}, errors.New("ring link: the successor has no address")
	}
	target := address
	if !strings.HasPrefix(address, "unix:") {
		target = "passthrough:///" + address // the address is resolved anew in each attempt
	}
	vectored := framing.Plain(c.Credentials)
	buffered, secured := writeBufferBytes, framing.ClientCredentials(c.Credentials)
	if vectored { // its connections buffer for themselves
		buffered, secured = 0, c.Credentials
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(secured),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})),
		grpc.WithStaticStreamWindowSize(framing.WindowBytes),
		grpc.WithStaticConnWindowSize(framing.WindowBytes),
		grpc.WithReadBufferSize(readBufferBytes),
		grpc.WithWriteBufferSize(buffered),
		grpc.WithMaxHeaderListSize(maxMetadataBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    framing.PingInterval,
			Timeout: framing.PingTimeout,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  firstRetry,
				Multiplier: retryFactor,
				Jitter:     0.2,
				MaxDelay:   lastRetry,
			},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}
	under := &socket{dial: c.Dialer, plain: vectored, network: "tcp"}
	if c.Dialer == nil {
		under.dial = dial
	}
	options = append(options, grpc.WithContextDialer(under.open))
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return client{}, fmt.Errorf("ring link to %s: %w", address, err)
	}
	return client{conn, under}, nil
}
