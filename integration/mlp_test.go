package integration

import (
	"slices"
	"testing"
)

// mlpFlags are those of a small job of the task mlp, of 18 steps.
func mlpFlags(extra ...string) []string {
	return slices.Concat([]string{"--task", "mlp", "--max-tokens", "12000", "--normalize",
		"letters", "--batch", "12", "--bptt", "50", "--order", "4", "--hidden", "24", "--embed",
		"8", "--layers", "1", "--epochs", "1", "--eval-every", "9", "--checkpoint-every", "9",
		"--checkpoint-keep", "0", "--clip-scope", "global", "--lr-schedule", "constant",
		"--sample-tokens", "20",
		"--lease-ttl", "2s", "--chunk-timeout", "1s"}, extra)
}

// TestMLP: see checkJob and checkText.
func TestMLP(t *testing.T) {
	t.Parallel()
	dir := checkJob(t, smallJob{mlpFlags, 18, "perplexity", "1 whole epoch", false,
		[]string{"--order", "5"}, "--order 4 instead of 5"})
	checkText(t, "mlp", dir, 2, 25, map[string]string{"--cell gru": "--cell is for --task lm",
		"--order 1": "--order 1: a perceptron reads"})
}
