//go:build cuda

package gpu

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
	"strings"
	"testing"
	"time"

	"rondo/local"

	"rondo/compute/cuda/emulator"
)

// Limits of the waits. The emulated driver is some thousand times slower than a GPU.
const (
	runTimeout = 5 * time.Minute // one command
)

// setup is shared by all tests: the commands and the folder of the driver.
type setup struct {
	folder    string
	libraries string // with the emulated driver; empty: there is a GPU
}

var shared setup

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	folder, err := os.MkdirTemp("", "rondo-gpu-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	if shared, err = prepare(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// prepare builds the commands, and the emulated driver if there is no GPU.
func prepare(folder string) (setup, error) {
	s := setup{folder: folder}
	tags := strings.TrimSuffix("cuda,"+os.Getenv("TAGS"), ",") // TAGS is the Makefile's
	build := exec.Command("go", "build", "-buildvcs=false", "-tags", tags, "-o", folder+"/",
		"../../cmd/rondo", "../../cmd/worker")
	if out, err := build.CombinedOutput(); err != nil {
		return s, fmt.Errorf("go build: %w\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(folder, "rondo"), "devices", "-o", "json").Output()
	if err != nil {
		return s, fmt.Errorf("rondo devices: %w", err)
	}
	var found struct{ GPUs []any }
	if err := json.Unmarshal(out, &found); err != nil {
		return s, fmt.Errorf("rondo devices: %w: %s", err, out)
	}
	if len(found.GPUs) == 0 || os.Getenv("RONDO_TEST_EMULATED") != "" {
		s.libraries, err = emulator.Build("")
	}
	return s, err
}

// emulated skips a test that needs a GPU with settings of its own.
func emulated(t *testing.T) {
	t.Helper()
	if shared.libraries == "" {
		t.Skip("this test needs the emulated driver: RONDO_TEST_EMULATED=1")
	}
}

// environment is a process's, with settings NAME=VALUE.
func environment(settings ...string) []string {
	all := append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(shared.folder, "cache"))
	if shared.libraries != "" {
		all = append(all, "LD_LIBRARY_PATH="+shared.libraries+":"+os.Getenv("LD_LIBRARY_PATH"))
	}
	return append(all, settings...)
}

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// run runs a command to its end.
func run(t *testing.T, settings []string, name string, args ...string) result {
	t.Helper()
	return launch(t, settings, name, args...)()
}

// launch starts a command. The returned function waits for its end.
func launch(t *testing.T, settings []string, name string, args ...string) func() result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, filepath.Join(shared.folder, name), args...)
	command.Env, command.WaitDelay = environment(settings...), 5*time.Second
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return func() result {
		t.Helper()
		err := command.Wait()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &errs)
		}
		return result{command.ProcessState.ExitCode(), out.String(), errs.String()}
	}
}

// event is a line of `rondo train --json`.
type event map[string]any

// events are those of a command's standard output that have a name.
func (r result) events(t *testing.T, name string) []event {
	t.Helper()
	var all []event
	lines := bufio.NewScanner(strings.NewReader(r.stdout))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if e["event"] == name {
			all = append(all, e)
		}
	}
	return all
}

// losses is the loss curve of a job that has ended well. A step may be reported twice: by a rank 0
// that then dies, and by the next one.
func (r result) losses(t *testing.T) []float64 {
	t.Helper()
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	var curve []float64
	var last any
	for _, e := range r.events(t, "step") {
		loss, _ := e["loss"].(float64)
		if e["step"] != last {
			curve = append(curve, loss)
		}
		last = e["step"]
	}
	return curve
}

// startEtcd runs an etcd until the test's end and returns its endpoint.
func startEtcd(t *testing.T) string {
	t.Helper()
	etcd, err := local.StartEtcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	return etcd.Endpoint()
}
