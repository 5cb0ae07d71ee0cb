package integration

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"testing"
)

// TestRegularised trains with every regulariser, segments of random lengths and an average. A job
// that is resumed writes the tensors of one that was not, the audit proves its parameters in its
// checkpoints, and eval reads a text with a cache and dynamic evaluation.
func TestRegularised(t *testing.T) {
	t.Parallel()
	straight, resumed, logs := t.TempDir(), t.TempDir(), t.TempDir()
	flags := func(dir string, more ...string) []string {
		return append(small("--embed", "16", "--dropout-words", "0.1", "--weight-drop", "0.3",
			"--dropout-output", "0.2", "--activation-l2", "2", "--temporal-l2", "1", "--average",
			"ema:0.9", "--bptt", "24", "--bptt-random", "--steps", "10", "--checkpoint-dir", dir),
			more...)
	}
	train(t, flags(straight)...)
	train(t, flags(resumed, "--steps", "5", "--audit-dir", logs)...)
	train(t, flags(resumed, "--audit-dir", logs)...)
	const last = "step-00000010"
	want, got := tensors(t, filepath.Join(straight, last)), tensors(t, filepath.Join(resumed, last))
	if !maps.Equal(got, want) {
		t.Errorf("straight %v, resumed %v", want, got)
	}
	code, stdout, stderr := run(t, "audit", logs, "--checkpoint-dir", resumed)
	if code != 0 {
		t.Errorf("audit: exit code %d\n%s%s", code, stdout, stderr)
	}
	text := write(t, "text.txt", "the rays of light are bent by the glass of the prism\n")
	eval := func(more ...string) float64 {
		t.Helper()
		code, stdout, stderr := run(t, append([]string{"eval", "--checkpoint", resumed, "--corpus",
			text, "--rows", "1", "--json"}, more...)...)
		var e event
		if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil ||
			!(e.number("loss") > 0) {
			t.Fatalf("eval: exit code %d, %v\n%s%s", code, err, stdout, stderr)
		}
		return e.number("loss")
	}
	if eval("--dynamic", "0.1", "--cache", "50") == eval() {
		t.Error("dynamic evaluation and the cache change nothing")
	}
}
