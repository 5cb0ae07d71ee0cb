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

// A predecessor that may use a unix socket first asks for its name, in a call to the successor's
// address. The answer has no name if there is no socket. The name is abstract and belongs to a
// network namespace, so a process that can connect is on the same host. It is random, and both ends
// ask the kernel for the other's user, so no other user can interpose.
const (
	keyAsk    = "rondo-ask-socket"
	keySocket = "rondo-socket"

	socketPrefix = "@rondo-ring-"
	socketBytes  = 16 // random bytes in the name

	// socketSendBytes is the kernel's send buffer of a socket. Linux's default makes a ring of two
	// a quarter slower.
	socketSendBytes = 1 << 20
)

// ListenLocal opens the unix socket for predecessors on this host, beside the listener at the
// worker's address. The gRPC server passed to [Server.Register] must serve both, and must serve
// neither before ListenLocal returns: a predecessor that asks earlier is told that there is no
// socket, and does not ask again. It returns nil if the server's Transport needs no socket or the
// system provides none.
func (s *Server) ListenLocal() net.Listener {
	if s.cfg.Transport != ByAny && s.cfg.Transport != ByUnix {
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

// sameUser is a listener that accepts only processes of the same user.
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

func (s *Server) answerAsk() metadata.MD {
	if name := s.local.Load(); name != nil {
		return metadata.Pairs(keySocket, *name)
	}
	return nil
}

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

// approach chooses the client for the stream: on the successor's unix socket if it may and can,
// otherwise at its address. It returns an error if the successor does not answer.
func (s *successor) approach(ctx context.Context) error {
	if s.cfg.Transport != ByAny && s.cfg.Transport != ByUnix ||
		strings.HasPrefix(s.peer.Address, "unix:") {
		return nil
	}
	name, err := s.ask(ctx)
	if err != nil {
		return err
	}
	s.noSocket = ""
	if name == "" {
		s.noSocket = "the neighbour has no socket for workers on its host"
	} else if conn, err := dialLocal(ctx, name); err != nil {
		s.noSocket, name = err.Error(), ""
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

// missed returns why the link is not of the required Transport; empty: it is.
func (s *successor) missed() string {
	switch {
	case s.cfg.Transport == ByShm && s.sender == nil:
		return s.noMemory
	case s.cfg.Transport == ByUnix && s.local == "":
		return s.noSocket
	}
	return ""
}

func dialLocal(ctx context.Context, name string) (net.Conn, error) {
	if !regexp.MustCompile("^" + socketPrefix + "[0-9a-f]{32}$").MatchString(name) {
		return nil, fmt.Errorf("%.60q is no socket of a ring", name)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", name)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errOtherHost
	}
	if err != nil {
		return nil, err
	}
	unix := conn.(*net.UnixConn)
	if err := shm.CheckUser(unix); err != nil {
		conn.Close()
		return nil, err
	}
	_ = unix.SetWriteBuffer(socketSendBytes) // with a smaller buffer it is only slower
	return conn, nil
}

var errOtherHost = errors.New("the two ends are not in the same network namespace of one host")
