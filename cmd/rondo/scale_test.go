package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/local"
)

// runningJob is a job of two workers in an etcd of its own, with a coordinator.
type runningJob struct {
	where meet.Config
	store *etcdstore.Store
}

func startJob(ctx context.Context, t *testing.T) runningJob {
	t.Helper()
	etcd, err := local.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	j := runningJob{where: meet.Config{Etcd: []string{etcd.Endpoint()}, Job: "demo"}}
	if j.store, err = j.where.Store(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.store.Close() })
	spec := jobspec.Textbook()
	spec.Job, spec.Workers, spec.MinWorkers, spec.Batch = "demo", 2, 2, 6
	text, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.store.PutSpec(ctx, text); err != nil {
		t.Fatal(err)
	}
	leading, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := coordinator.Run(leading, coordinator.Config{Config: j.where})
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		var left *app.LeftError
		if err := <-ended; !errors.As(err, &left) {
			t.Errorf("the coordinator: %v", err)
		}
	})
	return j
}

func (j runningJob) join(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	r, err := j.store.Register(ctx, cluster.Member{ID: id, Host: "h", Version: meet.Version()},
		30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Leave(context.Background()) })
}

// await returns when the stored plan's ring has this many members.
func (j runningJob) await(ctx context.Context, t *testing.T, size int) {
	t.Helper()
	enough := errors.New("enough")
	err := j.store.WatchPlan(ctx, func(p cluster.Plan) error {
		if len(p.Members) == size {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("waiting for a ring of %d: %v", size, err)
	}
}

// rondo runs the command on the job, and returns its exit code and output.
func (j runningJob) rondo(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, wrong strings.Builder
	command := root()
	command.SetOut(&out)
	flags := []string{args[0], "--etcd", j.where.Etcd[0], "--job", j.where.Job}
	code = app.Run(ctx, command, append(flags, args[1:]...), &wrong)
	return code, out.String(), wrong.String()
}

func TestScaleAndWorkersOfARunningJob(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := startJob(ctx, t)
	for _, id := range []string{"w1", "w2"} {
		j.join(ctx, t, id)
	}
	j.await(ctx, t, 2)
	j.join(ctx, t, "w3")
	code, out, wrong := j.rondo(ctx, "scale", "3")
	if code != 0 || !strings.Contains(out, "at most 3") {
		t.Errorf("scale 3: %d, %q, %q", code, out, wrong)
	}
	j.await(ctx, t, 3)
	code, out, wrong = j.rondo(ctx, "workers", "--json")
	var state jobState
	if err := json.Unmarshal([]byte(out), &state); code != 0 || err != nil {
		t.Fatalf("workers --json: %d, %v, %q, %q", code, err, out, wrong)
	}
	if state.WorldSize != 3 || state.Limit != 3 || state.Rings != 2 || len(state.Workers) != 3 ||
		!strings.HasPrefix(state.Leader, "coordinator-") {
		t.Errorf("workers --json: %s", out)
	}
	bounds := "this job can have 2 (--min-workers) to 6 (--batch: each worker needs a lane)\n"
	for bad, want := range map[string]string{
		"1": "scaling the job: 1 worker: " + bounds, "7": "scaling the job: 7 workers: " + bounds,
		"-3": bounds, "many": `"many" is not a number of workers`,
	} {
		code, _, wrong := j.rondo(ctx, "scale", "--", bad)
		if code != 2 || !strings.Contains(wrong, want) || strings.Count(wrong, "\n") != 1 {
			t.Errorf("scale %s: %d, %q, want %q", bad, code, wrong, want)
		}
	}
	j.where.Job = "nobody"
	for _, args := range [][]string{{"scale", "2"}, {"workers"}} {
		code, _, wrong := j.rondo(ctx, args...)
		if code != 2 || !strings.Contains(wrong, "--job nobody: this etcd has no job") {
			t.Errorf("%v of no job: %d, %q", args, code, wrong)
		}
	}
}
