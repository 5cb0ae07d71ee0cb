package local

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/job/jobspec"
)

// TestAStartThatCannotSucceedEndsSoon: if every restarted process fails in the same way, the job
// ends before --join-timeout, and the reason is the failure.
func TestAStartThatCannotSucceedEndsSoon(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	etcd, err := StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	for name, c := range map[string]struct {
		script string
		least  int64
		words  string
	}{
		"all of them": {"exit 1", 1, "every worker process has ended"},
		"one of them": {"mkdir \"$0\" 2>/dev/null || exit 1; sleep 600 & wait", 2,
			"1 of at least 2 worker processes (--min-workers) are left for the start"},
	} {
		t.Run(name, func(t *testing.T) {
			const reason = "worker w7: no space left on device"
			spec := jobspec.Textbook()
			spec.Job, spec.Workers, spec.MinWorkers = strings.ReplaceAll(name, " ", "-"), 2, c.least
			store := planned(ctx, t, etcd, spec.Job, cluster.Plan{Reason: reason})
			workers := NewWorkers(all("/bin/sh", "-c", c.script,
				filepath.Join(t.TempDir(), "first")), func(int, string) {})
			defer workers.Kill()
			start(t, workers, 2)
			life, end := context.WithCancel(ctx)
			w := &watch{run: Run{Spec: spec, Restarts: 2, Log: func(string) {}}, store: store,
				workers: workers, end: end}
			w.guard(life)
			_, err := w.result(nil, nil)
			if ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), c.words) ||
				!strings.Contains(err.Error(), reason) {
				t.Errorf("%v: want %q and %q", err, c.words, reason)
			}
		})
	}
}

// TestGiveUp: a job is given up when too few of its processes are left for its phase, but never
// after a good end, whose last event is still to come.
func TestGiveUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	etcd, err := StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	for name, c := range map[string]struct {
		plan cluster.Plan
		left int
		want bool
	}{
		"forming-none":  {cluster.Plan{}, 0, true},
		"forming-few":   {cluster.Plan{}, 1, true},
		"forming-all":   {cluster.Plan{}, 2, false},
		"training-none": {cluster.Plan{Phase: cluster.Running}, 0, true},
		"training-few":  {cluster.Plan{Phase: cluster.Running}, 1, false},
		"ended":         {cluster.Plan{Phase: cluster.Ended}, 0, false},
		"failed":        {cluster.Plan{Phase: cluster.Ended, Failed: true}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			spec := jobspec.Textbook()
			spec.Job, spec.Workers, spec.MinWorkers = name, 2, 2
			store := planned(ctx, t, etcd, name, c.plan)
			life, end := context.WithCancel(ctx)
			defer end()
			w := &watch{run: Run{Spec: spec}, store: store, end: end}
			got := w.giveUp(life, Exit{PID: 1}, c.left)
			if got != c.want || (life.Err() != nil) != c.want || (w.giveUpError != nil) != c.want {
				t.Errorf("given up: %t, ended: %t, because %v; want %t", got, life.Err() != nil,
					w.giveUpError, c.want)
			}
		})
	}
}

// planned returns the store of a job with the given plan.
func planned(ctx context.Context, t *testing.T, etcd *Etcd, job string,
	plan cluster.Plan) *etcdstore.Store {
	t.Helper()
	store, err := meet.Config{Etcd: []string{etcd.Endpoint()}, Job: job}.Store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, _, err := store.PutSpec(ctx, []byte("spec")); err != nil {
		t.Fatal(err)
	}
	leading, err := store.Campaign(ctx, cluster.Leader{ID: "c"}, time.Minute)
	if err == nil {
		_, err = leading.LoadPlan(ctx)
	}
	if err == nil {
		err = leading.PutPlan(ctx, plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	return store
}
