package train

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"rondo/train/agree"
)

// goesOn fails unless the job resumes from a snapshot to the undisturbed result.
func goesOn(t *testing.T, j job, snapshot *Snapshot, oracle *outcome) {
	t.Helper()
	text, err := json.Marshal(snapshot.Progress) // as a checkpoint has it
	if err != nil {
		t.Fatal(err)
	}
	read := *snapshot
	read.Progress = Progress{}
	if err := json.Unmarshal(text, &read.Progress); err != nil {
		t.Fatal(err)
	}
	e := newElastic(t, j, 2)
	e.restore = func(context.Context, agree.Reason, int64) (*Snapshot, error) { return &read, nil }
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
	e.matches(1, oracle)
	if p := e.workers[1].result.Progress; p.Pending {
		t.Errorf("%+v", p)
	}
}

// After a ring that ends as planned, a rank knows all lanes and keeps them.
func TestKeep(t *testing.T) {
	j := elasticJob(7)
	oracle := j.mustRun(t)
	e := newElastic(t, j, 3)
	for _, h := range e.workers {
		if err := h.trainer.Keep(t.Context()); err != nil || len(h.saved) != 0 {
			t.Errorf("without a state: %v, %d saved", err, len(h.saved))
		}
	}
	regroupAt(e, 1, 1)
	e.ring(breakage{}, 0, 1, 2)
	h := e.workers[2]
	if err := h.trainer.Keep(t.Context()); err != nil || len(h.saved) != 1 || h.flushed != 1 ||
		h.saved[0].Progress != h.trainer.Progress() || h.saved[0].Progress.Step != 2 {
		t.Fatalf("%v, %d saved", err, len(h.saved))
	}
	goesOn(t, j, h.saved[0], oracle)
	h.memorySaver.err = errTest
	if err := h.trainer.Keep(t.Context()); !errors.Is(err, errTest) {
		t.Error(err)
	}
	ended, end := context.WithCancelCause(t.Context())
	end(errBroken)
	h.memorySaver.err = nil
	if err := h.trainer.Keep(ended); !errors.Is(err, errBroken) || len(h.saved) != 1 {
		t.Errorf("%v, %d saved", err, len(h.saved))
	}
	h.trainer.cfg.Save = false
	if err := h.trainer.Keep(t.Context()); err != nil || len(h.saved) != 1 {
		t.Errorf("%v, %d saved", err, len(h.saved))
	}
}

// breaksAt returns an elastic job whose ring breaks when there is true for its first rank.
func breaksAt(t *testing.T, j job, workers []int, there func(*Trainer) bool) *elastic {
	t.Helper()
	for call := 1; ; call++ {
		e := newElastic(t, j, len(workers))
		dead := len(workers) - 1
		if !e.ring(breakage{call: call, dead: []int{dead}}, workers...) {
			t.Fatal("the ring does not break there")
		}
		if there(e.workers[0].trainer) {
			return e
		}
	}
}

// If a broken ring leaves a rank without some lanes' states, its error names the lanes.
func TestKeepWithoutAllLanes(t *testing.T) {
	e := breaksAt(t, elasticJob(7), []int{0, 1, 2}, func(t *Trainer) bool {
		return t.Progress().Step == 5
	})
	h := e.workers[0]
	err := h.trainer.Keep(t.Context())
	if err == nil || len(h.saved) != 1 || !strings.Contains(err.Error(), "step 5 was not saved: "+
		"this worker does not know the states of the lanes [4 5 6 7];") {
		t.Errorf("%v, %d saved", err, len(h.saved))
	}
}

// At a point where all lanes start from zero, no rank needs their states.
func TestKeepWhereLanesBeginAnew(t *testing.T) {
	for _, random := range []bool{false, true} {
		j := elasticJob(11)
		j.batches = newLanes(random) // 9 steps are an epoch
		oracle := j.mustRun(t)
		e := breaksAt(t, j, []int{0, 1, 2}, func(t *Trainer) bool { return t.Progress().Step == 9 })
		h := e.workers[0]
		n := len(h.saved)
		if err := h.trainer.Keep(t.Context()); err != nil || len(h.saved) != n+1 {
			t.Fatalf("random %v: %v, %d saved", random, err, len(h.saved))
		}
		goesOn(t, j, h.saved[n], oracle)
	}
}

// Work that is due after a step and was interrupted is done by the job that restores the snapshot.
func TestKeepWhatIsPending(t *testing.T) {
	j := elasticJob(7)
	j.config.CheckEvery = 0
	oracle := j.mustRun(t)
	e := breaksAt(t, j, []int{0, 1}, func(t *Trainer) bool {
		return t.Progress().Step == 3 && t.pending // its evaluation was interrupted
	})
	h := e.workers[0]
	if err := h.trainer.Keep(t.Context()); err != nil || len(h.saved) != 1 ||
		!h.saved[0].Progress.Pending || h.trainer.Progress().Pending {
		t.Fatalf("%v, %d saved", err, len(h.saved))
	}
	goesOn(t, j, h.saved[0], oracle)
	e.ring(breakage{}, 1, 0) // the original job goes on unchanged
	e.allDone(1, 0)
	e.matches(1, oracle)
}
