package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rondov1 "rondo/proto/rondo/v1"
)

// TestSuspend: a platform makes room. All workers are asked to leave at the same moment, and others
// come later.
func TestSuspend(t *testing.T) {
	for _, c := range []struct {
		name    string
		workers int
		flags   []string
	}{
		{"four workers", 4, nil},
		{"at least two", 4, []string{"--min-workers", "2"}},
		{"all or none", 4, []string{"--min-workers", "4"}},
		{"one worker", 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			suspend(t, c.workers, c.flags)
		})
	}
}

// TestSuspendMany measures the time until many workers have handed over.
func TestSuspendMany(t *testing.T) {
	if os.Getenv(longVariable) == "" {
		t.Skipf("it starts ninety-six processes; %s=1 runs it", longVariable)
	}
	suspend(t, 32, []string{"--batch", "32", "--chunk-timeout", "10s", "--lease-ttl", "20s",
		"--step-timeout", "30s", "--regroup-timeout", "1m", "--join-timeout", "1m",
		"--steps", "5000"}, "--batch", "32")
}

func suspend(t *testing.T, workers int, flags []string, reference ...string) {
	saved := filepath.Join(t.TempDir(), "run")
	r := newRig(t, rigConfig{workers: workers, flags: append([]string{"--checkpoint-dir", saved,
		"--checkpoint-every", "0"}, flags...), allow: allowance{reference: reference}})
	for range 2 {
		r.suspendAll()
		step := r.newestCheckpoint(saved)
		for range workers {
			r.worker(nil)
		}
		ring := r.untilRing(workers)
		if from := ring.number("step"); from != step {
			t.Errorf("the new workers go on after step %g, and step %g was saved", from, step)
		}
		r.untilMore(10)
	}
	r.stop() // no step that was told of is done again
}

// suspendAll asks all workers to go, and holds them to how they do.
func (r *rig) suspendAll() {
	r.t.Helper()
	began := time.Now()
	for _, d := range r.workers {
		d.signal(syscall.SIGTERM)
	}
	kept := 0
	for _, d := range r.workers {
		if code := d.exitCode(); code != exitLeft {
			r.t.Errorf("worker process %d: exit code %d; it wrote:\n%s", d.pid(), code, d.stderr)
		}
		if strings.Contains(d.stderr.String(), "is kept in a checkpoint") {
			kept++
		}
	}
	r.t.Logf("%d workers have gone within %v", len(r.workers),
		time.Since(began).Round(time.Millisecond))
	if kept == 0 {
		r.t.Errorf("nobody kept the state")
	}
	r.workers = nil
	r.untilNotice("paused")
	plans, _ := r.plans()
	if last := plans[len(plans)-1]; last.Phase != rondov1.Phase_PHASE_PAUSED {
		r.t.Errorf("the plan is %v: %s", last.Phase, last.Reason)
	}
}

// newestCheckpoint is the step of the newest checkpoint in a folder.
func (r *rig) newestCheckpoint(dir string) (step float64) {
	r.t.Helper()
	manifests, err := filepath.Glob(filepath.Join(dir, "step-*", "manifest.json"))
	if err != nil || len(manifests) == 0 {
		r.t.Fatalf("no checkpoint in %s: %v", dir, err)
	}
	newest := filepath.Base(filepath.Dir(slices.Max(manifests)))
	if _, err := fmt.Sscanf(newest, "step-%f", &step); err != nil {
		r.t.Fatalf("%s: %v", newest, err)
	}
	return step
}
