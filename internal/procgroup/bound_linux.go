package procgroup

import (
	"os/exec"
	"syscall"
)

// Bind is Set, and has the kernel signal the process when the thread that starts it ends, so that
// nothing is left if this program is killed.
func Bind(command *exec.Cmd, s syscall.Signal) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: s}
}
