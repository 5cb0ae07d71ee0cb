package worker

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"rondo/audit"
	"rondo/job"
	rondov1 "rondo/proto/rondo/v1"
)

// rehearse runs a job of three workers with an injected fault, and proves its logs.
func rehearse(
	t *testing.T, clipScope, inject string, change ...func(*rondov1.JobSpec),
) (w *world, report *audit.Report) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	data, err := job.OpenData(t.Context(), simSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		spec := simSpec()
		spec.AuditDir, spec.Submitted, spec.MinWorkers = folder, 1, 1
		spec.ClipScope, spec.Inject = clipScope, spec.Inject+"; "+inject
		for _, f := range change {
			f(spec)
		}
		w = newWorld(spec, data, 1)
		w.submit(t)
		w.startCoordinator(1)
		for range spec.Workers {
			w.startWorker()
		}
		w.finish(t)
	})
	if report, err = audit.Prove(t.Context(), os.DirFS(folder), nil, nil); err != nil {
		t.Fatal(err)
	}
	return w, report
}

// TestSkippedUpdatesByName: the audit says which updates are missing, and who caused it. If the sum
// is clipped, ranks look for the cause in their own gradients after the first skipped step.
func TestSkippedUpdatesByName(t *testing.T) {
	for scope, want := range map[string][]audit.Skip{
		"worker": {{First: 10, Last: 14, Nonfinite: 1, Rank: 1}},
		"global": {{First: 10, Last: 10}, {First: 11, Last: 14, Nonfinite: 1, Rank: 1}},
	} {
		w, report := rehearse(t, scope, "nan rank=1 step=10-14 times=0")
		if w.ended.Failed || !report.Sound() || report.Last != w.spec.Steps || report.Skipped != 5 {
			t.Errorf("%s: %s; %+v", scope, w.ended.Reason, report)
		}
		for i := range want {
			want[i].Generation = uint64(w.ended.Generation)
			if want[i].Nonfinite == 1 {
				want[i].Worker = w.rings[want[i].Generation][1]
			}
		}
		if !slices.Equal(report.Skips, want) {
			t.Errorf("%s: skipped %v; want %v", scope, report.Skips, want)
		}
	}
}

// TestRandomSteps: with --nonfinite step the workers take the same random step, and the audit tells
// it from a step that left the parameters.
func TestRandomSteps(t *testing.T) {
	w, report := rehearse(t, "worker", "nan rank=1 step=10-12 times=0",
		func(s *rondov1.JobSpec) { s.Nonfinite = "step" })
	if w.ended.Failed || !report.Sound() || report.Last != w.spec.Steps || report.Skipped != 3 ||
		len(report.Skips) != 1 || !report.Skips[0].Random || !strings.HasSuffix(
		report.Skips[0].String(), "was not finite; random steps were taken instead") {
		t.Errorf("%s; %+v", w.ended.Reason, report)
	}
}

// TestRankThatMakesNaNIsPutOut: the others go on without a worker that alone makes six steps in a
// row not finite. It returns, and the job is done in full.
func TestRankThatMakesNaNIsPutOut(t *testing.T) {
	for scope, last := range map[string]string{"worker": "15", "global": "16"} {
		w, report := rehearse(t, scope, "nan rank=1 step=10-"+last+" times=0")
		if w.ended.Failed || !report.Sound() || report.Last != w.spec.Steps {
			t.Fatalf("%s: %s; %+v", scope, w.ended.Reason, report)
		}
		const why = "alone made 6 steps in a row not finite"
		out := slices.IndexFunc(w.log, func(line string) bool {
			return strings.Contains(line, "running, 2 members") && strings.Contains(line, why)
		})
		back := slices.IndexFunc(w.log, func(line string) bool {
			return strings.Contains(line, "running, 3 members") && strings.Contains(line, ".2")
		})
		if out < 0 || back < out {
			t.Errorf("%s: put out in line %d, back in line %d of\n%s", scope, out, back,
				strings.Join(w.log, "\n"))
		}
	}
}

// TestAllNonfiniteEndsTheJob: a job that diverges ends, although a rank may have been the first.
func TestAllNonfiniteEndsTheJob(t *testing.T) {
	w, report := rehearse(t, "worker",
		"nan rank=1 step=10-15 times=0; nan rank=* step=16-60 times=0")
	const why = "was not finite in 10 steps in a row, which is --nonfinite-limit"
	if !w.ended.Failed || !strings.Contains(w.ended.Reason, why) || !report.Sound() ||
		report.Last != 19 || report.Skipped != 10 {
		t.Errorf("%s; %+v", w.ended.Reason, report)
	}
}
