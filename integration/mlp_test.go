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

// mlpFlags are those of a small job of the task mlp, of 18 steps.
func mlpFlags(extra ...string) []string {
	return slices.Concat([]string{"--task", "mlp", "--max-tokens", "12000", "--normalize",
		"letters", "--batch", "12", "--bptt", "50", "--order", "4", "--hidden", "24", "--embed",
		"8", "--layers", "1", "--epochs", "1", "--eval-every", "9", "--checkpoint-every", "9",
		"--checkpoint-keep", "0", "--clip-scope", "global", "--sample-tokens", "20",
		"--lease-ttl", "2s", "--chunk-timeout", "1s"}, extra)
}

// TestMLP: three workers, one of which is killed, have the curve that one has, and the audit finds
// that each part of the text was read once. Half of the steps and a resume are one's bytes.
func TestMLP(t *testing.T) {
	t.Parallel()
	alone, broken, together, logs := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	one := train(t, mlpFlags("--workers", "1", "--checkpoint-dir", alone)...)
	fault := fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(16))
	three := train(t, mlpFlags("--workers", "3", "--checkpoint-dir", together, "--audit-dir", logs,
		"--inject", fault)...)
	nearKilled(t, named(three, "step"), named(one, "step"), "loss")
	nearKilled(t, named(three, "eval"), named(one, "eval"), "loss", "tokens", "perplexity")
	if n := len(named(one, "step")); n != 18 {
		t.Errorf("%d steps", n)
	}
	if code, stdout, stderr := run(t, "audit", logs); code != 0 ||
		!strings.Contains(stdout, "1 whole epoch") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	schedule := []string{"--workers", "1", "--lr-schedule", "constant"}
	whole := t.TempDir()
	train(t, slices.Concat(mlpFlags("--checkpoint-dir", whole), schedule)...)
	train(t, slices.Concat(mlpFlags("--checkpoint-dir", broken, "--steps", "9"), schedule)...)
	train(t, slices.Concat(mlpFlags("--checkpoint-dir", broken), schedule)...)
	want := tensors(t, filepath.Join(whole, "step-00000018"))
	if got := tensors(t, filepath.Join(broken, "step-00000018")); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
	code, stdout, stderr := run(t, "eval", "--checkpoint", alone, "--corpus",
		write(t, "a.txt", strings.Repeat("the rays of light are refracted ", 20)), "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil ||
		!(e.number("perplexity") > 2 && e.number("perplexity") < 25) {
		t.Errorf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	code, stdout, stderr = run(t, "generate", "--checkpoint", alone, "--prefix", "t", "--tokens",
		"40")
	if text := strings.TrimSuffix(stdout, "\n"); code != 0 || len(text) < 41 ||
		!strings.HasPrefix(text, "t") {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
	for flags, want := range map[string]string{"--cell gru": "--cell is for --task lm",
		"--order 1": "--order 1: a perceptron reads", "--order 5": "--order 4 instead of 5"} {
		args := slices.Concat([]string{"train"}, mlpFlags("--checkpoint-dir", alone),
			strings.Fields(flags))
		code, _, stderr := run(t, args...)
		oneLine(t, code, 2, stderr, want)
	}
}
