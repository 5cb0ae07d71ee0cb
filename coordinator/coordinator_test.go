package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rondo/checkpoint"
	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/internal/transcript"
	"rondo/job/jobspec"
	"rondo/local"
	"rondo/telemetry"
	"rondo/worker"
)

const (
	patience = 2 * time.Minute
	// quick is a job that takes a moment.
	quick = "max_tokens: 1200\nhidden: 4\nbatch: 4\nbptt: 4\nsteps: 3\nepochs: 0\n" +
		"sample_tokens: 0\nworkers: 1\nlease_ttl: 2s\nchunk_timeout: 1s\n"
)

// endless makes a job one that trains until it is stopped, at 100 steps a second at most: at full
// speed it takes the processors, and its log is long.
func endless(spec string) string {
	return strings.Replace(spec, "steps: 3", "steps: 100000000", 1) +
		"inject: delay rank=* phase=load for=10ms times=0\n"
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain isolates the tests from the user's caches and credentials.
func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "rondo-coordinator-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = errors.Join(os.Setenv("XDG_CACHE_HOME", dir),
			os.Setenv("AWS_ACCESS_KEY_ID", "anybody"),
			os.Setenv("AWS_SECRET_ACCESS_KEY", "anything"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// place is an etcd with processes of one job. All end with the test.
type place struct {
	t         *testing.T
	ctx       context.Context
	where     meet.Config
	store     *etcdstore.Store
	processes sync.WaitGroup
	log       *transcript.Text
	allow     jobspec.Allow // of its workers
}

// logged returns how often the processes' log contains words.
func (p *place) logged(words string) int { return strings.Count(p.log.String(), words) }

func newPlace(t *testing.T) *place {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p := &place{t: t, ctx: ctx, log: &transcript.Text{},
		allow: jobspec.Allow{Paths: []string{"/"}, Inject: true}}
	etcd, err := local.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p.where = meet.Config{Etcd: []string{etcd.Endpoint()}, Job: "demo",
		Log: slog.New(slog.NewTextHandler(p.log, nil))}
	if p.store, err = p.where.Store(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		p.processes.Wait()
		_ = p.store.Close()
		etcd.Close()
		if t.Failed() {
			t.Logf("the processes' log:\n%s", p.log)
		}
	})
	return p
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// coordinator starts a coordinator that stays. It returns a function that asks it to leave, and its
// result.
func (p *place) coordinator(spec string, run int64) (leave func(), result <-chan error) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.ctx)
	cfg := coordinator.Config{Config: p.where, Spec: write(p.t, spec), Stay: true,
		Show: telemetry.NewLogView(p.where.Log, 0, time.Now)}
	cfg.Run = run
	ended := make(chan error, 1)
	p.processes.Go(func() {
		_, err := coordinator.Run(ctx, cfg)
		ended <- err
	})
	return cancel, ended
}

// work runs a worker of a run until it ends.
func (p *place) work(run int64) (did string, err error) { return p.workUntil(p.ctx, run) }

// workUntil is work with a worker that is asked to leave when ctx ends.
func (p *place) workUntil(ctx context.Context, run int64) (did string, err error) {
	where := p.where
	where.Run = run
	return worker.Run(ctx, worker.Config{Config: where, Allow: p.allow})
}

// until waits until the job's state satisfies holds.
func (p *place) until(what string, holds func(cluster.View, int64) bool) cluster.View {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		view, err := p.store.View(p.ctx)
		if err == nil && holds(view, jobspec.RunOf(view.Spec)) {
			return view
		}
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			p.t.Fatalf("%s: it did not come; the job is %+v, %v", what, view.Plan, err)
		}
	}
}

// TestRunsFollowEachOther: several coordinators bring the same run, together and later; it runs
// once. A newer run follows it, and processes of the older one are told so.
func TestRunsFollowEachOther(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var leaves []func()
	var results []<-chan error
	start := func(run int64) {
		leave, result := p.coordinator(quick, run)
		leaves, results = append(leaves, leave), append(results, result)
	}
	start(1)
	start(1)
	did, err := p.work(1)
	if err != nil || !strings.Contains(did, "done after step 3") {
		t.Fatalf("the worker of run 1: %q, %v", did, err)
	}
	start(1) // after the end
	await(t, p, "each coordinator sees the end of run 1", func() bool {
		return p.logged(`msg="the run has ended; waiting for the next one" run=1`) == 3
	})
	for _, words := range []string{`msg="joined the ring" rank=0 of=1`, "threads=",
		`msg="ring of 1, generation 1`, `msg="step 3/3`,
		`msg="done after step 3 (--steps 3 reached): loss `} {
		if n := p.logged(words); n != 1 { // a coordinator that does not lead does not log it
			t.Errorf("the log has %s %d times", words, n)
		}
	}
	first := p.until("the end of run 1", func(v cluster.View, run int64) bool {
		return run == 1 && v.Plan.Phase == cluster.Ended
	})
	start(2)
	if did, err = p.work(2); err != nil {
		t.Fatalf("the worker of run 2: %q, %v", did, err)
	}
	second := p.until("the end of run 2", func(v cluster.View, run int64) bool {
		return run == 2 && v.Plan.Phase == cluster.Ended
	})
	if first.Plan.Rings != 1 || second.Plan.Rings != 1 {
		t.Errorf("run 1 had %d rings, run 2 %d; want one each", first.Plan.Rings,
			second.Plan.Rings)
	}
	var failed *app.JobError
	if did, err = p.work(1); !errors.As(err, &failed) || !strings.Contains(err.Error(),
		"this worker is of run 1 of job demo, and run 2 has been submitted") {
		t.Errorf("a late worker of run 1: %q, %v", did, err)
	}
	await(t, p, "each coordinator sees the end of run 2", func() bool {
		return p.logged(`msg="the run has ended; waiting for the next one" run=2`) == 4
	})
	for i, leave := range leaves {
		leave()
		if err := <-results[i]; err != nil {
			t.Errorf("coordinator %d, after the job's end: %v", i, err)
		}
	}
}

func await(t *testing.T, p *place, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			t.Fatalf("%s: it did not come", what)
		}
	}
}

// TestAnOlderRunIsLedToItsEnd: a coordinator whose run must wait says so. It leads the older run as
// long as a worker works on it or waits to.
func TestAnOlderRunIsLedToItsEnd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	leave, result := p.coordinator(strings.Replace(quick, "workers: 1", "workers: 2", 1), 1)
	p.processes.Go(func() { _, _ = p.work(1) })
	p.until("run 1", func(v cluster.View, run int64) bool {
		return run == 1 && len(v.Members) == 1
	})
	leave()
	var left *app.LeftError
	if err := <-result; !errors.As(err, &left) {
		t.Errorf("a coordinator that was asked to go: %v", err)
	}
	p.coordinator(quick, 2)
	await(t, p, "the wait is told", func() bool {
		return p.logged("an older run of the job has not ended") > 0
	})
	const enough = 12 * time.Second // an abandoned run would be superseded by then
	time.Sleep(enough)
	p.until("still run 1", func(v cluster.View, run int64) bool {
		return run == 1 && v.Plan.Phase == cluster.Forming && len(v.Members) == 1
	})
	client, err := p.where.Client(p.store, 0)
	if err == nil {
		err = client.Stop(p.ctx, "a test")
	}
	if err != nil {
		t.Fatal(err)
	}
	p.until("run 2", func(v cluster.View, run int64) bool {
		return run == 2 && v.Plan.Phase == cluster.Forming && v.Leader.ID != ""
	})
}

// TestAnAbandonedRunMakesWay: a run that has no workers does not delay the next one. It has never
// started, or it is paused.
func TestAnAbandonedRunMakesWay(t *testing.T) {
	t.Parallel()
	for name, abandon := range map[string]func(*place){
		"forming": func(p *place) {
			p.until("run 1", func(v cluster.View, run int64) bool {
				return run == 1 && v.Leader.ID != ""
			})
		},
		"paused": func(p *place) {
			ctx, leave := context.WithCancel(p.ctx)
			p.processes.Go(func() { _, _ = p.workUntil(ctx, 1) })
			p.until("a ring of run 1", func(v cluster.View, _ int64) bool {
				return v.Plan.Phase == cluster.Running
			})
			leave()
			p.until("the pause of run 1", func(v cluster.View, _ int64) bool {
				return v.Plan.Phase == cluster.Paused && len(v.Members) == 0
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			folder := "checkpoint_dir: " + t.TempDir() + "/run\n"
			leave, result := p.coordinator(endless(quick)+folder, 1)
			abandon(p)
			leave()
			<-result
			p.coordinator(quick, 2)
			if did, err := p.work(2); err != nil || !strings.Contains(did, "done after step 3") {
				t.Errorf("the worker of run 2: %q, %v", did, err)
			}
			if p.logged("superseded by run 2: no worker is left of this one") == 0 {
				t.Error("nobody says why run 1 has ended")
			}
		})
	}
}

// TestAnotherSpecOfTheSameRunIsTold: a different spec for a submitted run changes nothing and is
// reported.
func TestAnotherSpecOfTheSameRunIsTold(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	_, _ = p.coordinator(quick, 1)
	p.until("run 1", func(v cluster.View, run int64) bool { return run == 1 && v.Leader.ID != "" })
	const words = "this file is not what the run was submitted with"
	p.coordinator(quick, 1)
	p.coordinator(quick+"seed: 7\n", 1)
	await(t, p, "the difference is told", func() bool { return p.logged(words) > 0 })
	if did, err := p.work(1); err != nil {
		t.Errorf("the worker: %q, %v", did, err)
	}
	await(t, p, "all see the end", func() bool {
		return p.logged(`msg="the run has ended; waiting for the next one" run=1`) == 3
	})
	if n := p.logged(words); n != 1 {
		t.Errorf("the difference is told %d times", n)
	}
}

// TestAFailedRunIsOutlasted: the process stays after a failed run and leads the next one.
func TestAFailedRunIsOutlasted(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.coordinator(quick+"corpus: /nowhere/book.txt\n", 1)
	if did, err := p.work(1); err == nil {
		t.Fatalf("the worker of run 1: %q", did)
	}
	await(t, p, "the failure is told", func() bool {
		return p.logged("failed=true") == 1 && p.logged("/nowhere/book.txt") > 0
	})
	p.coordinator(quick, 2)
	if did, err := p.work(2); err != nil {
		t.Errorf("the worker of run 2: %q, %v", did, err)
	}
}

// TestSeveralMayKeepTheSameStep: workers are suspended together, and none can go on without the
// others. Each saves its state, and later workers go on from it.
func TestSeveralMayKeepTheSameStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	folder := filepath.Join(t.TempDir(), "run")
	spec := strings.Replace(quick, "workers: 1", "workers: 2\nmin_workers: 2", 1)
	p.coordinator(endless(spec)+
		"checkpoint_dir: "+folder+"\ncheckpoint_every: 200\n", 1)
	ctx, leave := context.WithCancel(p.ctx)
	results := make(chan error, 2)
	for range cap(results) {
		p.processes.Go(func() {
			_, err := p.workUntil(ctx, 1)
			results <- err
		})
	}
	store, err := checkpoint.Open(p.ctx, folder, checkpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	await(t, p, "they train", func() bool {
		steps, err := store.Steps(p.ctx)
		return err == nil && len(steps) > 0
	})
	leave()
	kept := 0
	for range cap(results) {
		err := <-results
		var left *app.LeftError
		if !errors.As(err, &left) {
			t.Errorf("a worker that was asked to go: %v", err)
		}
		if err != nil && strings.Contains(err.Error(), "is kept in a checkpoint") {
			kept++
		}
	}
	p.until("the pause", func(v cluster.View, _ int64) bool {
		return v.Plan.Phase == cluster.Paused && len(v.Members) == 0
	})
	newest, err := store.LatestValid(p.ctx)
	if err != nil || len(newest.Skipped) > 0 || kept == 0 {
		t.Fatalf("%d workers kept %+v, %v", kept, newest, err)
	}
	t.Logf("%d workers kept step %d", kept, newest.Step)
}

// TestEtcdMayComeLater: with Stay, a process waits for etcd longer than usual.
func TestEtcdMayComeLater(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var up atomic.Bool
	tries := make(chan struct{}, 1<<10)
	p.where.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		select {
		case tries <- struct{}{}:
		default:
		}
		if !up.Load() {
			return nil, fmt.Errorf("dial %s: connection refused", address)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	_, result := p.coordinator(quick, 1)
	const usual = 10 * time.Second // the limit without Stay
	select {
	case err := <-result:
		t.Fatalf("it gave up: %v", err)
	case <-time.After(usual + time.Second):
	}
	if len(tries) < 2 || p.logged("etcd does not answer") != 1 {
		t.Errorf("etcd was tried %d times, and that was told of %d times", len(tries),
			p.logged("etcd does not answer"))
	}
	up.Store(true)
	p.until("run 1", func(v cluster.View, run int64) bool { return run == 1 && v.Leader.ID != "" })
}

func TestWrongSpecs(t *testing.T) {
	where := meet.Config{Etcd: []string{"127.0.0.1:1"}, Job: "demo"}
	for _, c := range []struct {
		name, path, words string
		run               int64
	}{
		{"no file", "/nowhere/job.yaml", "/nowhere/job.yaml", 1},
		{"no YAML", write(t, "hidden: ["), "not valid YAML", 1},
		{"unknown key", write(t, "hiden: 3"), `unknown key "hiden"`, 1},
		{"impossible", write(t, "workers: 4\nbatch: 2"), "--batch", 1},
		{"another job", write(t, "job: other"), `job "other", and --job is "demo"`, 1},
		{"no run", write(t, "hidden: 3"), "--spec needs --run", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := coordinator.Config{Config: where, Spec: c.path}
			cfg.Run = c.run
			_, err := coordinator.Run(t.Context(), cfg)
			var wrong *app.UsageError
			var spec *jobspec.UsageError
			if !errors.As(err, &wrong) && !errors.As(err, &spec) ||
				!strings.Contains(err.Error(), c.words) {
				t.Errorf("%v: want a usage error with %q", err, c.words)
			}
		})
	}
}
