package worker

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rondo/job"
)

// TestProbe: a worker that reaches the store and no other worker is put out, and breaks no further
// ring. When it reaches the others again it comes back.
func TestProbe(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := simSpec()
	spec.Workers, spec.MinWorkers, spec.MaxWorkers, spec.Steps = 5, 1, 5, 1<<40
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	synctest.Test(t, func(t *testing.T) {
		w := storm{newWorld(spec, data, 1)}
		defer w.close(t)
		w.submit(t)
		w.startCoordinator(1)
		for range spec.Workers {
			w.startWorker()
		}
		all := func(world int, _ int64) bool { return world == int(spec.Workers) }
		w.untilStep(t, "of all workers", all)
		deaf, others := w.alive()[2], slices.Delete(w.alive(), 2, 3)
		for _, other := range others {
			w.cut(other, deaf, true, true)
		}
		w.untilStep(t, "of the others", func(world int, _ int64) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return world == len(others) && !slices.Contains(w.rings[w.furthest], deaf)
		})
		before := w.formed()
		time.Sleep(2 * time.Minute)
		if n := w.formed() - before; n > 0 {
			t.Errorf("%d rings were formed while %s reached nobody", n, deaf)
		}
		for _, other := range others {
			w.cut(other, deaf, true, false)
		}
		w.untilStep(t, "of all workers again", all)
		w.stop(t)
		w.finish(t)
	})
}

// formed returns how many rings were planned.
func (w storm) formed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rings)
}
