package procgroup

import (
	"os/exec"
	"syscall"
)

// Bind is Set, and the kernel signals the process when the thread that started it ends. So no
// process remains if this program is killed.
func Bind(command *exec.Cmd, s syscall.Signal) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: s}
}
