package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// rehearsed is a row of the matrix whose fault the job inflicts on itself, with --inject.
type rehearsed struct {
	name    string
	promise string
	inject  string
	flags   string   // besides the trials'
	world   int      // of the last ring
	reason  []string // words of a later ring's reason; nil: there is no other ring
	notices []string // words of a notice, each
	allow   allowance
}

const rehearsedSteps = 60

// killRows are kill -9 in each phase of a step, of a worker and of the one that reports. With
// -short it is one of the two in each phase, by turns.
func killRows() []rehearsed {
	var rows []rehearsed
	for i, phase := range []string{"load", "forward", "backward", "carry", "reduce-scatter",
		"all-gather", "update"} {
		ranks := []int{0, 1}
		if testing.Short() {
			ranks = []int{i % 2}
		}
		for _, rank := range ranks {
			rows = append(rows, rehearsed{
				name: fmt.Sprintf("kill rank %d in %s", rank, phase),
				promise: "the others form a ring at once, with its lanes and their states, and " +
					"no step is lost",
				inject: fmt.Sprintf("kill rank=%d step=20 phase=%s", rank, phase),
				flags:  "--restarts 0", world: 2,
				reason: []string{fmt.Sprintf("rank %d, host", rank), "2 workers go on"},
			})
		}
	}
	return append(rows, rehearsed{
		name:    "kill rank 0 in checkpoint",
		promise: "the next rank 0 saves the checkpoint of that step, and the job goes on",
		inject:  "kill rank=0 step=20 phase=checkpoint",
		flags:   "--restarts 0 --checkpoint-every 10", world: 2,
		reason: []string{"rank 0, host", "2 workers go on"},
	}, rehearsed{
		name:    "kill two neighbours",
		promise: "two others have their lanes' states: no step is lost",
		inject:  killNeighbours(25),
		flags:   "--restarts 0 --workers 4", world: 2,
		reason: []string{"2 workers go on"},
	}, rehearsed{
		name:    "kill two neighbours, one copy, with a checkpoint",
		promise: "lanes whose states died with both of their keepers: back to the checkpoint, told",
		inject:  killNeighbours(55) + "; " + paced, // so that a checkpoint is on the disk by then
		flags:   "--restarts 0 --workers 4 --copies 1 --checkpoint-every 10", world: 2,
		reason:  []string{"2 workers go on"},
		notices: []string{"so training goes back to the checkpoint of step"},
		allow:   allowance{back: true},
	}, rehearsed{
		name: "kill two neighbours, one copy, without a checkpoint",
		promise: "lanes whose states died with both of their keepers are replayed, told; " +
			"no step is lost",
		inject: killNeighbours(25),
		flags:  "--restarts 0 --workers 4 --copies 1", world: 2,
		reason:  []string{"2 workers go on"},
		notices: []string{"they were computed anew, up to step 24"},
		allow:   allowance{tolerance: 0.02},
	})
}

// killNeighbours kills ranks 1 and 2 in the same step. Both halt in it first: a rank that comes to
// the step later has finished the one before by the time that its neighbour dies.
func killNeighbours(step int) string {
	return fmt.Sprintf("delay rank=1 step=%[1]d phase=forward for=5s; "+
		"delay rank=2 step=%[1]d phase=forward for=5s; "+
		"kill rank=1 step=%[1]d phase=forward; kill rank=2 step=%[1]d phase=forward", step)
}

// otherRows are the faults after which everybody lives.
func otherRows() []rehearsed {
	saving := "--checkpoint-every 10 --checkpoint-keep 0"
	return []rehearsed{
		{
			name:    "NaN on one rank",
			promise: "all ranks skip that step together, and say so",
			inject:  "nan rank=1 step=20", world: 3,
			notices: []string{"step 20 was skipped"},
			allow:   allowance{reference: []string{"--inject", "nan rank=0 step=20"}},
		}, {
			name:    "full disk",
			promise: "the job goes on, says so, and the next checkpoint is sound",
			inject:  "disk-full rank=0 step=20", flags: saving, world: 3,
			notices: []string{"no space left on device"},
		}, {
			name:    "EIO on fsync",
			promise: "the job goes on, says so, and the next checkpoint is sound",
			inject:  "fsync-error rank=0 step=20", flags: saving, world: 3,
			notices: []string{"input/output error"},
		}, {
			name:    "EIO on any operation",
			promise: "the job goes on, says so, and the next checkpoint is sound",
			inject:  "io-error rank=0 step=20", flags: saving, world: 3,
			notices: []string{"input/output error"},
		}, {
			name:    "straggler",
			promise: "it is named with its cause, and evicted only where that is asked for",
			inject:  "delay rank=1 step=1-30 for=40ms phase=forward times=0", world: 3,
			notices: []string{"rank 1", "late", "(compute)"},
		}, {
			name:    "evicted straggler",
			promise: "--evict-stragglers puts it out of the ring, named with its cause",
			inject:  "delay rank=1 step=1-35 for=40ms phase=forward times=0", world: 2,
			flags:  "--evict-stragglers 3",
			reason: []string{"rank 1, host", "(compute)", "2 workers go on"},
		}, {
			name:    "lost message",
			promise: "the ring notices that a message is missing, and the step is done again",
			inject:  "drop rank=1 step=20 phase=reduce-scatter", world: -1,
			reason: []string{"rank"},
		}, {
			name:    "message sent twice",
			promise: "nobody takes it twice: the step is done again",
			inject:  "duplicate rank=1 step=20 phase=all-gather", world: -1,
			reason: []string{"rank"},
		}, {
			name:    "message with a flipped bit",
			promise: "the rank that has other parameters than most is named and evicted",
			inject:  "corrupt rank=1 step=20 phase=all-gather", world: -1,
			flags:  "--check-every 1",
			reason: []string{"rank", "other parameters"},
		},
	}
}

// TestMatrix checks the promises of a job for each fault that can be injected.
func TestMatrix(t *testing.T) {
	for _, row := range append(killRows(), otherRows()...) {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.check(t)
		})
	}
}

func (row rehearsed) check(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	flags := append(strings.Fields(row.flags), "--inject", row.inject, "--steps",
		fmt.Sprint(rehearsedSteps))
	saves := strings.Contains(row.flags, "--checkpoint-every")
	if saves {
		flags = append(flags, "--checkpoint-dir", dir)
	}
	j := try(t, row.allow, flags...)
	events := j.verdict()
	t.Logf("promised: %s", row.promise)
	if len(j.faults()) == 0 {
		t.Errorf("no fault was rehearsed; standard error:\n%s", j.stderr)
	}
	if done := events[len(events)-1]; done.number("step") != rehearsedSteps {
		t.Errorf("the job ended after step %g", done.number("step"))
	}
	row.checkRings(t, events)
	for _, words := range row.notices {
		if !hasNotice(events, words) {
			t.Errorf("no notice says %q; the events:\n%s", words, tail(events))
		}
	}
	if saves {
		row.checkSaved(t, dir, events)
	}
}

func hasNotice(events []event, words ...string) bool {
	for _, e := range named(events, "notice") {
		if hasAll(e.text("text"), words) {
			return true
		}
	}
	return false
}

// checkRings checks the rings against the promise.
func (row rehearsed) checkRings(t *testing.T, events []event) {
	t.Helper()
	rings := named(events, "generation")
	if row.world >= 0 && int(rings[len(rings)-1].number("world_size")) != row.world {
		t.Errorf("the last ring is %v, want one of %d", rings[len(rings)-1], row.world)
	}
	if row.reason == nil {
		if len(rings) != 1 {
			t.Errorf("%d rings, want one: %v", len(rings), rings)
		}
		return
	}
	for _, e := range rings[1:] {
		if hasAll(e.text("reason"), row.reason) {
			t.Logf("event: %s", e.text("reason"))
			return
		}
	}
	t.Errorf("no ring has a reason with %q: %v", row.reason, rings[1:])
}

// checkSaved holds the checkpoints against the faults of their storage.
func (row rehearsed) checkSaved(t *testing.T, dir string, events []event) {
	t.Helper()
	code, stdout, stderr := run(t, "checkpoint", "verify", dir)
	if code != 0 {
		t.Errorf("checkpoint verify: exit code %d\n%s%s", code, stdout, stderr)
	}
	var steps []string
	for _, e := range named(events, "checkpoint") {
		steps = append(steps, fmt.Sprint(e.number("step")))
	}
	want := "20 30 40 50 60" // a rank 0 that is killed may take an earlier one with it
	switch {
	case row.allow.back:
		want = "60" // some come twice
	case strings.Contains(row.inject, "disk"), strings.Contains(row.inject, "error"):
		want = "10 30 40 50 60" // the one of step 20 did not get through
	}
	if got := strings.Join(steps, " "); !strings.HasSuffix(got, want) {
		t.Errorf("checkpoints of the steps %s, want %s", got, want)
	}
}
