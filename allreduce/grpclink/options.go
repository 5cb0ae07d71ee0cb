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
)

const (
	// windowBytes is how much a predecessor may send before it is read, per stream and per
	// connection. Both must be set: each alone leaves the other at 64 KiB. It is what the longest
	// chunk takes while the ring still has another. In a larger window received chunks queue up,
	// and fall out of the processor's cache.
	windowBytes = 2 << 20

	// writeBufferBytes is what gRPC copies before it writes to the connection, where there is no
	// gather, and readBufferBytes what it asks the connection for at once.
	writeBufferBytes = 512 << 10
	readBufferBytes  = 64 << 10

	// unsentBytes is how much the kernel keeps of what has not been sent, so that a sender on a
	// slow link waits, and is seen to: a batch of gather's.
	unsentBytes = gatherBytes

	// maxStreams is of one connection: its link, and an abort beside it.
	maxStreams = 4

	// maxMetadataBytes bounds the handshake.
	maxMetadataBytes = 16 << 10

	// A ring notices a neighbour that is cut off without a word by its own signs of life. These
	// pings end the connections that such a neighbour has left behind.
	pingInterval = 10 * time.Second
	pingTimeout  = 20 * time.Second

	// connectTimeout bounds one attempt to open a connection, up to the HTTP/2 preface.
	connectTimeout = 5 * time.Second

	// After an attempt that failed the next one is made firstRetry later, and each further one a
	// little later than that, up to lastRetry: a successor that comes up is reached in a moment.
	firstRetry  = 5 * time.Millisecond
	lastRetry   = 50 * time.Millisecond
	retryFactor = 1.5
)

// ServerOptions returns what a gRPC server that carries a [Server] must be made with. creds is
// nil for a server without TLS.
func ServerOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	if isPlain(creds) {
		creds = plain{creds}
	}
	return []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(codec{}),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		grpc.ReadBufferSize(readBufferBytes),
		experimental.BufferPool(&frames{}),
		grpc.WriteBufferSize(writeBufferBytes),
		grpc.MaxRecvMsgSize(headerBytes + allreduce.MaxChunkBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxMetadataBytes),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             pingInterval / 2,
			PermitWithoutStream: true,
		}),
		grpc.WaitForHandlers(true),
	}
}

// DialConfig is how a worker reaches its successor. The zero value is without TLS.
type DialConfig struct {
	// Credentials are nil for a connection without TLS.
	Credentials credentials.TransportCredentials

	// Timeout bounds the wait for the successor to be up and in the same generation, within
	// what the context allows; 0 is 30 s.
	Timeout time.Duration

	// AbortGrace is how long Abort waits for the successor to take the reason; 0 is 250 ms. One
	// that has not taken it in that time sees the stream end without a reason.
	AbortGrace time.Duration

	// Dialer opens the connection; nil is TCP, or a unix socket for an address unix:/path. An
	// address that begins with @ is the socket by which workers of one host come in.
	Dialer func(ctx context.Context, address string) (net.Conn, error)

	// Way is by what chunks go to the successor.
	Way Way
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

// client is a gRPC connection, and the socket under it.
type client struct {
	conn  *grpc.ClientConn
	under *socket
}

// close cuts the connection first: it has nothing left to say.
func (c client) close() error {
	c.under.close()
	return c.conn.Close()
}

// client opens a connection to address. It is made when it is first used, and made again by
// gRPC when it fails.
func (c DialConfig) client(address string) (client, error) {
	if address == "" {
		return client{}, errors.New("ring link: the successor has no address")
	}
	target := address
	if !strings.HasPrefix(address, "unix:") {
		target = "passthrough:///" + address // each attempt asks the resolver anew
	}
	gathers := isPlain(c.Credentials)
	buffered := writeBufferBytes
	if gathers { // a gather is under it
		buffered = 0
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(c.Credentials),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})),
		grpc.WithStaticStreamWindowSize(windowBytes),
		grpc.WithStaticConnWindowSize(windowBytes),
		grpc.WithReadBufferSize(readBufferBytes),
		grpc.WithWriteBufferSize(buffered),
		grpc.WithMaxHeaderListSize(maxMetadataBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:    pingInterval,
			Timeout: pingTimeout,
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
	under := &socket{dial: c.Dialer, plain: gathers, network: "tcp"}
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
