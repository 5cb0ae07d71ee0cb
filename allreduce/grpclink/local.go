package grpclink

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"

	"google.golang.org/grpc/metadata"

	"rondo/allreduce/shm"
	rondov1 "rondo/proto/rondo/v1"
)

// A predecessor that may come by a unix socket asks for its name in a call of its own, at the
// successor's address; the answer is without it where there is none. The name is abstract, and
// belongs to a network namespace: who can connect to it is on the same host. It is random, and both
// ends ask the kernel whose the other is, so that no other user gets between.
const (
	keyAsk    = "rondo-ask-socket"
	keySocket = "rondo-socket"

	socketPrefix = "@rondo-ring-"
	socketBytes  = 16 // of the name that are random

	// socketSendBytes is what the kernel takes of a sender before its receiver reads. Its usual
	// limit makes a ring of two a quarter slower.
	socketSendBytes = 1 << 20
)

// ListenLocal opens the socket by which predecessors on this host come in, beside the listener at
// the worker's address. The gRPC server that [Server.Register] was told serves both: it begins with
// neither before this has returned, as a predecessor that asks too soon hears that there is no
// socket, and does not ask again. It is nil where the server's Way has no need of it, or the system
// none to give.
func (s *Server) ListenLocal() net.Listener {
	if s.cfg.Way != ByAny && s.cfg.Way != ByUnix {
		return nil
	}
	var random [socketBytes]byte
	rand.Read(random[:]) // it never fails
	name := socketPrefix + hex.EncodeToString(random[:])
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil
	}
	s.local.Store(&name)
	return sameUser{listener}
}

// sameUser lets in who runs as the same user.
type sameUser struct{ *net.UnixListener }

func (l sameUser) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if shm.CheckUser(conn) == nil {
			return conn, nil
		}
		conn.Close()
	}
}

// answerAsk answers a predecessor that asks for the socket.
func (s *Server) answerAsk() metadata.MD {
	if name := s.local.Load(); name != nil {
		return metadata.Pairs(keySocket, *name)
	}
	return nil
}

// ask asks the successor for its socket.
func (s *successor) ask(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := s.self.metadata()
	said.Set(keyAsk, "1")
	stream, err := rondov1.NewRingClient(s.public.conn).Link(
		metadata.NewOutgoingContext(ctx, said))
	if err != nil {
		return "", err
	}
	answer, err := stream.Header()
	if err != nil {
		return "", err
	}
	if err := stream.RecvMsg(&incoming{}); !errors.Is(err, io.EOF) {
		return "", err
	}
	if names := answer.Get(keySocket); len(names) == 1 {
		name = names[0]
	}
	return name, nil
}

// approach chooses the connection that the stream is tried on: by the successor's socket if it is
// to and can, else at its address. The error is of a successor that does not answer.
func (s *successor) approach(ctx context.Context) error {
	if s.cfg.Way != ByAny && s.cfg.Way != ByUnix || strings.HasPrefix(s.peer.Address, "unix:") {
		return nil
	}
	name, err := s.ask(ctx)
	if err != nil {
		return err
	}
	s.apart = ""
	if name == "" {
		s.apart = "the neighbour has no socket for workers on its host"
	} else if conn, err := dialLocal(ctx, name); err != nil {
		s.apart, name = err.Error(), ""
	} else {
		conn.Close()
	}
	if name == s.local {
		return nil
	}
	if s.local != "" {
		s.client.close()
	}
	s.local, s.client = name, s.public
	if name == "" {
		return nil
	}
	cfg := s.cfg
	cfg.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
		if s.cfg.Dialer != nil {
			return s.cfg.Dialer(ctx, name)
		}
		return dialLocal(ctx, name)
	}
	s.client, err = cfg.client(s.peer.Address)
	return err
}

// missed says why the link is not by what it must be; it is empty where it is.
func (s *successor) missed() string {
	switch {
	case s.cfg.Way == ByShm && s.sender == nil:
		return s.unshared
	case s.cfg.Way == ByUnix && s.local == "":
		return s.apart
	}
	return ""
}

// dialLocal connects to a worker's socket of this host.
func dialLocal(ctx context.Context, name string) (net.Conn, error) {
	if !regexp.MustCompile("^" + socketPrefix + "[0-9a-f]{32}$").MatchString(name) {
		return nil, fmt.Errorf("%.60q is no socket of a ring", name)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", name)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errApart
	}
	if err != nil {
		return nil, err
	}
	unix := conn.(*net.UnixConn)
	if err := shm.CheckUser(unix); err != nil {
		conn.Close()
		return nil, err
	}
	_ = unix.SetWriteBuffer(socketSendBytes) // less than that is only slower
	return conn, nil
}

var errApart = errors.New("they are not on one host, or not in one network namespace of it")
