//go:build !unix

package procgroup

import (
	"os"
	"os/exec"
	"syscall"
)

// Set does nothing: the command shares its parent's console.
func Set(*exec.Cmd) {}

// Signal ends the process, whatever the signal is.
func Signal(pid int, _ syscall.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
