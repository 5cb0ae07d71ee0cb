package worker

import (
	"testing"
	"testing/synctest"
	"time"

	"rondo/cluster"
	"rondo/job"
)

// TestDoneIsOnRecord: workers that are done leave without a leader when that is on record. The next
// leader ends the job by the record, and a worker that is behind does not train again.
func TestDoneIsOnRecord(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := simSpec()
	spec.Workers, spec.MinWorkers, spec.Submitted = 2, 1, 5
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(spec, data, 1)
		w.submit(t)
		w.startCoordinator(1)
		w.startWorker()
		w.startWorker()
		await(func() bool { return furthestStep(w) >= 30 })
		w.store.Cut("c1", true)
		await(func() bool { return hasGone(w, "w1") && hasGone(w, "w2") })
		for _, name := range []string{"w1", "w2"} {
			if end := w.workers[name].end; end == nil || end.Phase != cluster.Ended {
				t.Errorf("%s left before it knew of the job's end: %+v", name, end)
			}
		}
		tip, err := w.store.Tip(t.Context())
		if err != nil || !tip.Final || tip.Step != spec.Steps || tip.Run != spec.Submitted {
			t.Errorf("on record: %+v, %v", tip, err)
		}
		steps := 0
		w.mu.Lock()
		w.onStep = func() { steps++ }
		w.mu.Unlock()
		w.startWorker() // it has nothing
		w.store.Cut("c1", false)
		await(w.isOver)
		if steps > 0 || w.ended.Failed || w.ended.Result == "" {
			t.Errorf("after %d more steps: %+v", steps, w.ended)
		}
		w.finish(t)
		if t.Failed() {
			w.show(t)
		}
	})
}

// await returns when a condition holds, or after a simulated hour.
func await(holds func() bool) {
	for limit := time.Now().Add(time.Hour); !holds() && time.Now().Before(limit); {
		time.Sleep(100 * time.Millisecond)
	}
}

func furthestStep(w *world) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.highest
}

func hasGone(w *world, name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers[name].gone
}
