package integration

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"rondo/internal/transcript"
)

// daemon is a command that prints no events: a coordinator, a worker or an etcd.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *transcript.Text
	stderr *transcript.Text
	ended  chan struct{} // closed when the process has ended
	err    error         // of the wait; valid then
	quiet  bool          // a failed test does not show its output
}

// launch starts a command, which is killed at the test's end if it still runs.
func launch(t *testing.T, on *host, env []string, argv ...string) *daemon {
	t.Helper()
	argv = on.argv(argv)
	d := &daemon{t: t, cmd: exec.Command(argv[0], argv[1:]...), stdout: &transcript.Text{},
		stderr: &transcript.Text{}, ended: make(chan struct{})}
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = env, d.stdout, d.stderr
	d.cmd.WaitDelay = 5 * time.Second
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // it may have ended
		<-d.ended
		if t.Failed() && !d.quiet {
			t.Logf("%s (process %d) wrote:\n%s", strings.Join(argv, " "), d.pid(),
				brief(d.stderr.String()))
		}
	})
	return d
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatalf("%v to %s (process %d): %v", s, d.cmd.Path, d.pid(), err)
	}
}

// kill is kill -9, and waits until the process is gone.
func (d *daemon) kill() {
	d.t.Helper()
	d.signal(syscall.SIGKILL)
	<-d.ended
}

// dismiss forgets a process that has ended as it should.
func (d *daemon) dismiss() {
	d.quiet, d.stdout, d.stderr, d.cmd.Stdout, d.cmd.Stderr = true, nil, nil, nil, nil
}

// exitCode waits for the process's end.
func (d *daemon) exitCode() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(eventTimeout):
		d.t.Fatalf("%s did not end within %v; it wrote:\n%s", d.cmd.Path, eventTimeout, d.stderr)
	}
	var exit *exec.ExitError
	if d.err != nil && !errors.As(d.err, &exit) {
		d.t.Fatal(d.err)
	}
	return d.cmd.ProcessState.ExitCode()
}

// await waits for a condition that nothing announces.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(eventTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, eventTimeout)
		}
	}
}

// brief returns a log without the messages about pacing.
func brief(log string) string {
	var out strings.Builder
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "rehearsal: delay for 20ms") {
			out.WriteString(line)
		}
	}
	return out.String()
}
