package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Enter calls f on the host: connections that it opens itself, and not in another goroutine, start
// there.
func (h *Host) Enter(f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = h.enter(f)
	}()
	<-done
	return err
}

// enter is called in a goroutine of its own: if the thread cannot leave the host again, it ends
// with the goroutine.
func (h *Host) enter(f func()) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	there, err := os.Open("/run/netns/" + h.namespace)
	if err != nil {
		return err
	}
	defer func() { _ = there.Close() }()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering host %s: %w", h.Name, err)
	}
	f()
	if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return nil
}
