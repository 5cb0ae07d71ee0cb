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

// ngramFlags are those of a small job of the task ngram.
func ngramFlags(extra ...string) []string {
	return slices.Concat([]string{"--task", "ngram", "--max-tokens", "20000", "--normalize",
		"letters", "--batch", "12", "--bptt", "75", "--order", "3", "--eval-every", "10",
		"--checkpoint-every", "10", "--checkpoint-keep", "0", "--sample-tokens", "20",
		"--lease-ttl", "2s", "--chunk-timeout", "1s"}, extra)
}

// checkSums: three workers, one of which is killed in a job of so many steps, write the bytes that
// one writes, and the audit finds that each example was read once. Half of the steps and a resume
// are the same bytes too, and a resume with other flags is refused with this text.
func checkSums(t *testing.T, steps int, flags func(extra ...string) []string, metric string,
	other []string, refusal string) {
	t.Parallel()
	last := fmt.Sprintf("step-%08d", steps)
	alone, together, broken, logs := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	one := train(t, flags("--workers", "1", "--checkpoint-dir", alone)...)
	want := tensors(t, filepath.Join(alone, last))
	fault := fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(steps-2))
	three := train(t, flags("--workers", "3", "--checkpoint-dir", together, "--audit-dir", logs,
		"--inject", fault)...)
	nearKilled(t, named(three, "step"), named(one, "step"), "loss")
	nearKilled(t, named(three, "eval"), named(one, "eval"), "loss", "tokens", metric)
	if n := len(named(one, "step")); n != steps {
		t.Errorf("%d steps", n)
	}
	if got := tensors(t, filepath.Join(together, last)); !maps.Equal(got, want) {
		t.Errorf("one worker wrote %v, three wrote %v", want, got)
	}
	if code, stdout, stderr := run(t, "audit", logs); code != 0 ||
		!strings.Contains(stdout, "1 whole epoch") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	train(t, flags("--checkpoint-dir", broken, "--steps", fmt.Sprint(steps/2))...)
	rest := named(train(t, flags("--checkpoint-dir", broken)...), "step")
	if len(rest) != steps-steps/2 || rest[0].number("step") != float64(steps/2+1) {
		t.Fatalf("%d steps after the resume, the first %v", len(rest), rest)
	}
	if got := tensors(t, filepath.Join(broken, last)); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
	code, _, stderr := run(t, slices.Concat([]string{"train"},
		flags("--checkpoint-dir", alone), other)...)
	oneLine(t, code, 2, stderr, refusal)
}

// TestNGramSums: see checkSums. There are (18000-2) / (12*75) steps, rounded up.
func TestNGramSums(t *testing.T) {
	checkSums(t, 20, ngramFlags, "perplexity", []string{"--order", "2"}, "--order 3 instead of 2")
}

// TestNGramUse: rondo eval has a perplexity, rondo generate writes letters, and what a network
// needs is refused.
func TestNGramUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	train(t, ngramFlags("--checkpoint-dir", dir, "--smoothing", "jelinek-mercer:0.9")...)
	code, stdout, stderr := run(t, "eval", "--checkpoint", dir, "--corpus",
		write(t, "a.txt", strings.Repeat("the rays of light are refracted ", 20)), "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if p := e.number("perplexity"); !(p > 2 && p < 12) {
		t.Errorf("perplexity %v", p)
	}
	code, stdout, stderr = run(t, "generate", "--checkpoint", dir, "--prefix", "the", "--tokens",
		"40")
	text := strings.TrimSuffix(stdout, "\n")
	if code != 0 || len(text) != 43 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz ") != "" {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
	for flags, want := range map[string]string{
		"--device cuda": "--device cuda: --task ngram computes on the CPU",
		"--epochs 2":    "reads the data once", "--cell gru": "--cell is for --task lm",
		"--smoothing katz": `--smoothing "katz"`, "--lr 1": "--lr is for --task lm",
		"--max-tokens 2 --validation-fraction 0": "lower --order",
	} {
		args := append([]string{"train", "--task", "ngram"}, strings.Fields(flags)...)
		code, _, stderr := run(t, args...)
		oneLine(t, code, 2, stderr, want)
	}
}
