package grpclink

import (
	"context"
	"net"
	"strings"
	"sync"
)

// socket is the newest connection under a gRPC client. gRPC closes one only after it has written
// its farewell, for which it waits for seconds when the neighbour reads no more; a link that is
// broken has nothing left to say.
type socket struct {
	dial  func(ctx context.Context, address string) (net.Conn, error)
	plain bool // whether gRPC writes to the connection itself, and no TLS between

	mu      sync.Mutex
	network string // of the newest connection
	conn    net.Conn
	shut    bool
}

// dial opens what gRPC's resolvers make of an address: host:port, or unix:///path.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// open is a gRPC dialer. Each connection takes the place of one that has failed.
func (s *socket) open(ctx context.Context, address string) (net.Conn, error) {
	conn, err := s.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		conn.Close()
		return nil, net.ErrClosed
	}
	Unpace(conn)
	bound(conn, pingTimeout, unsentBytes)
	network := conn.RemoteAddr().Network()
	if s.plain {
		conn = newGather(conn)
	}
	s.conn, s.network = conn, network
	return conn, nil
}

// kind is the network of the newest connection.
func (s *socket) kind() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network
}

// gathering returns the connection if it gathers what it is given.
func (s *socket) gathering() *gather {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, _ := s.conn.(*gather)
	return g
}

// close cuts the connection, and lets there be no other.
func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = true
	if s.conn != nil {
		s.conn.Close() // its error says that gRPC was first
	}
}
