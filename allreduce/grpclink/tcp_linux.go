package grpclink

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Unpace sets Reno, which every Linux has, as the congestion control of a TCP connection within one
// host. There is no congestion on loopback, and a control that paces, such as BBR, slows a ring
// there by a quarter. Connections between hosts stay unchanged. Errors are ignored.
func Unpace(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	here, there := tcp.LocalAddr().(*net.TCPAddr), tcp.RemoteAddr().(*net.TCPAddr)
	if !here.IP.Equal(there.IP) {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
}

// bound sets two limits on a TCP connection. The kernel ends it when sent data is not acknowledged
// for so long; gRPC sets that only on connections that it dials itself. And the kernel accepts no
// more data while it holds unsent bytes of it. Otherwise it buffers megabytes, and the ring does
// not notice a slow link. Errors are ignored: gRPC's pings end a connection with a stream.
func bound(conn net.Conn, unacknowledged time.Duration, unsent int) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(unacknowledged.Milliseconds()))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	})
}
