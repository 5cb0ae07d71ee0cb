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

// A smallJob is a job without lanes' states, with a checkpoint in its middle and at its end.
type smallJob struct {
	flags   func(extra ...string) []string
	steps   int
	metric  string
	epochs  string // that the audit finds
	sums    bool   // its parameters are sums: any number of workers has the same bytes
	other   []string
	refusal string // of a resume with other flags
}

// checkJob: three workers, one of which is killed, have the curve that one has, and the audit finds
// that each example was read once an epoch. Half of the steps and a resume are one's bytes. A
// resume with other flags is refused. It returns one's checkpoints.
func checkJob(t *testing.T, j smallJob) (alone string) {
	last := fmt.Sprintf("step-%08d", j.steps)
	alone, together, broken, logs := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	one := train(t, j.flags("--workers", "1", "--checkpoint-dir", alone)...)
	want := tensors(t, filepath.Join(alone, last))
	fault := fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(j.steps-2))
	three := train(t, j.flags("--workers", "3", "--checkpoint-dir", together, "--audit-dir", logs,
		"--inject", fault)...)
	nearKilled(t, named(three, "step"), named(one, "step"), "loss")
	nearKilled(t, named(three, "eval"), named(one, "eval"), "loss", "tokens", j.metric)
	if n := len(named(one, "step")); n != j.steps {
		t.Errorf("%d steps", n)
	}
	if got := tensors(t, filepath.Join(together, last)); j.sums && !maps.Equal(got, want) {
		t.Errorf("one worker wrote %v, three wrote %v", want, got)
	}
	if code, stdout, stderr := run(t, "audit", logs); code != 0 ||
		!strings.Contains(stdout, j.epochs) {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	half := []string{"--workers", "1", "--checkpoint-dir", broken}
	train(t, j.flags(append(half, "--steps", fmt.Sprint(j.steps/2))...)...)
	rest := named(train(t, j.flags(half...)...), "step")
	if len(rest) != j.steps-j.steps/2 || rest[0].number("step") != float64(j.steps/2+1) {
		t.Fatalf("%d steps after the resume, the first %v", len(rest), rest)
	}
	if got := tensors(t, filepath.Join(broken, last)); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
	code, _, stderr := run(t, slices.Concat([]string{"train"},
		j.flags("--checkpoint-dir", alone), j.other)...)
	oneLine(t, code, 2, stderr, j.refusal)
	return alone
}

// checkText: rondo eval has a perplexity between these, rondo generate writes letters, and flags of
// other tasks are refused with these texts.
func checkText(t *testing.T, task, checkpoint string, least, most float64,
	refusals map[string]string) {
	code, stdout, stderr := run(t, "eval", "--checkpoint", checkpoint, "--corpus",
		write(t, "a.txt", strings.Repeat("the rays of light are refracted ", 20)), "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if p := e.number("perplexity"); !(p > least && p < most) {
		t.Errorf("perplexity %v", p)
	}
	code, stdout, stderr = run(t, "generate", "--checkpoint", checkpoint, "--prefix", "the",
		"--tokens", "40")
	text := strings.ReplaceAll(strings.TrimSuffix(stdout, "\n"), "<unk>", " ")
	if code != 0 || len(text) != 43 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz ") != "" {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
	for flags, want := range refusals {
		args := append([]string{"train", "--task", task}, strings.Fields(flags)...)
		code, _, stderr := run(t, args...)
		oneLine(t, code, 2, stderr, want)
	}
}

// TestNGram: see checkJob. There are (18000-2) / (12*75) steps, rounded up.
func TestNGram(t *testing.T) {
	t.Parallel()
	checkJob(t, smallJob{ngramFlags, 20, "perplexity", "1 whole epoch", true,
		[]string{"--order", "2"}, "--order 3 instead of 2"})
}

// TestNGramUse: see checkText.
func TestNGramUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	train(t, ngramFlags("--checkpoint-dir", dir, "--smoothing", "jelinek-mercer:0.9")...)
	checkText(t, "ngram", dir, 2, 12, map[string]string{
		"--device cuda": "--device cuda: --task ngram computes on the CPU",
		"--epochs 2":    "reads the data once", "--cell gru": "--cell is for --task lm",
		"--smoothing katz": `--smoothing "katz"`, "--lr 1": "--lr is for --task lm",
		"--max-tokens 2 --validation-fraction 0": "lower --order",
	})
}
