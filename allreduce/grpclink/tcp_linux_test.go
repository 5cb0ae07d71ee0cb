package grpclink

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSocketGivesUp: the kernel ends a connection to a host that has gone, as soon as pings would.
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
	raw, err := conn.(*gather).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got, failed := 0, error(nil)
	err = raw.Control(func(fd uintptr) {
		got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	})
	if err != nil || failed != nil || time.Duration(got)*time.Millisecond != pingTimeout {
		t.Errorf("it gives up after %d ms, %v, %v, want %v", got, err, failed, pingTimeout)
	}
}
