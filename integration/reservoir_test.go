package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// reservoirFlags are those of a small job of the task reservoir.
func reservoirFlags(corpus string, extra ...string) []string {
	return slices.Concat([]string{"--task", "reservoir", "--corpus", corpus, "--hidden", "40",
		"--target", "phase", "--washout", "50", "--batch", "6", "--bptt", "20",
		"--validation-fraction", "0.2", "--eval-every", "5", "--checkpoint-every", "5",
		"--checkpoint-keep", "0", "--lease-ttl", "2s", "--chunk-timeout", "1s"}, extra)
}

// TestReservoir: see checkJob. There are (1200-50) / (6*20) steps, rounded up.
func TestReservoir(t *testing.T) {
	t.Parallel()
	corpus := noisySine(t, 1500)
	flags := func(extra ...string) []string { return reservoirFlags(corpus, extra...) }
	checkJob(t, smallJob{flags, 10, "mse", "1 whole epoch", true, []string{"--leak", "0.2"},
		"--leak 0.5 instead of 0.2"})
}

// TestReservoirUse: the cosine is predicted, also some steps ahead; rondo predict writes it, and
// what a trained network needs is refused.
func TestReservoirUse(t *testing.T) {
	t.Parallel()
	corpus, dir := noisySine(t, 1500), t.TempDir()
	train(t, reservoirFlags(corpus, "--checkpoint-dir", dir, "--ridge", "0.01")...)
	code, stdout, stderr := run(t, "eval", "--checkpoint", dir, "--corpus", corpus, "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if one, four := e.number("mse"), e.number("mse_4_ahead"); !(one < 0.02 && four < 0.05) {
		t.Errorf("mse %v, 4 steps ahead %v", one, four)
	}
	code, stdout, stderr = run(t, "predict", "--checkpoint", dir, "--corpus", corpus)
	if code != 0 || !strings.HasPrefix(stdout, "row,phase,phase_predicted\n1,") {
		t.Errorf("exit code %d: %.80s %s", code, stdout, stderr)
	}
	for flags, want := range map[string]string{
		"--device cuda": "--device cuda: --task reservoir computes on the CPU",
		"--epochs 2":    "reads the data once", "--layers 3": "--layers is for --task lm",
		"--washout 5000": "--washout 5000 leaves none", "--hidden 9000": "--hidden 9000",
	} {
		args := append([]string{"train", "--task", "reservoir", "--corpus", corpus},
			strings.Fields(flags)...)
		code, _, stderr := run(t, args...)
		oneLine(t, code, 2, stderr, want)
	}
}
