package integration

import (
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

// TestHMM: see checkJob and checkText. rondo tag has a state for each letter.
func TestHMM(t *testing.T) {
	t.Parallel()
	dir := checkJob(t, smallJob{hmmFlags, 12, "perplexity", "12 whole epochs", false,
		[]string{"--states", "6"}, "--states 5 instead of 6"})
	checkText(t, "hmm", dir, 5, 20, map[string]string{
		"--device cuda": "--device cuda: --task hmm computes on the CPU",
		"--cell gru":    "--cell is for --task lm", "--order 2": "--order is for --task ngram",
	})
	code, stdout, stderr := feed(t, "light rays\n", "tag", "--checkpoint", dir)
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != 12 || !strings.HasPrefix(lines[0], "l\t") ||
		!strings.HasPrefix(lines[5], " \t") {
		t.Errorf("exit code %d, %q: %s", code, stdout, stderr)
	}
}
