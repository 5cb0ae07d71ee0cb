package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// ServerCredentials returns credentials for a gRPC server; see Server. log receives a line for each
// refused client, and for new files that are faulty. A connection ends within a minute of its
// client's certificate or of the trust in its authority, if something comes over it every half
// minute, as with gRPC's keepalive.
func (i *Identity) ServerCredentials(
	log *slog.Logger, roles ...Role,
) credentials.TransportCredentials {
	i.report(log)
	return &server{TransportCredentials: credentials.NewTLS(i.Server(roles...)), identity: i,
		refusals: newRefusalLog(log)}
}

// ClientCredentials returns credentials for a gRPC client; see Client. Errors name the peer and the
// faulty file. They go to log too, because a gRPC client may hide them behind a deadline.
// Connections end as those of ServerCredentials do.
func (i *Identity) ClientCredentials(
	serverName string, log *slog.Logger, roles ...Role,
) credentials.TransportCredentials {
	i.report(log)
	return &client{TransportCredentials: credentials.NewTLS(i.Client(serverName, roles...)),
		identity: i, serverName: serverName, roles: roles, refusals: newRefusalLog(log)}
}

// Refused returns why the client's last connection failed, or nil if it succeeded.
func (i *Identity) Refused() error {
	if err := i.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// server logs refusals, which gRPC would write only to its own log.
type server struct {
	credentials.TransportCredentials
	identity *Identity
	refusals *refusalLog
}

// refusalLog logs refusals. A repeated refusal is logged once per warnInterval.
type refusalLog struct {
	log  *slog.Logger
	mu   sync.Mutex
	text string
	at   time.Time
}

func newRefusalLog(log *slog.Logger) *refusalLog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &refusalLog{log: log}
}

// warnInterval is the least time between two lines about the same refusal.
const warnInterval = time.Minute

// warn logs what is refused, an error, and the host or folder that it comes from.
func (t *refusalLog) warn(what string, err error, key, from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := from + ": " + err.Error()
	if text == t.text && time.Since(t.at) < warnInterval {
		return
	}
	t.text, t.at = text, time.Now()
	t.log.Warn(what, key, from, "error", err)
}

func (s *server) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := s.TransportCredentials.ServerHandshake(conn)
	if err == nil {
		return s.identity.watched(secured, info, x509.ExtKeyUsageClientAuth, nil), info, nil
	}
	host, _, splitErr := net.SplitHostPort(conn.RemoteAddr().String())
	if splitErr != nil {
		host = conn.RemoteAddr().String()
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) {
		err = errors.New("it does not speak TLS: give it --tls")
	}
	s.refusals.warn("a caller is refused", err, "host", host)
	return nil, nil, err
}

func (s *server) Clone() credentials.TransportCredentials {
	return &server{TransportCredentials: s.TransportCredentials.Clone(), identity: s.identity,
		refusals: s.refusals}
}

type client struct {
	credentials.TransportCredentials
	identity   *Identity
	serverName string
	roles      []Role
	refusals   *refusalLog
}

func (c *client) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	net.Conn, credentials.AuthInfo, error) {
	peer := conn.RemoteAddr().String()
	config := c.identity.Client(c.serverName, c.roles...)
	own, _ := c.identity.newest()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return own, nil
	}
	secured, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	if err == nil {
		c.identity.refused.Store(nil)
		secured = c.identity.watched(secured, info, x509.ExtKeyUsageServerAuth, own.Leaf)
		return &unverifiedConn{Conn: secured, peer: peer, client: c}, info, nil
	}
	var plain tls.RecordHeaderError
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.As(err, &plain):
		err = errors.New("it does not speak TLS: give it --tls")
	case errors.As(err, &unverified):
		err = c.identity.explain(unverified.UnverifiedCertificates[0], unverified.Err)
	}
	return nil, nil, c.refuse(peer, err)
}

// refuse records and logs why a connection failed.
func (c *client) refuse(peer string, err error) error {
	err = fmt.Errorf("%s: %w", peer, err)
	c.identity.refused.Store(&err)
	c.refusals.warn("no connection", err, "host", peer)
	return err
}

func (c *client) Clone() credentials.TransportCredentials {
	return &client{TransportCredentials: c.TransportCredentials.Clone(), identity: c.identity,
		serverName: c.serverName, roles: c.roles, refusals: c.refusals}
}

const (
	// verifyInterval is the least time between two checks of a connection's certificates.
	verifyInterval = 20 * time.Second
	// renewBefore is longer than the time between two checks, with the half minute in which
	// nothing may come over a connection.
	renewBefore = time.Minute
)

// watchedConn is a connection that ends when the other end's certificate is no longer valid. A
// client's ends a little before its own certificate does, if there is a new one, which the next
// connection shows: etcd's answer to a call under one that has expired is final.
type watchedConn struct {
	net.Conn
	identity *Identity
	shown    []*x509.Certificate
	use      x509.ExtKeyUsage
	own      *x509.Certificate         // nil: of a server
	checked  atomic.Pointer[time.Time] // the last check
}

func (i *Identity) watched(
	conn net.Conn, info credentials.AuthInfo, use x509.ExtKeyUsage, own *x509.Certificate,
) net.Conn {
	shown := info.(credentials.TLSInfo).State.PeerCertificates
	w := &watchedConn{Conn: conn, identity: i, shown: shown, use: use, own: own}
	now := time.Now()
	w.checked.Store(&now)
	return w
}

func (w *watchedConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	now := time.Now()
	if err != nil || now.Sub(*w.checked.Load()) < verifyInterval {
		return n, err
	}
	checked := now // so that a Read without a check allocates nothing
	w.checked.Store(&checked)
	own, trusted := w.identity.newest()
	if err := trusted.check(w.shown, w.use); err != nil {
		return 0, errors.Join(w.identity.explain(w.shown[0], err), w.Close())
	}
	if w.own != nil && w.own.NotAfter.Sub(now) < renewBefore &&
		w.own.NotAfter.Before(own.Leaf.NotAfter) {
		return 0, errors.Join(errors.New("this process has a new certificate"), w.Close())
	}
	return n, nil
}

// unverifiedConn is a client's connection on which the server's verdict is still to come. In TLS
// 1.3 the server verifies the client's certificate after the client's handshake, so the verdict
// takes the place of the first bytes that the server sends.
type unverifiedConn struct {
	net.Conn
	peer   string
	client *client
}

// verdictWait bounds the wait for a verdict that has been sent already.
const verdictWait = time.Second

func (a *unverifiedConn) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	return n, a.explain(err)
}

// Write fails if the server has closed the connection. The server's verdict can then still be read.
func (a *unverifiedConn) Write(p []byte) (int, error) {
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

// isVerdict reports whether an error is the peer's alert about a certificate.
func isVerdict(err error) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error" &&
		strings.Contains(alert.Err.Error(), "certificate")
}

func (a *unverifiedConn) explain(err error) error {
	if !isVerdict(err) {
		return err
	}
	return a.client.refuse(a.peer, fmt.Errorf("it refuses the certificate of this process, %s "+
		"(%w): both ends need one of the same authority and job that has not expired, and this "+
		"process one with its role", a.client.identity.path(CertFile), err))
}
