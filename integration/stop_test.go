package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// endless is a job that only a signal ends.
func endless(extra ...string) []string {
	return append([]string{"train"}, small(append([]string{"--steps", "1000000", "--epochs", "0"},
		extra...)...)...)
}

// startPlain runs rondo without --json in a folder, its standard output to a file.
func startPlain(t *testing.T, dir string, args ...string) (cmd *exec.Cmd, output string) {
	t.Helper()
	output = filepath.Join(t.TempDir(), "output")
	file, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	cmd = exec.Command(filepath.Join(binaries, "rondo"), args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = environment(t), dir, file, file
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, output
}

// awaitText waits until a file has the text, and returns all of it.
func awaitText(t *testing.T, path, want string) string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), want) {
			return string(text)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q did not come; the output is:\n%s", want, text)
		}
		<-tick.C
	}
}

// TestTheResumeCommandWorks: for any flags of the job, the command that Ctrl-C prints continues
// from the saved step.
func TestTheResumeCommandWorks(t *testing.T) {
	for _, c := range []struct{ name, flags string }{
		{"no folder", ""},
		{"a folder", "--checkpoint-dir run"},
		{"from a step", "--checkpoint-dir run --checkpoint-every 5 --checkpoint-keep 0 --resume 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			flags := strings.Fields(c.flags)
			if strings.Contains(c.flags, "--resume 5") {
				before := append([]string{"train"}, small(flags[:len(flags)-2]...)...)
				cmd, output := startPlain(t, dir, append(before, "--steps", "5")...)
				if err := cmd.Wait(); err != nil {
					t.Fatalf("%v\n%s", err, awaitText(t, output, ""))
				}
			}
			cmd, output := startPlain(t, dir, endless(append([]string{"--checkpoint-dir", ""},
				flags...)...)...)
			awaitText(t, output, "step 1")
			awaitText(t, output, "epoch")
			if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, awaitText(t, output, ""))
			}
			text := awaitText(t, output, "to go on from step ")
			var step int64
			_, hint, _ := strings.Cut(text, "to go on from step ")
			if _, err := fmt.Sscanf(hint, "%d:", &step); err != nil {
				t.Fatalf("%v in %q", err, hint)
			}
			line := strings.TrimSpace(strings.SplitN(hint, "\n", 3)[1])
			again := exec.Command("sh", "-c", fmt.Sprintf("%s --steps %d", line, step+2))
			again.Env, again.Dir = environment(t), dir
			out, err := again.CombinedOutput()
			if err != nil || !strings.Contains(string(out), fmt.Sprintf("after step %d:", step)) ||
				!strings.Contains(string(out), fmt.Sprintf("done after step %d", step+2)) {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		})
	}
}

// TestCrashedJobIsResumedOverAnEtcdOfOnesOwn: the keys that a power cut leaves in etcd do not lock
// the job.
func TestCrashedJobIsResumedOverAnEtcdOfOnesOwn(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	flags := []string{"--etcd", startEtcd(t), "--job", "again", "--lease-ttl", "2s",
		"--chunk-timeout", "1s",
		"--checkpoint-dir", dir, "--checkpoint-every", "10"}
	p := start(t, endless(flags...)...)
	p.until("a checkpoint", func(e event) bool { return e.name() == "checkpoint" })
	t.Run("while it runs", func(t *testing.T) {
		code, _, stderr := run(t, endless(flags...)...)
		waiting, refusal, _ := strings.Cut(stderr, "\n")
		if !strings.Contains(waiting, "waiting 4s to see whether it is alive") {
			t.Errorf("standard error does not say first what it waits for:\n%s", stderr)
		}
		oneLine(t, code, 2, refusal, `"again"`, "running already")
	})
	p.killAll()
	q := start(t, endless(flags...)...)
	if first := q.untilStep(1).number("step"); first <= 10 {
		t.Errorf("went on at step %g", first)
	}
	if err := q.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	q.succeed()
}

// TestWorkerThatDiesBeforeItJoins: it is started again, and the job starts with all workers.
func TestWorkerThatDiesBeforeItJoins(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := start(t, endless("--workers", "3", "--checkpoint-dir", t.TempDir())...)
	// Kill the first worker process that appears: at its start it cannot have joined.
	victim := 0
	for victim == 0 && time.Since(began) < time.Minute {
		victim = workerOf(p.cmd.Process.Pid)
	}
	if victim <= 0 {
		t.Fatal("no worker process appeared")
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := p.untilStep(3); e.number("world_size") != 3 {
		t.Errorf("the job started with %g workers", e.number("world_size"))
	}
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.succeed()
	want := fmt.Sprintf("process %d ended", victim)
	if !strings.Contains(p.stderr.String(), want) {
		t.Errorf("standard error does not say %q:\n%s", want, p.stderr)
	}
}

// workerOf returns a worker process of a command, or 0. Children are listed by the thread that
// forked them; the Go runtime has others, for a moment.
func workerOf(pid int) int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread that has ended has no children
		for _, child := range strings.Fields(string(text)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if worker, err := strconv.Atoi(child); err == nil &&
				strings.Contains(string(line), "\x00worker\x00") {
				return worker
			}
		}
	}
	return 0
}

// TestClosedOutputStopsTheJob: `rondo train | head` saves its state.
func TestClosedOutputStopsTheJob(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	line := fmt.Sprintf("%s/rondo train %s --json | head -n 5", binaries,
		strings.Join(endless("--checkpoint-dir", dir)[1:], " "))
	code, stdout, stderr := runCommand(t, "sh", "-c", line)
	if code != 0 || strings.Count(stdout, "\n") != 5 {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if !strings.Contains(stderr, "broken pipe") {
		t.Errorf("standard error:\n%s", stderr)
	}
	if code, out, _ := run(t, "checkpoint", "verify", dir); code != 0 {
		t.Errorf("no sound checkpoint: %s", out)
	}
}

// TestWorkersEndWithTheirParent: after kill -9 of the command alone, no worker trains on beside
// the job that is started anew.
func TestWorkersEndWithTheirParent(t *testing.T) {
	t.Parallel()
	p := start(t, endless("--checkpoint-dir", t.TempDir())...)
	p.untilStep(3)
	workers := p.workers()
	if len(workers) != 2 {
		t.Fatalf("workers %v", workers)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, pid := range workers {
		for alive(pid) {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("worker %d lives on", pid)
			}
		}
	}
}

// alive reports whether a process runs. One that has ended but was not waited for does not.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(state, "Z")
}
