package worker

import (
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"rondo/audit"
	"rondo/job"
)

// rehearse runs a job of three workers with an injected fault, and proves its logs.
func rehearse(t *testing.T, clipScope, inject string) (w *world, report *audit.Report) {
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
