package k8s

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"rondo/internal/transcript"
)

// background is a command that goes on while the test does other things.
type background struct {
	t         *testing.T
	cmd       *exec.Cmd
	out, told transcript.Text // standard output and error
	done      chan struct{}
}

// begin starts a command. It ends with the test at the latest.
func begin(t *testing.T, name string, args ...string) *background {
	t.Helper()
	b := &background{t: t, cmd: exec.CommandContext(t.Context(), name, args...),
		done: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr, b.cmd.WaitDelay = &b.out, &b.told, time.Second
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.done)
		_ = b.cmd.Wait() // its exit code tells
	}()
	t.Cleanup(func() { <-b.done })
	return b
}

// begin starts `rondo VERB` for the job.
func (j *job) begin(verb string, args ...string) *background {
	j.t.Helper()
	file, err := command()
	if err != nil {
		j.t.Fatal(err)
	}
	return begin(j.t, file, append([]string{verb, "--job", j.name, "-n", j.namespace.name},
		args...)...)
}

// says waits until the command has printed a text, and returns the output.
func (b *background) says(what string, find func(out string) string) string {
	b.t.Helper()
	start, found := time.Now(), ""
	for found == "" {
		select {
		case <-b.done:
			b.t.Fatalf("%v has ended:\n%s%s", b.cmd.Args, &b.out, &b.told)
		case <-time.After(pollInterval):
		}
		if found = find(b.out.String()); found == "" && time.Since(start) > time.Minute {
			b.t.Fatalf("%v does not say %s:\n%s%s", b.cmd.Args, what, &b.out, &b.told)
		}
	}
	return found
}

// interrupt is Ctrl-C.
func (b *background) interrupt() {
	b.t.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGINT); err != nil {
		b.t.Error(err)
	}
}

// ends waits until the command has ended, well.
func (b *background) ends() {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(time.Minute):
		b.t.Fatalf("%v goes on:\n%s%s", b.cmd.Args, &b.out, &b.told)
	}
	if code := b.cmd.ProcessState.ExitCode(); code != 0 {
		b.t.Errorf("%v exits with %d:\n%s%s", b.cmd.Args, code, &b.out, &b.told)
	}
}
