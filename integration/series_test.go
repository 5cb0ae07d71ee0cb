package integration

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// noise is the standard deviation of noisySine.
const noise = 0.2

// noisySine is the textbook's series, sin(0.01 t) with noise, and a second column: another phase.
func noisySine(t *testing.T, rows int) (path string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	text := "sine,phase\n"
	for i := range rows {
		at := 0.01 * float64(i)
		text += fmt.Sprintf("%g,%g\n", 10*(math.Sin(at)+noise*rng.NormFloat64()), math.Cos(at))
	}
	return write(t, "sine.csv", text)
}

// seriesFlags are those of a small job of the task regress.
func seriesFlags(corpus string, extra ...string) []string {
	return slices.Concat([]string{"--task", "regress", "--corpus", corpus, "--hidden", "12",
		"--layers", "2", "--dropout", "0.1", "--batch", "12", "--bptt", "8", "--steps", "20",
		"--clip", "0.5", "--clip-scope", "global", "--lr", "0.01", "--lr-schedule", "constant",
		"--validation-fraction", "0.2", "--eval-every", "10", "--checkpoint-every", "10",
		"--checkpoint-keep", "0", "--lease-ttl", "2s", "--chunk-timeout", "1s"}, extra)
}

// lastRows is the task regress with sequences of 5 rows: the second column's last number is the sum
// of the first's.
func lastRows(t *testing.T) exampleTask {
	t.Helper()
	rng := rand.New(rand.NewPCG(17, 18))
	text := "number,sum\n"
	for range 115 {
		sum := 0.0
		for range 5 {
			x := rng.Float64()
			sum += x
			text += fmt.Sprintf("%g,%g\n", x, sum)
		}
	}
	return exampleTask{"regress", write(t, "sums.csv", text), []string{"mse"}, 0, []string{
		"--sequences", "--target", "sum", "--bptt", "5", "--layers", "1"}, []string{}}
}

// TestSeriesParity: three workers have the loss curve and the evaluations of one, also if one of
// them is killed, and with --reduce canonical the bytes of one. The audit finds every segment.
func TestSeriesParity(t *testing.T) {
	t.Parallel()
	corpus, logs := noisySine(t, 1500), t.TempDir()
	flags := seriesFlags(corpus, "--checkpoint-dir", "none", "--checkpoint-every", "0")
	one := train(t, append(flags, "--workers", "1")...)
	three := train(t, append(flags, "--workers", "3", "--audit-dir", logs, "--inject",
		fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(18)))...)
	nearKilled(t, named(three, "step"), named(one, "step"), "loss")
	nearKilled(t, named(three, "eval"), named(one, "eval"), "loss", "mse", "tokens")
	if n := len(named(one, "step")); n != 20 {
		t.Errorf("%d steps", n)
	}
	if code, stdout, stderr := run(t, "audit", logs); code != 0 ||
		!strings.Contains(stdout, "each of 12 lanes read exactly once") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	canonical := func(workers string) map[string]string {
		dir := t.TempDir()
		train(t, seriesFlags(corpus, "--reduce", "canonical", "--workers", workers,
			"--checkpoint-dir", dir)...)
		return tensors(t, filepath.Join(dir, "step-00000020"))
	}
	if one, three := canonical("1"), canonical("3"); !maps.Equal(one, three) {
		t.Errorf("--reduce canonical: one worker wrote %v, three wrote %v", one, three)
	}
}

// TestSeriesResume: 20 steps, and 10 steps and 10 more, are the same bytes. Another target or other
// data do not continue the job.
func TestSeriesResume(t *testing.T) {
	t.Parallel()
	corpus, straight, broken := noisySine(t, 1500), t.TempDir(), t.TempDir()
	train(t, seriesFlags(corpus, "--checkpoint-dir", straight)...)
	train(t, seriesFlags(corpus, "--checkpoint-dir", broken, "--steps", "10")...)
	steps := named(train(t, seriesFlags(corpus, "--checkpoint-dir", broken)...), "step")
	if len(steps) != 10 || steps[0].number("step") != 11 {
		t.Fatalf("%d steps after the resume, the first %v", len(steps), steps)
	}
	const last = "step-00000020"
	got := tensors(t, filepath.Join(broken, last))
	if want := tensors(t, filepath.Join(straight, last)); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
	code, _, stderr := run(t, append([]string{"train"}, seriesFlags(corpus, "--target", "sine",
		"--checkpoint-dir", straight, "--steps", "30")...)...)
	oneLine(t, code, 2, stderr, "--target none instead of sine")
	code, _, stderr = run(t, append([]string{"train"}, seriesFlags(noisySine(t, 1501),
		"--checkpoint-dir", straight, "--steps", "30")...)...)
	oneLine(t, code, 2, stderr, "other data")
}

// TestSeriesUse: a network of the noisy sine errs by little more than the noise. rondo predict says
// the same as rondo eval, and draws it.
func TestSeriesUse(t *testing.T) {
	t.Parallel()
	corpus, dir := noisySine(t, 4000), t.TempDir()
	train(t, seriesFlags(corpus, "--target", "sine", "--checkpoint-dir", dir, "--batch", "4",
		"--bptt", "64", "--dropout", "0", "--layers", "1", "--steps", "300", "--eval-every",
		"300", "--checkpoint-every", "300")...)
	code, stdout, stderr := run(t, "eval", "--checkpoint", dir, "--corpus", corpus, "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	const floor = 100 * noise * noise
	for metric, most := range map[string]float64{"mse": 1.3, "mse_4_ahead": 1.4,
		"mse_16_ahead": 1.5, "mse_64_ahead": 3} {
		if v := e.number(metric); !(v > 0.9*floor && v < most*floor) {
			t.Errorf("%s: %v, and the noise has %v", metric, v, floor)
		}
	}
	plot := filepath.Join(t.TempDir(), "sine.svg")
	code, stdout, stderr = run(t, "predict", "--checkpoint", dir, "--corpus", corpus, "--steps",
		"16", "--plot", plot)
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if code != 0 || err != nil || len(rows) != 4000-16+2 || rows[1][0] != "16" ||
		strings.Join(rows[0], " ") != "row sine sine_predicted" || rows[len(rows)-1][1] != "" {
		t.Fatalf("exit code %d, %d rows, %v: %s", code, len(rows), err, stderr)
	}
	mean := 0.0
	for _, row := range rows[1 : len(rows)-1] {
		truth, err := strconv.ParseFloat(row[1], 64)
		predicted, also := strconv.ParseFloat(row[2], 64)
		if err != nil || also != nil {
			t.Fatal(row)
		}
		mean += (truth - predicted) * (truth - predicted) / (4000 - 16)
	}
	if want := e.number("mse_16_ahead"); math.Abs(mean-want) > 1e-4*want {
		t.Errorf("the predictions' mean squared error is %v, eval's %v", mean, want)
	}
	if drawn, err := os.ReadFile(plot); err != nil || !strings.Contains(string(drawn), "<svg") {
		t.Errorf("plot of %d bytes: %v", len(drawn), err)
	}
	newest := filepath.Join(dir, "step-00000300")
	code, _, stderr = run(t, "predict", "--checkpoint", newest, "--corpus",
		write(t, "a.csv", "1\n2\n"))
	oneLine(t, code, 2, stderr, "a.csv", `"sine" "phase"`)
	code, _, stderr = run(t, "generate", "--checkpoint", newest)
	oneLine(t, code, 2, stderr, "--task regress")
}
