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

// reservoirFlags are those of a small job of the task reservoir.
func reservoirFlags(corpus string, extra ...string) []string {
	return slices.Concat([]string{"--task", "reservoir", "--corpus", corpus, "--hidden", "40",
		"--target", "phase", "--washout", "50", "--batch", "6", "--bptt", "20",
		"--validation-fraction", "0.2", "--eval-every", "5", "--checkpoint-every", "5",
		"--checkpoint-keep", "0", "--lease-ttl", "2s", "--chunk-timeout", "1s"}, extra)
}

// reservoirEnd is the last of reservoirFlags' steps for 1500 rows: (1200-50) / (6*20), rounded up.
const reservoirEnd = "step-00000010"

// TestReservoirParity: three workers, one of which is killed, write the bytes that one writes, and
// the audit finds that each example was read once.
func TestReservoirParity(t *testing.T) {
	t.Parallel()
	corpus, alone, together, logs := noisySine(t, 1500), t.TempDir(), t.TempDir(), t.TempDir()
	one := train(t, reservoirFlags(corpus, "--workers", "1", "--checkpoint-dir", alone)...)
	three := train(t, reservoirFlags(corpus, "--workers", "3", "--checkpoint-dir", together,
		"--audit-dir", logs, "--inject",
		fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(8)))...)
	near(t, once(named(three, "step")), named(one, "step"), "loss")
	near(t, once(named(three, "eval")), named(one, "eval"), "loss", "mse", "tokens")
	got := tensors(t, filepath.Join(together, reservoirEnd))
	if want := tensors(t, filepath.Join(alone, reservoirEnd)); !maps.Equal(got, want) {
		t.Errorf("one worker wrote %v, three wrote %v", want, got)
	}
	if code, stdout, stderr := run(t, "audit", logs); code != 0 ||
		!strings.Contains(stdout, "1 whole epoch") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// TestReservoirResume: 10 steps, and 5 steps and 5 more, are the same bytes. Another reservoir does
// not continue the job.
func TestReservoirResume(t *testing.T) {
	t.Parallel()
	corpus, straight, broken := noisySine(t, 1500), t.TempDir(), t.TempDir()
	train(t, reservoirFlags(corpus, "--checkpoint-dir", straight)...)
	train(t, reservoirFlags(corpus, "--checkpoint-dir", broken, "--steps", "5")...)
	steps := named(train(t, reservoirFlags(corpus, "--checkpoint-dir", broken)...), "step")
	if len(steps) != 5 || steps[0].number("step") != 6 {
		t.Fatalf("%d steps after the resume, the first %v", len(steps), steps)
	}
	got := tensors(t, filepath.Join(broken, reservoirEnd))
	if want := tensors(t, filepath.Join(straight, reservoirEnd)); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
	code, _, stderr := run(t, append([]string{"train"}, reservoirFlags(corpus, "--leak", "0.2",
		"--checkpoint-dir", straight)...)...)
	oneLine(t, code, 2, stderr, "--leak 0.5 instead of 0.2")
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
