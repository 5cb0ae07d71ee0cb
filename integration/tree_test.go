package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// calculating is the task tree with arithmetic modulo 3.
func calculating(t *testing.T) exampleTask {
	t.Helper()
	return exampleTask{"tree", write(t, "sums.txt", sums(115)), []string{"accuracy",
		"root_accuracy"}, 0.9, []string{"--embed", "8"}, nil}
}

// sums returns lines of a tree each, whose labels are sums modulo 3.
func sums(lines int) (text string) {
	rng := rand.New(rand.NewPCG(31, 32))
	var grow func(leaves int) (int, string)
	grow = func(leaves int) (int, string) {
		if leaves == 1 {
			n := rng.IntN(3)
			return n, fmt.Sprintf("(%d n%d)", n, n)
		}
		left := 1 + rng.IntN(leaves-1)
		a, one := grow(left)
		b, two := grow(leaves - left)
		return (a + b) % 3, fmt.Sprintf("(%d %s %s)", (a+b)%3, one, two)
	}
	for range lines {
		_, tree := grow(1 + rng.IntN(7))
		text += tree + "\n"
	}
	return text
}

// TestTreeUse: a TreeLSTM learns to add, which a bag of words does not; rondo eval says the same of
// it as training did, and rondo classify adds.
func TestTreeUse(t *testing.T) {
	t.Parallel()
	k := calculating(t)
	reached := map[string]float64{}
	for cell, hidden := range map[string]string{"bag": "8", "lstm": "24"} {
		dir := t.TempDir()
		events := train(t, k.flags("--checkpoint-dir", dir, "--steps", "150", "--tree-cell", cell,
			"--validation-fraction", "0", "--eval-corpus", k.corpus, "--eval-every", "75",
			"--checkpoint-every", "75", "--hidden", hidden)...)
		evals := named(events, "eval")
		last := evals[len(evals)-1]
		reached[cell] = last.number("root_accuracy")
		newest := filepath.Join(dir, "step-00000150")
		code, stdout, stderr := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus,
			"--json")
		var e event
		if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr)
		}
		near(t, []event{e}, []event{last}, append(k.metrics, "loss", "tokens")...)
		if cell == "lstm" {
			added(t, newest)
		}
	}
	if !(reached["lstm"] >= k.reached && reached["bag"] < k.reached) {
		t.Errorf("root_accuracy %v", reached)
	}
}

// added holds rondo classify to some trees.
func added(t *testing.T, checkpoint string) {
	t.Helper()
	code, stdout, stderr := feed(t, "((n1) n1)\n\n(0 (2 n2) n2)", "classify", "--checkpoint",
		checkpoint)
	rows := strings.Split(stdout, "\n")
	if code != 0 || len(rows) != 3 || !strings.HasPrefix(rows[0], "2\t0.") ||
		!strings.HasSuffix(rows[0], "\t((n1) n1)") || !strings.HasPrefix(rows[1], "1\t") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = feed(t, "((n1) n1)\n(0 (2 n2)", "classify", "--checkpoint",
		checkpoint, "--json")
	oneLine(t, code, 2, stderr, "standard input, line 2: column 1: the ( has no )")
	if !strings.HasPrefix(stdout, `{"text":"((n1) n1)","labels":["2"],`+
		`"tree":"(2 (1 n1) (1 n1))",`) {
		t.Errorf("before the wrong line: %s", stdout)
	}
	code, _, stderr = run(t, "eval", "--checkpoint", checkpoint, "--device", "cuda", "--corpus",
		"a.txt")
	oneLine(t, code, 2, stderr, "--task tree computes on the CPU")
}

// TestBalancedTrees: texts with labels train over balanced trees, too.
func TestBalancedTrees(t *testing.T) {
	t.Parallel()
	k, dir := calculating(t), t.TempDir()
	k.corpus = write(t, "moods.tsv", moods(115))
	events := train(t, k.flags("--tree", "balanced", "--tree-cell", "child-sum", "--steps", "120",
		"--checkpoint-dir", dir, "--checkpoint-every", "60", "--eval-every", "60",
		"--validation-fraction", "0", "--eval-corpus", k.corpus)...)
	evals := named(events, "eval")
	if v := evals[len(evals)-1].number("accuracy"); !(v >= k.reached && v <= 1) {
		t.Errorf("accuracy %v", v)
	}
	code, stdout, stderr := feed(t, "the film was awful", "classify", "--checkpoint", dir)
	if code != 0 || !strings.HasPrefix(stdout, "bad\t0.") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// TestTreeWrongInput: bad trees and flags are one line that names the file and the line.
func TestTreeWrongInput(t *testing.T) {
	t.Parallel()
	k := calculating(t)
	open := write(t, "open.txt", "(1 (2 a) b)\n(1 (2 a) b\n")
	dir := t.TempDir()
	train(t, k.flags("--steps", "2", "--eval-every", "0", "--checkpoint-dir", dir)...)
	for name, c := range map[string]struct{ args, want []string }{
		"open bracket": {[]string{"--task", "tree", "--corpus", open},
			[]string{open, "line 2: column 1: the ( has no )"}},
		"a text":       {[]string{"--task", "tree"}, []string{"builtin:opticks", ".ptb, .txt"}},
		"cuda":         {k.flags("--device", "cuda"), []string{"--task tree computes on the CPU"}},
		"layers":       {k.flags("--layers", "3"), []string{"--layers is for", "tree"}},
		"no embedding": {k.flags("--embed", "0"), []string{"--embed 0: trees"}},
		"another cell": {k.flags("--checkpoint-dir", dir, "--tree-cell", "rnn"),
			[]string{"--tree-cell lstm instead of rnn"}},
		"width of a bag": {k.flags("--tree-cell", "bag"), []string{"--hidden 12", "--embed, 8"}},
		"cell of another task": {[]string{"--tree-cell", "rnn"},
			[]string{"--tree-cell is for --task tree"}},
		"a long tree": {k.flags("--max-length", "3"), []string{k.corpus, "--max-length 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run(t, slices.Concat([]string{"train"}, c.args)...)
			oneLine(t, code, 2, stderr, c.want...)
		})
	}
}
