package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestTrainTellsWhatHappens(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	events := train(t, small("--checkpoint-dir", dir, "--checkpoint-every", "10",
		"--validation-fraction", "0.1", "--eval-every", "10", "--sample-every", "10",
		"--sample-prefix", "the ")...)
	if n := len(named(events, "worker")); n != 2 {
		t.Errorf("%d worker events, want 2", n)
	}
	rings := named(events, "generation")
	if len(rings) != 1 || rings[0].number("world_size") != 2 || rings[0].text("reason") == "" {
		t.Errorf("generation events: %v", rings)
	}
	steps := named(events, "step")
	if len(steps) != 20 {
		t.Fatalf("%d step events, want 20", len(steps))
	}
	for i, e := range steps {
		loss := e.number("loss")
		if e.number("step") != float64(i+1) || e.number("world_size") != 2 ||
			e.number("tokens_per_second") <= 0 || e.number("epoch") != 1 ||
			math.Abs(e.number("perplexity")-math.Exp(loss)) > 1e-9*math.Exp(loss) {
			t.Errorf("step event %d: %v", i, e)
		}
	}
	if first, last := steps[0].number("loss"), steps[19].number("loss"); last >= first {
		t.Errorf("the loss went from %g to %g", first, last)
	}
	if n := len(named(events, "eval")); n != 2 {
		t.Errorf("%d evaluations, want 2", n)
	}
	samples := named(events, "sample")
	if len(samples) != 2 || !strings.HasPrefix(samples[0].text("text"), "the ") {
		t.Errorf("samples: %v", samples)
	}
	var paths []string
	for _, e := range named(events, "checkpoint") {
		paths = append(paths, filepath.Base(e.text("path")))
	}
	if got := strings.Join(paths, " "); got != "step-00000010 step-00000020" {
		t.Errorf("checkpoints: %s", got)
	}
	last := events[len(events)-1]
	if last.name() != "done" || last.number("step") != 20 || last["stopped"] != false ||
		filepath.Base(last.text("checkpoint")) != "step-00000020" {
		t.Errorf("last event: %v", last)
	}
}

// losses runs a job and returns its loss curve.
func losses(t *testing.T, args ...string) []float64 {
	t.Helper()
	var curve []float64
	for _, e := range named(train(t, args...), "step") {
		curve = append(curve, e.number("loss"))
	}
	return curve
}

// TestParity: with --clip-scope global any number of workers has the loss curve of one. With -short
// each cell and each way of sampling runs once.
func TestParity(t *testing.T) {
	const tolerance = 1e-4 // relative; float32 sums depend on their order
	for i, cell := range []string{"gru", "lstm"} {
		for k, sampling := range []string{"sequential", "random"} {
			if testing.Short() && i != k {
				continue
			}
			t.Run(cell+"/"+sampling, func(t *testing.T) {
				args := slices.Concat(textbook, []string{"--cell", cell, "--sampling", sampling,
					"--steps", "50", "--hidden", "32", "--batch", "13", "--bptt", "12", "--clip",
					"0.5", "--clip-scope", "global", "--max-tokens", "30000", "--sample-tokens",
					"0"})
				one := losses(t, append(args, "--workers", "1")...)
				for workers := 2; workers <= 4; workers++ {
					many := losses(t, append(args, "--workers", fmt.Sprint(workers))...)
					if len(one) != 50 || len(many) != 50 {
						t.Fatalf("%d and %d steps", len(one), len(many))
					}
					worst := 0.0
					for i := range one {
						worst = max(worst, math.Abs(many[i]-one[i])/one[i])
					}
					t.Logf("%d workers: largest relative difference %.2g", workers, worst)
					if worst > tolerance {
						t.Errorf("%d workers: %.3g over the limit of %g", workers, worst, tolerance)
					}
				}
			})
		}
	}
}

// TestCanonical: with --reduce canonical the checkpoints' bytes do not depend on the number of
// workers, nor on one that is killed, nor on a resume on others. With -short there are fewer
// numbers of workers.
func TestCanonical(t *testing.T) {
	for _, scope := range []string{"global", "group"} {
		t.Run(scope, func(t *testing.T) {
			flags := small("--batch", "16", "--steps", "50", "--reduce", "canonical",
				"--clip-scope", scope, "--clip", "0.1", "--accumulate", "2", "--checkpoint-every",
				"25", "--checkpoint-keep", "0", "--epochs", "0", "--sample-tokens", "0")
			var last string
			run := func(dir string, more ...string) map[string]string {
				train(t, slices.Concat(flags, []string{"--checkpoint-dir", dir}, more)...)
				files := map[string]string{}
				for name, hash := range hashes(t, filepath.Join(dir, last)) {
					if strings.HasSuffix(name, ".safetensors") {
						files[name] = hash
					}
				}
				return files
			}
			last = "step-00000050"
			want := run(t.TempDir(), "--workers", "1")
			others := map[string][]string{
				"2 workers":        {"--workers", "2"},
				"3 workers":        {"--workers", "3"},
				"4 workers":        {"--workers", "4"},
				"8 workers":        {"--workers", "8"},
				"4, one is killed": {"--workers", "4", "--inject", "kill rank=2 step=30"},
			}
			if testing.Short() {
				delete(others, "2 workers")
				delete(others, "4 workers")
			}
			for name, more := range others {
				if got := run(t.TempDir(), more...); !maps.Equal(got, want) {
					t.Errorf("%s: %v, want %v", name, got, want)
				}
			}
			dir := t.TempDir()
			last = "step-00000025"
			run(dir, "--workers", "4", "--steps", "25")
			last = "step-00000050"
			if got := run(dir, "--workers", "3"); !maps.Equal(got, want) {
				t.Errorf("resumed: %v, want %v", got, want)
			}
		})
	}
}

// TestShardedOptimizer: with --shard-optimizer two workers write the same bytes as without it, and
// more workers reach the same loss, also if one is killed and if others resume.
func TestShardedOptimizer(t *testing.T) {
	flags := small("--batch", "16", "--steps", "40", "--optimizer", "adamw", "--lr", "0.01",
		"--clip-scope", "global", "--clip", "0.5", "--checkpoint-every", "20",
		"--checkpoint-keep", "0", "--epochs", "0", "--sample-tokens", "0")
	run := func(dir string, more ...string) (files map[string]string, loss float64) {
		done := named(train(t, slices.Concat(flags, []string{"--checkpoint-dir", dir}, more)...),
			"step")
		return hashes(t, filepath.Join(dir, "step-00000040")), done[len(done)-1].number("loss")
	}
	want, loss := run(t.TempDir(), "--workers", "2")
	for name, more := range map[string][]string{
		"one copy":   {"--shard-optimizer"},
		"two copies": {"--shard-optimizer", "--shard-copies", "2"},
		"over tcp":   {"--shard-optimizer", "--link", "tcp"},
	} {
		got, _ := run(t.TempDir(), append(more, "--workers", "2")...)
		for _, file := range []string{"model.safetensors", "optimizer.safetensors"} {
			if got[file] != want[file] || want[file] == "" {
				t.Errorf("%s: %s is %s, want %s", name, file, got[file], want[file])
			}
		}
	}
	const tolerance = 1e-4 // relative; float32 sums depend on their order
	near := func(name string, got float64) {
		t.Helper()
		if !(math.Abs(got/loss-1) < tolerance) {
			t.Errorf("%s: a loss of %v, want %v", name, got, loss)
		}
	}
	for name, more := range map[string][]string{
		"3 workers":        {"--workers", "3"},
		"4 workers":        {"--workers", "4"},
		"4, one is killed": {"--workers", "4", "--inject", "kill rank=2 step=30"},
		"3, one in the update": {"--workers", "3", "--inject",
			"kill rank=1 step=30 phase=update"},
		"2, one in the all-gather": {"--workers", "2", "--inject",
			"kill rank=1 step=30 phase=all-gather"},
	} {
		_, got := run(t.TempDir(), append(more, "--shard-optimizer", "--shard-copies", "2")...)
		near(name, got)
	}
	dir := t.TempDir()
	train(t, slices.Concat(flags, []string{"--checkpoint-dir", dir, "--workers", "4", "--steps",
		"20", "--shard-optimizer"})...)
	_, got := run(dir, "--workers", "3", "--shard-optimizer", "--shard-copies", "2")
	near("resumed by others", got)
}

// hashes returns the SHA-256 of each file of a checkpoint, as its manifest has it.
func hashes(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Files []struct{ Name, SHA256 string }
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range manifest.Files {
		out[f.Name] = f.SHA256
	}
	return out
}

// TestResumeIsBitIdentical: 100 steps, and 50 steps, kill -9 of everything, and the rest.
func TestResumeIsBitIdentical(t *testing.T) {
	for _, c := range []struct{ name, flags string }{
		{"lstm adam dropout", "--cell lstm --layers 2 --dropout 0.3 --optimizer adam --lr 0.01"},
		{"gru momentum random", "--cell gru --optimizer momentum --lr 0.1 --sampling random"},
		{"rnn sgd plateau", "--cell rnn --lr 0.5 --lr-schedule plateau --lr-patience 0 " +
			"--validation-fraction 0.1 --eval-every 20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags := append(small("--workers", "2", "--checkpoint-every", "50",
				"--checkpoint-keep", "0", "--lease-ttl", "2s",
				"--chunk-timeout", "1s"), strings.Fields(c.flags)...)
			straight := filepath.Join(t.TempDir(), "straight")
			train(t, append(flags, "--steps", "100", "--checkpoint-dir", straight)...)
			broken := filepath.Join(t.TempDir(), "broken")
			p := start(t, append(append([]string{"train"}, flags...), "--steps", "1000000",
				"--epochs", "0", "--checkpoint-dir", broken)...)
			p.until("the checkpoint of step 50", func(e event) bool {
				return e.name() == "checkpoint" && e.number("step") == 50
			})
			p.killAll()
			for _, e := range named(p.kept, "checkpoint") {
				if e.number("step") <= 50 {
					continue
				}
				if err := os.RemoveAll(e.text("path")); err != nil { // it may have come further
					t.Fatal(err)
				}
			}
			events := train(t, append(flags, "--steps", "100", "--resume", "50",
				"--checkpoint-dir", broken)...)
			if first := named(events, "step")[0]; first.number("step") != 51 {
				t.Errorf("resumed at step %v", first["step"])
			}
			want := hashes(t, filepath.Join(straight, "step-00000100"))
			got := hashes(t, filepath.Join(broken, "step-00000100"))
			if len(want) != 3 {
				t.Errorf("files of a checkpoint: %v", want)
			}
			for name, sum := range want {
				if got[name] != sum {
					t.Errorf("%s differs after the resume", name)
				}
			}
		})
	}
}

// TestResumeKeepsTheCut: three workers add in another order if they cut the gradient otherwise. A
// job that is resumed cuts it as before, and does not measure again.
func TestResumeKeepsTheCut(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "first")
	flags := small("--workers", "3", "--layers", "2", "--hidden", "192", "--clip-scope", "global",
		"--checkpoint-every", "4", "--checkpoint-keep", "0", "--steps", "8")
	train(t, append(flags, "--checkpoint-dir", folder)...)
	again := filepath.Join(t.TempDir(), "again")
	const middle, last = "step-00000004", "step-00000008"
	err := os.CopyFS(filepath.Join(again, middle), os.DirFS(filepath.Join(folder, middle)))
	if err != nil {
		t.Fatal(err)
	}
	train(t, append(flags, "--checkpoint-dir", again, "--resume", "4")...)
	var before, after struct {
		Training struct{ Cut map[string]int64 }
	}
	for path, into := range map[string]any{
		filepath.Join(folder, middle): &before, filepath.Join(again, last): &after} {
		text, err := os.ReadFile(filepath.Join(path, "manifest.json"))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cut := before.Training.Cut
	if cut["ranks"] != 3 || !maps.Equal(after.Training.Cut, cut) {
		t.Errorf("the cut is %v after the resume, and was %v", after.Training.Cut, cut)
	}
	want := hashes(t, filepath.Join(folder, last))
	if got := hashes(t, filepath.Join(again, last)); !maps.Equal(got, want) {
		t.Errorf("resumed: %v, want %v", got, want)
	}
}

func TestInterruptStopsTogetherAndResumes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	args := small("--steps", "1000000", "--epochs", "0", "--checkpoint-dir", dir)
	p := start(t, append([]string{"train"}, args...)...)
	p.untilStep(5)
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	events := p.succeed()
	done := events[len(events)-1]
	if done.name() != "done" || done["stopped"] != true {
		t.Fatalf("last event: %v", done)
	}
	steps := named(events, "step")
	if last := steps[len(steps)-1].number("step"); last != done.number("step") {
		t.Errorf("the last step event is %v, done says %v", last, done["step"])
	}
	if want := fmt.Sprintf("step-%08.0f", done.number("step")); filepath.Base(
		done.text("checkpoint")) != want {
		t.Errorf("checkpoint %q, want %s", done.text("checkpoint"), want)
	}
	resumed := train(t, append(args, "--steps", fmt.Sprint(done.number("step")+3))...)
	if n := len(named(resumed, "step")); n != 3 {
		t.Errorf("%d steps after the resume, want 3", n)
	}
}

// TestResumeOnAnotherNumberOfWorkers: lanes carry their state wherever they go.
func TestResumeOnAnotherNumberOfWorkers(t *testing.T) {
	dir := t.TempDir()
	flags := small("--clip-scope", "global", "--checkpoint-every", "10", "--checkpoint-keep", "0")
	whole := losses(t, append(flags, "--workers", "2", "--checkpoint-dir",
		filepath.Join(dir, "run"))...)
	rest := losses(t, append(flags, "--workers", "3", "--resume", "10", "--checkpoint-dir",
		filepath.Join(dir, "run"))...)
	if len(whole) != 20 || len(rest) != 10 {
		t.Fatalf("%d and %d steps", len(whole), len(rest))
	}
	for i := range rest {
		if d := math.Abs(rest[i]-whole[10+i]) / whole[10+i]; d > 1e-4 {
			t.Errorf("step %d: relative difference %g", 11+i, d)
		}
	}
}
