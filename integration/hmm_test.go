package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hmmFlags are those of a small job of the task hmm: 12 iterations, each a step of 12 lanes that
// read 1,500 tokens.
func hmmFlags(extra ...string) []string {
	return slices.Concat([]string{"--task", "hmm", "--max-tokens", "20000", "--normalize",
		"letters", "--batch", "12", "--states", "5", "--epochs", "12", "--checkpoint-every", "6",
		"--checkpoint-keep", "0", "--sample-tokens", "20", "--lease-ttl", "2s", "--chunk-timeout",
		"1s"}, extra)
}

// TestHMM: three workers, one of which is killed, have the curve that one has, and the audit finds
// that each sequence was read once an epoch. Half of the steps and a resume are one's bytes.
func TestHMM(t *testing.T) {
	t.Parallel()
	alone, broken, together, logs := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	one := train(t, hmmFlags("--workers", "1", "--checkpoint-dir", alone)...)
	fault := fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(10))
	three := train(t, hmmFlags("--workers", "3", "--checkpoint-dir", together, "--audit-dir", logs,
		"--inject", fault)...)
	nearKilled(t, named(three, "step"), named(one, "step"), "loss")
	nearKilled(t, named(three, "eval"), named(one, "eval"), "loss", "tokens", "perplexity")
	if n := len(named(one, "eval")); n != 12 {
		t.Errorf("%d evaluations", n)
	}
	if code, stdout, stderr := run(t, "audit", logs); code != 0 ||
		!strings.Contains(stdout, "12 whole epochs") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	train(t, hmmFlags("--workers", "1", "--checkpoint-dir", broken, "--steps", "6")...)
	train(t, hmmFlags("--workers", "1", "--checkpoint-dir", broken)...)
	want := tensors(t, filepath.Join(alone, "step-00000012"))
	if got := tensors(t, filepath.Join(broken, "step-00000012")); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
	code, _, stderr := run(t, slices.Concat([]string{"train"},
		hmmFlags("--checkpoint-dir", alone), []string{"--states", "6"})...)
	oneLine(t, code, 2, stderr, "--states 5 instead of 6")
}

// TestHMMUse: rondo eval has a perplexity, rondo generate writes letters, rondo tag has a state for
// each letter, and what a network needs is refused.
func TestHMMUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	train(t, hmmFlags("--checkpoint-dir", dir)...)
	code, stdout, stderr := run(t, "eval", "--checkpoint", dir, "--corpus",
		write(t, "a.txt", strings.Repeat("the rays of light are refracted ", 20)), "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if p := e.number("perplexity"); !(p > 5 && p < 20) {
		t.Errorf("perplexity %v", p)
	}
	code, stdout, stderr = run(t, "generate", "--checkpoint", dir, "--prefix", "the", "--tokens",
		"40")
	text := strings.TrimSuffix(stdout, "\n")
	if code != 0 || len(text) != 43 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz ") != "" {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
	code, stdout, stderr = feed(t, "light rays\n", "tag", "--checkpoint", dir)
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != 12 || !strings.HasPrefix(lines[0], "l\t") ||
		!strings.HasPrefix(lines[5], " \t") {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
	for flags, want := range map[string]string{
		"--device cuda": "--device cuda: --task hmm computes on the CPU",
		"--cell gru":    "--cell is for --task lm", "--order 2": "--order is for --task ngram",
	} {
		args := append([]string{"train", "--task", "hmm"}, strings.Fields(flags)...)
		code, _, stderr := run(t, args...)
		oneLine(t, code, 2, stderr, want)
	}
}
