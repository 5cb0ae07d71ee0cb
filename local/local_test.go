package local

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rondo/job/jobspec"
)

func TestEtcdServesOnAFreePort(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	etcd, err := StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()},
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	got, err := client.Get(ctx, "key")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Fatalf("got %v, %v", got, err)
	}
}

// TestEtcdIgnoresBrowsers: a web page cannot read the job's keys, neither by JSON nor under a name
// that it has given to 127.0.0.1.
func TestEtcdIgnoresBrowsers(t *testing.T) {
	etcd, err := StartEtcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	for name, host := range map[string]string{"by JSON": "", "by another name": "evil.example"} {
		path := "/v3/kv/range"
		if host != "" {
			path = "/version"
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+etcd.Endpoint()+path, strings.NewReader(`{"key":"AA==","range_end":"AA=="}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		request.Header.Set("Origin", "http://evil.example")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode < 400 || answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %s, %v", name, answer.Status, answer.Header)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestInterruptedBeforeTheJob: an interrupt before anything runs is told as that.
func TestInterruptedBeforeTheJob(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spec := jobspec.Textbook()
	spec.CheckpointDir = jobspec.NoCheckpoints
	_, err := Run{Spec: spec, LocalWorkers: -1, Log: func(string) {}}.Train(ctx)
	if err == nil || err.Error() != "interrupted before the job began" {
		t.Errorf("%v", err)
	}
}

// TestSweepSparesTheLiving: sweeps run while others make their folders, and remove none that is
// locked.
func TestSweepSparesTheLiving(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				sweep(tmp)
				dir, lock, err := lockedFolder()
				if err != nil {
					t.Error(err)
					return
				}
				sweep(tmp)
				if !isAt(lock, filepath.Join(dir, lockFile)) {
					t.Errorf("%s was removed while locked", dir)
				}
				_ = lock.Close() // as if its process died
			}
		})
	}
	all.Wait()
	sweep(tmp)
	left, err := filepath.Glob(filepath.Join(tmp, etcdFolder+"*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestWorkersLogAndExit(t *testing.T) {
	var mu sync.Mutex
	lines := map[string]bool{}
	script := `echo "process $$ is here" >&2; exit 3`
	workers := NewWorkers(all("/bin/sh", "-c", script), func(i int, line string) {
		mu.Lock()
		defer mu.Unlock()
		lines[fmt.Sprintf("%d %s", i, strings.Fields(line)[0])] = true
	})
	start(t, workers, 3)
	seen := map[int]bool{}
	for range 3 {
		exit := <-workers.Exits()
		if exit.Err == nil || !strings.Contains(exit.Err.Error(), "exit status 3") {
			t.Errorf("worker %d ended with %v", exit.Worker, exit.Err)
		}
		seen[exit.Worker] = true
	}
	if killed := workers.Wait(context.Background()); killed != nil || len(seen) != 3 {
		t.Errorf("killed %v, seen %v", killed, seen)
	}
	if len(lines) != 3 {
		t.Errorf("lines %v", lines)
	}
}

func TestWorkersAreEndedWithTheContext(t *testing.T) {
	workers := NewWorkers(all("/bin/sh", "-c", "sleep 600 & wait"), func(int, string) {})
	start(t, workers, 2)
	if n := workers.Running(); n != 2 {
		t.Errorf("%d run", n)
	}
	defer workers.Kill()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan []int, 1)
	go func() { done <- workers.Wait(ctx) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the workers outlived their context")
	}
}

func start(t *testing.T, workers *Workers, n int) {
	t.Helper()
	for i := range n {
		if err := workers.Start(i); err != nil {
			t.Fatal(err)
		}
	}
}

// all returns the same command line for every worker.
func all(argv ...string) func(int) []string { return func(int) []string { return argv } }

func TestStartFails(t *testing.T) {
	err := NewWorkers(all("/nowhere/rondo"), func(int, string) {}).Start(0)
	if err == nil || !strings.Contains(err.Error(), "worker 0: ") {
		t.Errorf("error %v", err)
	}
}
