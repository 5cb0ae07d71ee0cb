//go:build !linux

package procgroup

import (
	"os/exec"
	"syscall"
)

// Bind is Set: this system does not tell a process that its parent has died.
func Bind(command *exec.Cmd, _ syscall.Signal) { Set(command) }
