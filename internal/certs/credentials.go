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
	return &server{TransportCredentials: credentials.NewTLS(i.Server()), told: newTold(log)}
}

// ClientCredentials are for a gRPC client of servers of this name; empty: that of the address.
// Its errors say who the other end is, and which file is at fault; log hears them too, where a
// client hides them behind a deadline.
func (i *Identity) ClientCredentials(
	serverName string, log *slog.Logger,
) credentials.TransportCredentials {
	return &client{TransportCredentials: credentials.NewTLS(i.Client(serverName)), of: i,
		told: newTold(log)}
}

// Refused is why the last connection that a client tried was not made; nil if it was.
func (i *Identity) Refused() error {
	if err := i.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// server says what gRPC would only note in a log of its own.
type server struct {
	credentials.TransportCredentials
	told *told
}

// told is the last refusal: one that comes again and again is told of once in a while.
type told struct {
	log  *slog.Logger
	mu   sync.Mutex
	text string
	at   time.Time
}

func newTold(log *slog.Logger) *told {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &told{log: log}
}

// tellInterval is the least time between two lines about the same refusal.
const tellInterval = time.Minute

func (t *told) tell(what, host string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := host + ": " + err.Error()
	if text == t.text && time.Since(t.at) < tellInterval {
		return
	}
	t.text, t.at = text, time.Now()
	t.log.Warn(what, "host", host, "error", err)
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
	s.told.tell("a caller is refused", host, err)
	return nil, nil, err
}

func (s *server) Clone() credentials.TransportCredentials {
	return &server{TransportCredentials: s.TransportCredentials.Clone(), told: s.told}
}

type client struct {
	credentials.TransportCredentials
	of   *Identity
	told *told
}

func (c *client) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	net.Conn, credentials.AuthInfo, error) {
	peer := conn.RemoteAddr().String()
	secured, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err == nil {
		c.of.refused.Store(nil)
		return &answered{Conn: secured, peer: peer, client: c}, info, nil
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) {
		err = errors.New("it does not speak TLS: give it --tls")
	}
	return nil, nil, c.refuse(peer, err)
}

// refuse notes why there is no connection.
func (c *client) refuse(peer string, err error) error {
	err = fmt.Errorf("%s: %w", peer, err)
	c.of.refused.Store(&err)
	c.told.tell("no connection", peer, err)
	return err
}

func (c *client) Clone() credentials.TransportCredentials {
	return &client{TransportCredentials: c.TransportCredentials.Clone(), of: c.of, told: c.told}
}

// answered is a connection of which the server has not yet said what it thinks of our certificate:
// its verdict comes in place of the first bytes.
type answered struct {
	net.Conn
	peer   string
	client *client
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
	return a.client.refuse(a.peer, fmt.Errorf("it refuses the certificate of this process, %s "+
		"(%w): both ends need one of the same authority that has not expired",
		a.client.of.path(CertFile), err))
}
