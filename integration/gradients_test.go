package integration

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGradients: rondo gradients has a norm for each layer and distance and the use of each gate,
// as a table, as JSON and as a plot; what it cannot measure is refused in a line.
func TestGradients(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	train(t, small("--checkpoint-dir", dir, "--cell", "lstm", "--layers", "2", "--workers",
		"1")...)
	plot := filepath.Join(t.TempDir(), "flow.svg")
	code, stdout, stderr := run(t, "gradients", "--checkpoint", dir, "--steps", "12", "--plot",
		plot, "--json")
	var got struct {
		Hidden, Cell [][]float64
		Gates        []struct{ Mean, Closed, Open float64 }
		Step         int
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if got.Step != 20 || len(got.Hidden) != 2 || len(got.Cell) != 2 || len(got.Hidden[1]) != 12 ||
		len(got.Gates) != 6 || !(got.Hidden[1][0] > got.Hidden[1][11]) ||
		!(got.Hidden[0][11] > 0) {
		t.Errorf("%s", stdout)
	}
	for _, g := range got.Gates {
		if !(g.Mean > 0 && g.Mean < 1 && g.Closed+g.Open <= 1) {
			t.Errorf("%+v", g)
		}
	}
	if image, err := os.ReadFile(plot); err != nil || !strings.Contains(string(image), "<svg") {
		t.Errorf("%v: %.100s", err, image)
	}
	code, stdout, stderr = run(t, "gradients", "--checkpoint", dir, "--steps", "5", "--windows",
		"3")
	if lines := strings.Split(stdout, "\n"); code != 0 || len(lines) != 6+2+6+1 ||
		!strings.Contains(lines[0], "h, layer 0") || !strings.Contains(lines[8], "i, layer 0") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	short := write(t, "short.txt", "the rays")
	for flags, want := range map[string]string{
		"--steps 0":         "--steps 0 is not in",
		"--windows 0":       "--windows 0 is not in",
		"--plot flow.jpeg":  "must end in .png or .svg",
		"--corpus " + short: "--steps 50 needs 101",
	} {
		args := append([]string{"gradients", "--checkpoint",
			filepath.Join(dir, "step-00000020")}, strings.Fields(flags)...)
		code, _, stderr := run(t, args...)
		oneLine(t, code, 2, stderr, want)
	}
}

// TestOmega: with a regulariser of gradients three workers have the curve of one, another than
// without it, and a resume is to the bit.
func TestOmega(t *testing.T) {
	t.Parallel()
	flags := func(extra ...string) []string {
		return small(append([]string{"--cell", "rnn", "--omega", "2", "--clip-scope",
			"global"}, extra...)...)
	}
	alone, broken := t.TempDir(), t.TempDir()
	one := named(train(t, flags("--workers", "1", "--checkpoint-dir", alone)...), "step")
	near(t, named(train(t, flags("--workers", "3")...), "step"), one, "loss", "gradient_norm")
	other := named(train(t, flags("--workers", "1", "--omega", "0")...), "step")
	if a, b := one[19].number("loss"), other[19].number("loss"); a == b {
		t.Errorf("the loss is %v with and without --omega", a)
	}
	train(t, flags("--workers", "1", "--checkpoint-dir", broken, "--steps", "10")...)
	train(t, flags("--workers", "1", "--checkpoint-dir", broken)...)
	want := tensors(t, filepath.Join(alone, "step-00000020"))
	if got := tensors(t, filepath.Join(broken, "step-00000020")); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
}
