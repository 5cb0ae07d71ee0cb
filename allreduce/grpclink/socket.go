package grpclink

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"rondo/allreduce/grpclink/framing"
)

// socket is the newest connection under a gRPC client. gRPC closes a connection only after its
// farewell, which takes seconds if the neighbour does not read. A broken link has nothing to write,
// so socket can close it at once.
type socket struct {
	dial  func(ctx context.Context, address string) (net.Conn, error)
	plain bool // gRPC writes to the connection itself, without TLS between

	mu      sync.Mutex
	network string // of the newest connection
	conn    net.Conn
	refused time.Time // first of the refusals since the last other end of a try; zero: none
	shut    bool
}

// dial connects to an address from gRPC's resolvers: host:port, or unix:///path.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// open is gRPC's dialer. Each connection replaces one that has failed.
func (s *socket) open(ctx context.Context, address string) (net.Conn, error) {
	conn, err := s.dial(ctx, address)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !errors.Is(err, syscall.ECONNREFUSED):
		s.refused = time.Time{}
	case s.refused.IsZero():
		s.refused = time.Now()
	}
	if err != nil {
		return nil, err
	}
	if s.shut {
		conn.Close()
		return nil, net.ErrClosed
	}
	Unpace(conn)
	bound(conn, framing.PingTimeout, unsentBytes)
	network := conn.RemoteAddr().Network()
	if s.plain {
		conn = framing.NewWriter(conn)
	}
	s.conn, s.network = conn, network
	return conn, nil
}

// isReached reports whether any connection has opened.
func (s *socket) isReached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// refuses reports whether all tries to connect, for at least this long, were refused.
func (s *socket) refuses(atLeast time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.refused.IsZero() && time.Since(s.refused) >= atLeast
}

func (s *socket) kind() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network
}

// isCarried reports whether a network carries the connection's bytes as they are: it has no TLS and
// leaves the host.
func (s *socket) isCarried() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.plain || s.conn == nil {
		return false
	}
	to, tcp := s.conn.RemoteAddr().(*net.TCPAddr)
	return tcp && !to.IP.IsLoopback()
}

// writer returns the connection if it is a framing.Writer, and nil otherwise.
func (s *socket) writer() *framing.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, _ := s.conn.(*framing.Writer)
	return g
}

func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
	if s.conn != nil {
		s.conn.Close() // it returns an error if gRPC closed it first
	}
}
