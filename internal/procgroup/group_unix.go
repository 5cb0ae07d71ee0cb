//go:build unix

package procgroup

import (
	"os/exec"
	"syscall"
)

// Set has a command that has not been started be in a group of its own.
func Set(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Signal signals the group of the process that Set was called for. It fails if nobody is left in
// it.
func Signal(pid int, s syscall.Signal) error { return syscall.Kill(-pid, s) }
