//go:build unix

package rehearsal

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// killSelf does not return.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// stopSelf halts this process. If d is not 0, a shell in its own session continues the process,
// because nothing inside a halted process can.
func stopSelf(d time.Duration) error {
	if d == 0 {
		return syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	seconds := strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
	waker := exec.Command("/bin/sh", "-c", `sleep "$1"; kill -CONT "$2"`, "sh", seconds,
		strconv.Itoa(os.Getpid()))
	waker.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := waker.Start(); err != nil {
		return fmt.Errorf("rehearsal: stop for %v: cannot start the shell that continues it: %w",
			d, err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return fmt.Errorf("rehearsal: stop: %w", err)
	}
	return waker.Wait() // it ends now: it has just continued this process
}
