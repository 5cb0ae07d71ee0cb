package grpclink

import (
	"context"
	"net"
	"testing"
	"time"

	"rondo/allreduce/grpclink/framing"

	"golang.org/x/sys/unix"
)

// TestSocketGivesUp: the kernel ends a connection to a vanished host as soon as gRPC's pings would.
func TestSocketGivesUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := &socket{dial: dial, plain: true}
	defer s.close()
	conn, err := s.open(context.Background(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.(*framing.Writer).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	limit, unsent, failed := 0, 0, error(nil)
	err = raw.Control(func(fd uintptr) {
		limit, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if failed == nil {
			unsent, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		}
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if time.Duration(limit)*time.Millisecond != framing.PingTimeout || unsent != unsentBytes {
		t.Errorf("it gives up after %d ms, and keeps %d bytes; want %v and %d", limit, unsent,
			framing.PingTimeout, unsentBytes)
	}
}
