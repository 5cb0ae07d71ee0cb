package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWhyAJobEnded: --steps alone is not limited by epochs; with --epochs too the first of them
// ends the job, or --early-stop before both. An epoch of this job has 166 steps.
func TestWhyAJobEnded(t *testing.T) {
	for _, c := range []struct {
		flags, want string
		step        float64
	}{
		{"--steps 190", "--steps 190 reached", 190},
		{"--steps 190 --epochs 1", "--epochs 1 done", 166},
		{"--steps 9 --epochs 1", "--steps 9 reached", 9},
		{"--lr 1e-30 --eval-every 4 --validation-fraction 0.1 --early-stop 2",
			"stopped early: validation loss has not improved in 2 evaluations", 12},
	} {
		events := train(t, append(small("--hidden", "8"), strings.Fields(c.flags)...)...)
		done := events[len(events)-1]
		if done.name() != "done" || done.text("reason") != c.want ||
			done.number("step") != c.step || done["stopped"] != false {
			t.Errorf("%s: %v, want %q after step %v", c.flags, done, c.want, c.step)
		}
	}
}

// TestBestCheckpoint: the checkpoint with the lowest validation loss is kept, and used by generate
// and eval. A job is resumed from the newest.
func TestBestCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	// With this rate the parameters stay as they are, so that the first evaluation is the best.
	flags := small("--checkpoint-dir", dir, "--checkpoint-every", "1", "--checkpoint-keep", "2",
		"--validation-fraction", "0.1", "--eval-every", "5", "--lr", "1e-30", "--steps", "40")
	events := train(t, flags...)
	first := named(events, "eval")[0]
	if done := events[len(events)-1]; done.number("best_step") != 5 ||
		done.number("best_loss") != first.number("loss") {
		t.Errorf("the end names another best than %v: %v", first, done)
	}
	const owner = ".owner-00000001.json"
	want := []string{"step-00000005", "step-00000039", "step-00000040"}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, e := range entries {
		there = append(there, e.Name())
	}
	if !slices.Equal(there, append([]string{owner}, want...)) {
		t.Errorf("the folder has %v, want %s and %v", there, owner, want)
	}
	text, err := os.ReadFile(filepath.Join(dir, want[0], "manifest.json"))
	var manifest struct {
		Metrics map[string]float64 `json:"metrics"`
	}
	if err == nil {
		err = json.Unmarshal(text, &manifest)
	}
	if err != nil || manifest.Metrics["validation_loss"] != first.number("loss") {
		t.Errorf("%v: metrics %v, want the loss of %v", err, manifest.Metrics, first)
	}
	const line = "using step 5: lowest validation loss "
	for _, command := range [][]string{{"generate", "--tokens", "5"},
		{"eval", "--corpus", "builtin:opticks"}} {
		code, _, stderr := run(t, append(command, "--checkpoint", dir)...)
		if code != 0 || !strings.HasPrefix(stderr, line) {
			t.Errorf("%s: exit code %d, %q, want %q", command, code, stderr, line)
		}
	}
	_, _, stderr := run(t, "generate", "--tokens", "5", "--checkpoint", filepath.Join(dir, want[1]))
	if strings.Contains(stderr, "using") {
		t.Errorf("a step's own folder: %q", stderr)
	}
	again := train(t, append(flags, "--steps", "42")...)
	if next := named(again, "step")[0]; next.number("step") != 41 {
		t.Errorf("resumed before step %v", next.number("step"))
	}
}
