package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/internal/port"
)

// oneLine checks a command's exit code, and that it said one line with every wanted part.
func oneLine(t *testing.T, code, wantCode int, stderr string, parts ...string) {
	t.Helper()
	if code != wantCode {
		t.Errorf("exit code %d, want %d", code, wantCode)
	}
	if n := strings.Count(strings.TrimRight(stderr, "\n"), "\n"); n > 0 || stderr == "" {
		t.Errorf("%d lines on standard error, want one:\n%s", n+1, stderr)
	}
	for _, part := range parts {
		if !strings.Contains(stderr, part) {
			t.Errorf("standard error does not say %q:\n%s", part, stderr)
		}
	}
}

func TestWrongInput(t *testing.T) {
	empty := write(t, "empty.txt", "")
	short := write(t, "short.txt", strings.Repeat("abc ", 100))
	invalid := write(t, "latin1.txt", strings.Repeat("x", 1000)+"caf\xe9"+strings.Repeat("x", 1000))
	config := write(t, "job.yaml", "hiden: 12\n")
	for _, c := range []struct {
		name string
		args string
		code int
		want []string
	}{
		{"missing corpus", "train --corpus /nowhere/book.txt", 2, []string{"/nowhere/book.txt"}},
		{"empty corpus", "train --corpus " + empty, 2, []string{empty, "empty"}},
		{"short corpus", "train --corpus " + short, 2, []string{short, "360", "1155", "--batch"}},
		{"invalid UTF-8", "train --corpus " + invalid, 2, []string{invalid, "byte 1003"}},
		{"unknown cell", "train --cell lstmx", 2,
			[]string{"--cell", "rnn, rnn-relu, gru, gru-reset-before, lstm, lstm-peephole"}},
		{"unknown optimizer", "train --optimizer lion", 2,
			[]string{"sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad"}},
		{"unknown init", "train --init zeros", 2, []string{"--init", "orthogonal"}},
		{"unknown flag", "train --hiden 3", 2, []string{"--hiden"}},
		{"unknown key", "train --config " + config, 2, []string{config, "hiden"}},
		{"few lanes", "train --batch 2 --workers 3", 2, []string{"--batch 2", "--workers 3"}},
		{"no GPU", "train --device cuda", 2, []string{"--device cuda"}},
		{"folder that cannot be made", "train --checkpoint-dir /proc/run", 2,
			[]string{"--checkpoint-dir", "/proc/run"}},
		{"nothing but <unk>", "train --min-frequency 100000000", 2, []string{"--min-frequency"}},
		{"etcd without a port", "train --etcd nonsense", 2, []string{"--etcd", "host:port"}},
		{"bad job name", "train --job a/b", 2, []string{"--job", "slash"}},
		{"no checkpoint", "generate --checkpoint /nowhere --prefix a", 2, []string{"/nowhere"}},
		{"no run", "generate --prefix a", 2, []string{"runs/", "rondo train"}},
		{"no run to show", "checkpoint show", 2, []string{"runs/", "rondo train"}},
		{"unknown command", "trian", 2, []string{"trian", "train"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, stderr := run(t, strings.Fields(c.args)...)
			oneLine(t, code, c.code, stderr, c.want...)
		})
	}
}

func TestEtcdUnreachable(t *testing.T) {
	t.Parallel()
	address := port.ForTest(t).Address() // nobody listens there
	code, _, stderr := run(t, append([]string{"train", "--etcd", address}, small()...)...)
	oneLine(t, code, 1, stderr, address, "10s")
	code, _, stderr = runCommand(t, filepath.Join(binaries, "worker"), "--etcd", address,
		"--job", "rondo")
	oneLine(t, code, 1, stderr, address, "10s")
}

func TestCheckpointThatDoesNotFit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	flags := small("--checkpoint-dir", dir, "--checkpoint-every", "10")
	train(t, flags...)
	t.Run("another job", func(t *testing.T) {
		code, _, stderr := run(t, append([]string{"train", "--job", "other"}, flags...)...)
		oneLine(t, code, 2, stderr, dir, "--job rondo instead of other")
	})
	t.Run("another shape", func(t *testing.T) {
		code, _, stderr := run(t, append(append([]string{"train"}, flags...), "--hidden", "25")...)
		oneLine(t, code, 2, stderr, dir, "--hidden 24 instead of 25")
	})
	t.Run("another vocabulary", func(t *testing.T) {
		other := write(t, "other.txt", strings.Repeat("a few letters only. ", 2000))
		code, _, stderr := run(t, append([]string{"train", "--corpus", other}, flags...)...)
		oneLine(t, code, 2, stderr, dir, "another vocabulary")
	})
	t.Run("resume never", func(t *testing.T) {
		code, _, stderr := run(t, append([]string{"train", "--resume", "never"}, flags...)...)
		oneLine(t, code, 2, stderr, dir, "step 20")
	})
	t.Run("missing step", func(t *testing.T) {
		code, _, stderr := run(t, append([]string{"train", "--resume", "15"}, flags...)...)
		oneLine(t, code, 2, stderr, "15", "10 20")
	})
	file := filepath.Join(dir, "step-00000020", "model.safetensors")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	altered := append([]byte(nil), content...)
	altered[len(altered)/2] ^= 1
	for name, damaged := range map[string][]byte{
		"truncated": content[:len(content)-100], "altered": altered} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := run(t, "checkpoint", "verify", dir)
			oneLine(t, code, 1, stderr, "1 of 2")
			if !strings.Contains(stdout, "DAMAGED") || !strings.Contains(stdout, name) {
				t.Errorf("checkpoint verify says:\n%s", stdout)
			}
			if kept, err := os.ReadFile(file); err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("a damaged checkpoint was changed by looking at it: %v", err)
			}
			code, _, stderr = run(t, append([]string{"train", "--resume", "20"}, flags...)...)
			oneLine(t, code, 1, stderr, "model.safetensors", "step-00000020", name, "--resume 10")
			events := train(t, flags...) // goes on from the one before it
			if !slices.ContainsFunc(named(events, "notice"), func(e event) bool {
				return strings.Contains(e.text("text"), "the checkpoint of step 20 is damaged "+
					"(model.safetensors in "+filepath.Dir(file)) &&
					strings.Contains(e.text("text"), "going on from the one of step 10")
			}) {
				t.Errorf("no notice of the damage: %s", tail(events))
			}
			if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, content) {
				t.Errorf("step 20 is not the same when it is computed again from step 10: %v", err)
			}
		})
	}
}

// TestTwoRunsOneFolder: a second run in the folder of one that lives is refused, with its name.
// When the first has died, the second goes on from its newest checkpoint.
func TestTwoRunsOneFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	flags := small("--checkpoint-dir", dir, "--checkpoint-every", "5", "--steps", "100000")
	first := start(t, append([]string{"train"}, flags...)...)
	first.until("a checkpoint", func(e event) bool { return e.name() == "checkpoint" })
	code, _, stderr := run(t, append([]string{"train"}, flags...)...)
	oneLine(t, code, 2, stderr, dir, "is written by another run (process ", "choose another folder")
	first.killAll()
	steps, err := filepath.Glob(filepath.Join(dir, "step-*"))
	if err != nil || len(steps) == 0 {
		t.Fatalf("the first run's checkpoints: %v, %v", steps, err)
	}
	newest := filepath.Base(steps[len(steps)-1])
	second := start(t, append([]string{"train"}, flags...)...)
	step := second.until("a step", func(e event) bool { return e.name() == "step" })
	if next := fmt.Sprintf("step-%08.0f", step.number("step")-1); next != newest {
		t.Errorf("the second run begins after %s, and the newest is %s", next, newest)
	}
	second.killAll()
}

// TestFullDisk: the job trains on when a checkpoint does not fit, keeps the old ones, and fails at
// the end. The disk is a tmpfs of a mount namespace, for which a user namespace is enough.
func TestFullDisk(t *testing.T) {
	if out, err := exec.Command("unshare", "-rm", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace here, so no small disk can be made: %v %s", err, out)
	}
	dir := t.TempDir()
	flags := small("--hidden", "64", "--checkpoint-every", "5", "--checkpoint-keep", "0",
		"--checkpoint-dir", filepath.Join(dir, "run"), "--chunk-timeout", "1s", "--lease-ttl",
		"3s", "--step-timeout", "3s", "--regroup-timeout", "6s")
	script := fmt.Sprintf(`mount -t tmpfs -o size=400k tmpfs %s && %s/rondo train "$@"
code=$?; ls %s/run; exit $code`, dir, binaries, dir)
	code, stdout, stderr := runCommand(t, "unshare", append([]string{"-rm", "sh", "-c", script,
		"sh"}, flags...)...)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(stderr, "no space left on device") {
		t.Errorf("standard error:\n%s", stderr)
	}
	if !strings.Contains(stdout, "step 20/20") {
		t.Errorf("training did not go on to its end:\n%s", stdout)
	}
	if !strings.Contains(stdout, "step-00000005") {
		t.Errorf("the first checkpoint is gone:\n%s", stdout)
	}
	if strings.Contains(stderr, "goroutine ") {
		t.Errorf("a stack trace:\n%s", stderr)
	}
}
