package integration

import (
	"bytes"
	"context"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rondo/local"
)

// TestEveryWorkerKilled: the job ends, reports the reason, and can be resumed.
func TestEveryWorkerKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	flags := small("--steps", "1000000", "--epochs", "0", "--workers", "2", "--checkpoint-dir", dir,
		"--checkpoint-every", "10", "--restarts", "0")
	p := start(t, append([]string{"train"}, flags...)...)
	p.until("a checkpoint", func(e event) bool { return e.name() == "checkpoint" })
	killed := time.Now()
	for _, pid := range p.workers() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if last := p.kept[len(p.kept)-1]; last.name() != "failed" || last.text("reason") == "" {
		t.Errorf("last event: %v", last)
	}
	t.Logf("the job ended %v after the kill", time.Since(killed).Round(time.Millisecond))
	for _, want := range []string{"--resume auto", "every worker process has ended", "--restarts"} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("standard error does not say %q:\n%s", want, p.stderr)
		}
	}
	last := 0.0
	for _, e := range named(p.kept, "checkpoint") {
		last = e.number("step")
	}
	q := start(t, append([]string{"train"}, flags...)...)
	first := q.untilStep(1)
	if first.number("step") <= last-20 || last < 10 {
		t.Errorf("went on at step %v after a checkpoint of step %g", first["step"], last)
	}
	if err := q.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	q.succeed()
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

// TestLeanBinaries: an etcd of one's own, a coordinator and workers by themselves; the submitter
// only watches. One worker has a lesser processor than the other, and the same parameters.
func TestLeanBinaries(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	flags := []string{"--etcd", startEtcd(t), "--job", "lean"}
	var standby []*exec.Cmd
	var logs [3]bytes.Buffer
	for i, name := range []string{"coordinator", "worker", "worker"} {
		cmd := exec.CommandContext(ctx, filepath.Join(binaries, name), flags...)
		cmd.Env, cmd.Stderr, cmd.WaitDelay = environment(t), &logs[i], 5*time.Second
		if i == 2 {
			cmd.Env = append(cmd.Env, "RONDO_CPU_ISA=portable")
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		standby = append(standby, cmd)
	}
	events := train(t, append(flags, small("--workers", "2", "--local-workers", "0",
		"--check-every", "1", "--optimizer", "adam", "--lr", "0.01", "--precision", "bf16")...)...)
	if n := len(named(events, "step")); n != 20 {
		t.Errorf("%d steps, want 20", n)
	}
	if n := len(named(events, "generation")); n != 1 {
		t.Errorf("%d rings: the workers have come to differ", n)
	}
	for i, cmd := range standby {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", cmd.Args[0], err, &logs[i])
		}
	}
}

// TestWorkerIsLean: the worker carries neither an etcd server nor a Kubernetes client.
func TestWorkerIsLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../cmd/worker").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, heavy := range []string{"go.etcd.io/etcd/server", "k8s.io/client-go",
		"github.com/wcharczuk/go-chart/v2", "go.etcd.io/bbolt"} {
		if strings.Contains(string(out), heavy) {
			t.Errorf("cmd/worker links %s", heavy)
		}
	}
}

func TestGenerateAndEvaluate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	const pangram = "the quick brown fox jumps over the lazy dog. "
	text := write(t, "fox.txt", strings.Repeat(pangram, 300))
	train(t, append(slices.Clone(textbook), "--corpus", text, "--hidden", "48", "--batch", "8",
		"--bptt", "16", "--optimizer", "adam", "--lr", "0.02", "--steps", "150",
		"--checkpoint-dir", dir, "--sample-tokens", "0")...)
	code, out, stderr := run(t, "generate", "--checkpoint", dir, "--prefix", "the quick ",
		"--tokens", "40", "--greedy")
	if code != 0 || !strings.HasPrefix(out, pangram) {
		t.Errorf("generate: exit code %d, %q, %s", code, out, stderr)
	}
	code, again, _ := run(t, "generate", "--checkpoint", filepath.Join(dir, "step-00000150"),
		"--prefix", "the ", "--tokens", "30", "--temperature", "2", "--seed", "7")
	_, same, _ := run(t, "generate", "--checkpoint", dir, "--prefix", "the ", "--tokens", "30",
		"--temperature", "2", "--seed", "7")
	if code != 0 || again != same {
		t.Errorf("one seed wrote %q and %q", again, same)
	}
	serveText(t, dir, pangram)
	p := start(t, "eval", "--checkpoint", dir, "--corpus", text)
	events := p.succeed()
	if len(events) != 1 {
		t.Fatalf("eval printed %v", events)
	}
	e := events[0]
	if e.number("tokens") != float64(len(pangram)*300-1) || e.number("perplexity") > 1.2 ||
		math.Abs(e.number("bits_per_character")-e.number("loss")/math.Ln2) > 1e-9 {
		t.Errorf("eval: %v", e)
	}
}

func TestCorpusStats(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "zipf.svg")
	code, out, stderr := run(t, "corpus", "stats", "--top", "3", "--plot", plot)
	if code != 0 || !strings.Contains(out, `"the"`) || !strings.Contains(out, "Zipf") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	if code, _, stderr := run(t, "corpus", "stats", "--plot", "zipf.gif"); code == 0 ||
		!strings.Contains(stderr, ".png or .svg") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}
