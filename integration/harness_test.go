// Package integration runs the real commands: processes, etcd, gRPC on loopback, signals, files.
// Nothing imports it; it may import everything.
package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rondo/internal/transcript"
)

// Limits of the waits.
const (
	runTimeout   = 5 * time.Minute // one command
	eventTimeout = 2 * time.Minute // for an event that was promised
	tailEvents   = 30
)

// The exit codes of a job's processes, besides 0, 1 for a failure of their own, and 2 for usage.
const (
	exitJob  = 3 // the job has failed
	exitLeft = 4 // asked to go before the job's end
)

// binaries is the folder with rondo, worker and coordinator, built once for all tests.
var binaries string

func TestMain(m *testing.M) {
	if config := os.Getenv(etcdVariable); config != "" {
		os.Exit(serveEtcd(config))
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "rondo-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "../cmd/rondo",
		"../cmd/worker", "../cmd/coordinator")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	binaries = dir
	return m.Run()
}

// event is a line of `rondo train --json`.
type event map[string]any

func (e event) name() string { return e.text("event") }

func (e event) text(key string) string {
	s, _ := e[key].(string)
	return s
}

func (e event) number(key string) float64 {
	v, _ := e[key].(float64)
	return v
}

// process is a running command whose standard output is events.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	events chan event
	stderr *transcript.Text
	kept   []event
}

// start runs `rondo ARGS --json` with its current folder and cache in folders of the test.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startOn(t, nil, args...)
}

// startOn is start on a host of a test network; nil is this machine.
func startOn(t *testing.T, on *host, args ...string) *process {
	t.Helper()
	return startFor(t, on, runTimeout, args...)
}

// startFor is startOn with another limit than a command usually has.
func startFor(t *testing.T, on *host, limit time.Duration, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	argv := on.argv(append([]string{filepath.Join(binaries, "rondo")}, append(args, "--json")...))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = environment(t), t.TempDir()
	cmd.WaitDelay = 5 * time.Second
	p := &process{t: t, cmd: cmd, events: make(chan event, 1<<16), stderr: &transcript.Text{}}
	cmd.Stderr = p.stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() {
		defer close(p.events)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Errorf("standard output has a line that is not JSON: %q", lines.Text())
				continue
			}
			p.events <- e
		}
	}()
	return p
}

// environment keeps a command's caches out of the user's.
func environment(t *testing.T) []string {
	t.Helper()
	return append(os.Environ(), "XDG_CACHE_HOME="+cacheDir(t))
}

// cacheDir is one for all tests, so that a corpus is tokenised once.
func cacheDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(binaries, "cache")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// until reads events until one for which fn is true.
func (p *process) until(what string, fn func(event) bool) event {
	p.t.Helper()
	timeout := time.NewTimer(eventTimeout)
	defer timeout.Stop()
	for {
		select {
		case e, ok := <-p.events:
			if !ok {
				p.t.Fatalf("the command ended before %s; last events:\n%s\nstandard error:\n%s",
					what, tail(p.kept), p.stderr)
			}
			p.kept = append(p.kept, e)
			if fn(e) {
				return e
			}
		case <-timeout.C:
			p.t.Fatalf("%s did not come within %v; last events:\n%s\nstandard error:\n%s", what,
				eventTimeout, tail(p.kept), p.stderr)
		}
	}
}

// tail returns the last events, without steps and pacing, for a failure's text.
func tail(events []event) string {
	var lines []string
	for _, e := range events {
		if e.name() != "step" && !strings.HasPrefix(e.text("text"), "rehearsal: delay for 20ms") {
			lines = append(lines, fmt.Sprint(map[string]any(e)))
		}
	}
	return strings.Join(lines[max(0, len(lines)-tailEvents):], "\n")
}

// untilStep reads events until the step.
func (p *process) untilStep(step float64) event {
	p.t.Helper()
	return p.until(fmt.Sprintf("step %g", step), func(e event) bool {
		return e.name() == "step" && e.number("step") >= step
	})
}

// wait reads all events and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	for e := range p.events {
		p.kept = append(p.kept, e)
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// succeed waits and fails the test if the command did.
func (p *process) succeed() []event {
	p.t.Helper()
	if code := p.wait(); code != 0 {
		p.t.Fatalf("%v: exit code %d; standard error:\n%s", p.cmd.Args, code, p.stderr)
	}
	return p.kept
}

// workers returns the process ids of the workers seen so far.
func (p *process) workers() []int {
	var pids []int
	for _, e := range p.kept {
		if e.name() == "worker" {
			pids = append(pids, int(e.number("pid")))
		}
	}
	return pids
}

// killAll ends the command and its workers as a power cut would.
func (p *process) killAll() {
	p.t.Helper()
	for _, pid := range append(p.workers(), p.cmd.Process.Pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			p.t.Errorf("kill -9 %d: %v", pid, err)
		}
	}
	p.wait()
}

// train runs `rondo train` to its end.
func train(t *testing.T, args ...string) []event {
	t.Helper()
	return start(t, append([]string{"train"}, args...)...).succeed()
}

// named returns the events of a name.
func named(events []event, name string) []event {
	var out []event
	for _, e := range events {
		if e.name() == name {
			out = append(out, e)
		}
	}
	return out
}

// run executes rondo and returns its exit code and output.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runCommand(t, filepath.Join(binaries, "rondo"), args...)
}

func runCommand(t *testing.T, name string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = environment(t), t.TempDir()
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &errs)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// small is a job that takes a moment.
func small(extra ...string) []string {
	return slices.Concat(textbook, []string{"--max-tokens", "20000", "--hidden", "24", "--batch",
		"12", "--bptt", "10", "--lr", "0.5", "--steps", "20", "--sample-tokens", "20",
		"--checkpoint-dir", "none"}, extra)
}

// textbook are flags of a job of one layer and plain SGD, without a validation split.
var textbook = []string{"--layers", "1", "--dropout", "0", "--optimizer", "sgd", "--lr", "1",
	"--lr-schedule", "constant", "--validation-fraction", "0"}

// write makes a file in a folder of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
