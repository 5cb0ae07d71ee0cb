package framing

import (
	"bufio"
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

const (
	// recordBytes is the most that a record of TLS carries (RFC 8446, 5.1). crypto/tls makes a
	// system call for each.
	recordBytes = 16 << 10
	// heldBytes is how much of what TLS writes is kept for one system call.
	heldBytes = 256 << 10
	// recordsRead is the size of the read buffer beneath TLS.
	recordsRead = 256 << 10
)

// records is a connection beneath TLS that reads and writes several records with one system call.
type records struct {
	net.Conn
	reader *bufio.Reader // nil: as it comes

	mu      sync.Mutex
	holding bool // a large write above TLS is in progress
	held    []byte
}

func (r *records) Read(p []byte) (int, error) {
	if r.reader != nil {
		return r.reader.Read(p)
	}
	return r.Conn.Read(p)
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.holding {
		return r.Conn.Write(p)
	}
	r.held = append(r.held, p...)
	if len(r.held) >= heldBytes {
		if err := r.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// flush writes what is held. Its caller holds the lock.
func (r *records) flush() error {
	_, err := r.Conn.Write(r.held)
	r.held = r.held[:0]
	return err
}

// hold begins to keep what TLS writes, until release.
func (r *records) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = true
}

func (r *records) release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = false
	return r.flush()
}

// secured is a connection by TLS over records. Only its large writes are held, so that what goes
// wrong soon after the handshake is known at once.
type secured struct {
	net.Conn
	under *records
}

func (s secured) Write(p []byte) (int, error) {
	if len(p) <= recordBytes {
		return s.Conn.Write(p)
	}
	s.under.hold()
	n, err := s.Conn.Write(p)
	if flushed := s.under.release(); err == nil && flushed != nil {
		return 0, flushed
	}
	return n, err
}

// ClientCredentials returns credentials of a client whose connections by TLS write several records
// with one system call.
func ClientCredentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return batching{c}
}

type batching struct {
	credentials.TransportCredentials
}

// ClientHandshake is called by gRPC for each new connection.
func (b batching) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	net.Conn, credentials.AuthInfo, error) {
	under := &records{Conn: conn}
	above, info, err := b.TransportCredentials.ClientHandshake(ctx, authority, under)
	if _, tls := info.(credentials.TLSInfo); err != nil || !tls {
		return above, info, err
	}
	return secured{above, under}, info, nil
}

// Clone returns a copy.
func (b batching) Clone() credentials.TransportCredentials {
	return batching{b.TransportCredentials.Clone()}
}
