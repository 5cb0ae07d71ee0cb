//go:build !linux

package procgroup

import (
	"os/exec"
	"syscall"
)

// Bind is Set, because this system cannot signal a process at its parent's death.
func Bind(command *exec.Cmd, _ syscall.Signal) { Set(command) }
