package worker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"rondo/job"
)

// leavingSeeds is the number of suspended jobs, each at another moment.
const leavingSeeds = 60

// TestAllAreAskedToLeave suspends a whole job, as Kubernetes does: each worker is asked to leave,
// some in a ring, some between two. All must leave long before the job's last step, whatever they
// are doing.
func TestAllAreAskedToLeave(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := simSpec()
	spec.Steps, spec.Workers, spec.MinWorkers, spec.MaxWorkers = 10000, 4, 1, 4
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	for seed := range uint64(leavingSeeds) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(spec, data, seed)
				w.submit(t)
				w.startCoordinator(1)
				for range spec.Workers {
					w.startWorker()
				}
				time.Sleep(time.Duration(w.random.Int64N(int64(3 * time.Second))))
				w.pauseCoordinator(time.Duration(w.random.Int64N(int64(2 * time.Second))))
				w.crash(w.alive()[0]) // the others have no ring until the coordinator goes on
				for _, name := range w.alive() {
					w.note("%s is asked to leave", name)
					w.mu.Lock()
					kill := w.workers[name].kill
					w.mu.Unlock()
					kill()
					time.Sleep(time.Duration(w.random.Int64N(int64(300 * time.Millisecond))))
				}
				limit := time.Now().Add(spec.RegroupTimeout.AsDuration())
				for len(w.alive()) > 0 && time.Now().Before(limit) {
					time.Sleep(100 * time.Millisecond)
				}
				if left := w.alive(); len(left) > 0 {
					t.Errorf("%v train on", left)
					w.show(t)
				}
				w.crashAll()
			})
		})
	}
}

func (w *world) crashAll() {
	for _, name := range w.alive() {
		w.crash(name)
	}
	w.mu.Lock()
	for _, c := range w.coordinators {
		c.kill()
	}
	w.mu.Unlock()
	w.processes.Wait()
}
