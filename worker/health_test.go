package worker

import (
	"testing"
	"testing/synctest"
	"time"

	"rondo/job"
)

// ill is how long a worker or a link is at fault in these tests.
const ill = 20 * time.Minute

// TestHealth: a worker that hears nobody, or a link that is cut in one direction, costs at most a
// tenth of the steps that the other workers do without that worker.
func TestHealth(t *testing.T) {
	if testing.Short() {
		t.Skip("hours of simulated work: `make race` has them")
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := simSpec()
	spec.Steps, spec.MinWorkers, spec.CheckEvery = 1e6, 1, 50
	spec.Inject = "delay rank=* phase=load for=1s times=0"
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	steps := func(workers int, fault func(w *world, names []string)) (done int64) {
		synctest.Test(t, func(t *testing.T) {
			spec.Workers, spec.MaxWorkers = int64(workers), int64(workers)
			w := newWorld(spec, data, 1)
			w.submit(t)
			w.startCoordinator(1)
			var names []string
			for range workers {
				names = append(names, w.startWorker())
			}
			await(func() bool { return furthestStep(w) >= 10 })
			fault(w, names)
			time.Sleep(ill)
			done = furthestStep(w) - 10
			w.crashAll()
			if t.Failed() {
				w.show(t)
			}
		})
		return done
	}
	nothing := func(*world, []string) {}
	for _, c := range []struct {
		name    string
		workers int
		fault   func(w *world, names []string)
	}{
		{"one deaf worker of six", 6, func(w *world, names []string) {
			for _, from := range names {
				if from != names[2] {
					w.net.Cut(from, names[2])
				}
			}
		}},
		{"one mute worker of six", 6, func(w *world, names []string) {
			for _, to := range names {
				if to != names[2] {
					w.net.Cut(names[2], to)
				}
			}
		}},
		{"nothing goes from one of three to another", 3, func(w *world, names []string) {
			w.net.Cut(names[0], names[1])
		}},
	} {
		want, got := steps(c.workers-1, nothing), steps(c.workers, c.fault)
		t.Logf("%s: %d steps, %d without that worker (%.0f%%)", c.name, got, want,
			100*float64(got)/float64(want))
		if float64(got) < 0.9*float64(want) {
			t.Errorf("%s: %d steps, want nine tenths of %d", c.name, got, want)
		}
	}
}
