package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// ServerCredentials are for a gRPC server; log hears who was refused, and why.
func (i *Identity) ServerCredentials(log *slog.Logger) credentials.TransportCredentials {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &server{TransportCredentials: credentials.NewTLS(i.Server()), log: log,
		told: &told{}}
}

// ClientCredentials are for a gRPC client of servers of this name; empty: that of the address.
// Its errors say who the other end is, and which file is at fault.
func (i *Identity) ClientCredentials(serverName string) credentials.TransportCredentials {
	return &client{TransportCredentials: credentials.NewTLS(i.Client(serverName)),
		own: i.path(CertFile)}
}

// server says what gRPC would only note in a log of its own.
type server struct {
	credentials.TransportCredentials
	log  *slog.Logger
	told *told
}

// told is the last refusal: a caller that tries again and again is told of once in a while.
type told struct {
	mu   sync.Mutex
	text string
	at   time.Time
}

// tellInterval is the least time between two lines about the same refusal.
const tellInterval = time.Minute

func (t *told) again(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text == t.text && time.Since(t.at) < tellInterval {
		return true
	}
	t.text, t.at = text, time.Now()
	return false
}

func (s *server) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := s.TransportCredentials.ServerHandshake(conn)
	if err == nil {
		return secured, info, nil
	}
	host, _, splitErr := net.SplitHostPort(conn.RemoteAddr().String())
	if splitErr != nil {
		host = conn.RemoteAddr().String()
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) {
		err = errors.New("it does not speak TLS: give it --tls")
	}
	if text := fmt.Sprintf("%s: %v", host, err); !s.told.again(text) {
		s.log.Warn("a caller is refused", "host", host, "error", err)
	}
	return nil, nil, err
}

func (s *server) Clone() credentials.TransportCredentials {
	return &server{TransportCredentials: s.TransportCredentials.Clone(), log: s.log, told: s.told}
}

type client struct {
	credentials.TransportCredentials
	own string // the file of our certificate
}

func (c *client) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	net.Conn, credentials.AuthInfo, error) {
	peer := conn.RemoteAddr().String()
	secured, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	var plain tls.RecordHeaderError
	switch {
	case err == nil:
		return &answered{Conn: secured, peer: peer, own: c.own}, info, nil
	case errors.As(err, &plain):
		err = errors.New("it does not speak TLS: give it --tls")
	}
	return nil, nil, fmt.Errorf("%s: %w", peer, err)
}

func (c *client) Clone() credentials.TransportCredentials {
	return &client{TransportCredentials: c.TransportCredentials.Clone(), own: c.own}
}

// answered is a connection of which the server has not yet said what it thinks of our certificate:
// its verdict comes in place of the first bytes.
type answered struct {
	net.Conn
	peer, own string
}

// verdictWait is how long a verdict may take that has been sent already.
const verdictWait = time.Second

func (a *answered) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	return n, a.explain(err)
}

// Write fails where the server has closed the connection already: its verdict is still to be read.
func (a *answered) Write(p []byte) (int, error) {
	n, err := a.Conn.Write(p)
	if err == nil || a.Conn.SetReadDeadline(time.Now().Add(verdictWait)) != nil {
		return n, err
	}
	var one [1]byte
	if _, reading := a.Conn.Read(one[:]); isVerdict(reading) {
		err = reading
	}
	return n, a.explain(err)
}

// isVerdict reports whether an error is what the other end has said about a certificate.
func isVerdict(err error) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error" &&
		strings.Contains(alert.Err.Error(), "certificate")
}

func (a *answered) explain(err error) error {
	if !isVerdict(err) {
		return err
	}
	return fmt.Errorf("%s refuses the certificate of this process, %s (%w): both ends need one of "+
		"the same authority that has not expired", a.peer, a.own, err)
}
