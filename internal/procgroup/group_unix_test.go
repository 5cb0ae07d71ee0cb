//go:build unix

package procgroup

import (
	"bufio"
	"errors"
	"os/exec"
	"syscall"
	"testing"
)

// TestSignalReachesTheGroup: a signal reaches the processes that the process has started.
func TestSignalReachesTheGroup(t *testing.T) {
	for name, set := range map[string]func(*exec.Cmd){
		"set":  Set,
		"bind": func(c *exec.Cmd) { Bind(c, 0) },
	} {
		command := exec.Command("sh", "-c", "sleep 60 & echo started; wait")
		set(command)
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(out)
		if _, err := said.ReadString('\n'); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := Signal(command.Process.Pid, syscall.SIGKILL); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The pipe closes when both processes that hold it have ended.
		if _, err := said.ReadString('\n'); err == nil {
			t.Errorf("%s: it still says something", name)
		}
		var exit *exec.ExitError
		if err := command.Wait(); !errors.As(err, &exit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
