package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial opens a TCP connection of this process that starts on the host.
func (h *Host) Dial(ctx context.Context, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err = h.dial(ctx, address)
	}()
	<-done
	return conn, err
}

// dial is called in a goroutine of its own: if the thread cannot leave the host again, it ends with
// the goroutine.
func (h *Host) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	there, err := os.Open("/run/netns/" + h.namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = there.Close() }()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("entering host %s: %w", h.Name, err)
	}
	var dialer net.Dialer
	conn, err = dialer.DialContext(ctx, "tcp", address)
	if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return conn, err
}
