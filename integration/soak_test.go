package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// soakVariable holds how many faults the long soak must have had at least.
const soakVariable = "RONDO_SOAK_FAULTS"

// faultTime is the time of a busy machine for a fault and the steps until the next.
const faultTime = 2 * time.Second

// soakPace gives workers that were lost the time to come back while the others go on.
const soakPace = "delay rank=* for=10ms phase=forward times=0"

// soakRules are the faults of a soak, each with the chance of a match: of one rank in one phase of
// a step, or of one message of it. They begin after the first checkpoint, and end before the last.
// A gradient that is NaN is so whenever its step is done, so that the undisturbed job skips the
// same steps.
func soakRules(steps int) (rules, undisturbed string) {
	all, skipped := []string{soakPace}, []string(nil)
	for i, rule := range []struct {
		fault  string
		chance float64
	}{
		{"kill rank=* phase=load", 0.0025},
		{"kill rank=* phase=backward", 0.0025},
		{"kill rank=* phase=update", 0.0025},
		{"kill rank=* phase=all-gather", 0.0008},
		{"stop rank=* for=1500ms phase=forward", 0.002},
		{"delay rank=* for=50ms phase=backward", 0.02},
		{"delay rank=* for=30ms phase=reduce-scatter", 0.004},
		{"drop rank=* phase=all-gather", 0.0008},
		{"drop rank=* phase=carry", 0.002},
		{"duplicate rank=* phase=reduce-scatter", 0.0008},
		{"disk-full rank=*", 0.15},
		{"fsync-error rank=*", 0.15},
	} {
		all = append(all, fmt.Sprintf("%s step=15-%d chance=%g seed=%d times=0", rule.fault,
			steps-10, rule.chance, i+1))
	}
	// Two ranks that disagree repeat the steps in the same ring, where chance= draws the same. So
	// these faults are limited in number.
	all = append(all, fmt.Sprintf("corrupt rank=* phase=all-gather step=15-%d chance=0.0008 "+
		"times=%d", steps-10, max(1, steps/100)))
	for step := 20; step < steps-10; step += 40 {
		skipped = append(skipped, fmt.Sprintf("nan rank=0 step=%d times=0", step))
	}
	undisturbed = strings.Join(skipped, "; ")
	return strings.Join(append(all, undisturbed), "; "), undisturbed
}

// TestSoak is a job that faults rain upon: a short one, or with RONDO_SOAK_FAULTS=500, as
// `make soak` has it, a long one.
func TestSoak(t *testing.T) {
	steps, faults := 200, 30
	if text := os.Getenv(soakVariable); text != "" {
		var err error
		if faults, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", soakVariable, err)
		}
		steps = 6 * faults
	} else {
		t.Parallel()
	}
	rules, reference := soakRules(steps)
	dir := filepath.Join(t.TempDir(), "run")
	began := time.Now()
	allow := allowance{back: true, reference: []string{"--inject", reference},
		limit: runTimeout + time.Duration(faults)*faultTime}
	j := try(t, allow, "--workers", "4", "--steps", fmt.Sprint(steps), "--checkpoint-dir",
		dir, "--checkpoint-every", "5", "--inject", rules, "--restarts", "500",
		"--min-workers", "2", "--check-every", "1")
	j.verdict()
	counts, total := j.faults(), 0
	for _, n := range counts {
		total += n
	}
	t.Logf("%d faults %v in %d steps and %v; %d rings; back to a checkpoint, and said why: %d",
		total, counts, steps, time.Since(began).Round(time.Second),
		len(named(j.kept, "generation")), j.backs)
	if total < faults {
		t.Errorf("%d faults, want at least %d", total, faults)
	}
	if code, stdout, stderr := run(t, "checkpoint", "verify", dir); code != 0 {
		t.Errorf("checkpoint verify: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// faults counts the injected faults by verb, without the soak's own pacing. Processes that died or
// were stopped at once have logged them on standard error, the others through the coordinator.
func (j *trial) faults() map[string]int {
	var told []string
	for line := range strings.Lines(j.stderr.String()) {
		if _, what, ok := strings.Cut(line, "rehearsal: "); ok &&
			(strings.HasPrefix(what, "kill") || strings.HasPrefix(what, "stop")) {
			told = append(told, what)
		}
	}
	for _, e := range named(j.kept, "notice") {
		if what, ok := strings.CutPrefix(e.text("text"), "rehearsal: "); ok &&
			!strings.HasPrefix(what, "kill") && !strings.HasPrefix(what, "stop") &&
			!strings.Contains(what, "for 10ms") {
			told = append(told, what)
		}
	}
	counts := map[string]int{}
	for _, what := range told {
		verb, _, _ := strings.Cut(what, " ")
		counts[verb]++
	}
	return counts
}
