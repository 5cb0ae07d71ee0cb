package grpclink

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Unpace leaves a TCP connection within one host to Reno's congestion control, which every Linux
// has. There is no congestion to find there, and a control that paces what it sends, as BBR does,
// only has the receiver wait: it costs a ring on loopback a quarter of its rate. Other connections
// stay as they are, and so does one on which it fails.
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

// bound has the kernel end a TCP connection on which what was sent is not acknowledged for so long,
// and take no more from its writer while it has unsent bytes that it has not sent at all. gRPC sets
// the first on connections that it opens itself; these it does not know for what they are. Without
// the second a ring that sends over a slow link does not notice, as the kernel keeps megabytes for
// it. A connection on which it fails ends by gRPC's pings, if it has a stream.
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
