//go:build unix

package procgroup

import (
	"os/exec"
	"syscall"
)

// Set makes a command, before its start, the leader of its own process group.
func Set(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Signal signals the group of a process for which Set was called. It fails if the group is empty.
func Signal(pid int, s syscall.Signal) error { return syscall.Kill(-pid, s) }
