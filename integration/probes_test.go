package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"rondo/internal/port"
	rondov1 "rondo/proto/rondo/v1"
)

// probe asks a process's health service as a platform does; empty: nobody answers.
func probe(t *testing.T, address, service string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx,
		&healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return ""
	}
	return answer.Status.String()
}

const (
	serving    = "SERVING"
	notServing = "NOT_SERVING"

	// promptly is how long a process that is asked to go may take: a busy machine's seconds, and
	// less than any deadline by which it would go anyway.
	promptly = 20 * time.Second
)

// want holds a process to its answers to the three probes.
func want(t *testing.T, address, startup, readiness, liveness string) {
	t.Helper()
	for service, want := range map[string]string{"startup": startup, "readiness": readiness,
		"": readiness, "liveness": liveness} {
		if got := probe(t, address, service); got != want {
			t.Errorf("probe %q: %q, want %q", service, got, want)
		}
	}
}

// TestProbes: a worker that waits for its job has not started, and is alive; one that is registered
// is ready, also as a spare; one whose device computes without an end is not alive, when it is
// time. The others of its kind are not disturbed by that.
func TestProbes(t *testing.T) {
	t.Parallel()
	r := &rig{job: "probed", folder: binaries, etcd: startEtcds(t, nil)}
	r.flags = r.place(r.etcd.endpoints()...)
	worker := func() (*daemon, string) {
		address := port.ForTest(t).Address()
		return r.daemon(nil, "worker", append([]string{"--health", address, "--host", "node-a"},
			r.flags...)), address
	}
	r.trial = &trial{t: t}
	first, firstProbe := worker()
	await(t, "the worker answers probes", func() bool {
		return probe(t, firstProbe, "liveness") == serving
	})
	want(t, firstProbe, notServing, notServing, serving)
	coordinator := port.ForTest(t).Address()
	leader := r.daemon(nil, "coordinator", append([]string{"--health", coordinator, "--run", "1",
		"--spec", write(t, "job.yaml", `
max_tokens: 20000
hidden: 8
batch: 4
bptt: 5
epochs: 0
steps: 1000000
workers: 1
chunk_timeout: 250ms
lease_ttl: 2s
step_timeout: 1s
regroup_timeout: 4s
join_timeout: 5s
inject: "delay rank=0 step=20 phase=forward for=10m"
`)}, r.flags...))
	await(t, "the worker is registered", func() bool {
		return probe(t, firstProbe, "readiness") == serving
	})
	want(t, firstProbe, serving, serving, serving)
	want(t, coordinator, serving, serving, serving)
	_, spareProbe := worker()
	await(t, "the spare is registered", func() bool {
		return probe(t, spareProbe, "readiness") == serving
	})
	// It hangs at step 20, for longer than four times --step-timeout and --regroup-timeout.
	await(t, "the stuck worker is found out", func() bool {
		return probe(t, firstProbe, "liveness") == notServing
	})
	if !strings.Contains(first.stderr.String(), "this worker is stuck") {
		t.Errorf("it does not say so: %s", first.stderr)
	}
	want(t, spareProbe, serving, serving, serving)
	first.kill()
	leader.signal(syscall.SIGTERM)
	if code := leader.exitCode(); code != exitLeft {
		t.Errorf("the coordinator: exit code %d", code)
	}
}

// TestSIGTERMWhileACorpusOpens: a worker that is not yet in a ring stops at once.
func TestSIGTERMWhileACorpusOpens(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "large.txt")
	line := strings.Repeat("the quick brown fox jumps over the lazy dog ", 1<<10)
	large := strings.Repeat(line+"\n", 1<<12) // 180 MiB
	if err := os.WriteFile(text, []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{job: "large", folder: binaries, etcd: startEtcds(t, nil), trial: &trial{t: t}}
	r.flags = r.place(r.etcd.endpoints()...)
	r.daemon(nil, "coordinator", append([]string{"--run", "1", "--spec", write(t, "job.yaml",
		fmt.Sprintf("corpus: %s\ntokenizer: word\nworkers: 1\n", text))}, r.flags...))
	word := filepath.Join(t.TempDir(), "termination-log")
	worker := launch(t, nil, append(environment(t), "RONDO_TERMINATION_LOG="+word,
		"XDG_CACHE_HOME="+t.TempDir()), append([]string{filepath.Join(binaries, "worker"), "--run",
		"1", "--allow-path", text}, r.flags...)...)
	await(t, "the worker reads the text", func() bool { return reads(worker.pid(), text) })
	began := time.Now()
	worker.signal(syscall.SIGTERM)
	code := worker.exitCode()
	if took := time.Since(began); code != exitLeft || took > promptly {
		t.Errorf("exit code %d after %v; it wrote:\n%s", code, took, worker.stderr)
	}
	said, err := os.ReadFile(word)
	if err != nil || !strings.HasSuffix(worker.stderr.String(), string(said)) ||
		!strings.Contains(string(said), "asked to go before the job's end") {
		t.Errorf("the last word is %q, %v; standard error:\n%s", said, err, worker.stderr)
	}
}

// reads reports whether a process has a file open.
func reads(pid int, path string) bool {
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == path {
			return true
		}
	}
	return false
}

// TestSIGTERMBeforeTheFirstRing: a worker that waits for others goes at once.
func TestSIGTERMBeforeTheFirstRing(t *testing.T) {
	t.Parallel()
	r := &rig{job: "forming", folder: binaries, etcd: startEtcds(t, nil), trial: &trial{t: t}}
	r.flags = r.place(r.etcd.endpoints()...)
	r.daemon(nil, "coordinator", append([]string{"--run", "1", "--spec", write(t, "job.yaml",
		"max_tokens: 20000\nhidden: 8\nworkers: 2\n")}, r.flags...))
	worker := r.daemon(nil, "worker", r.flags)
	await(t, "the worker is registered", func() bool { return r.registered(worker.pid()) })
	began := time.Now()
	worker.signal(syscall.SIGTERM)
	code := worker.exitCode()
	if took := time.Since(began); code != exitLeft || took > promptly {
		t.Errorf("exit code %d after %v; it wrote:\n%s", code, took, worker.stderr)
	}
}

// TestSIGTERMInARingThatDoesNotForm: a worker whose first neighbour cannot be reached does not wait
// for it until --step-timeout.
func TestSIGTERMInARingThatDoesNotForm(t *testing.T) {
	t.Parallel()
	r := &rig{job: "halted", folder: binaries, etcd: startEtcds(t, nil), trial: &trial{t: t}}
	r.flags = r.place(r.etcd.endpoints()...)
	r.daemon(nil, "coordinator", append([]string{"--run", "1", "--spec", write(t, "job.yaml",
		"max_tokens: 20000\nhidden: 8\nworkers: 2\n")}, r.flags...))
	worker := r.daemon(nil, "worker", append([]string{"--verbose"}, r.flags...))
	await(t, "the worker is registered", func() bool { return r.registered(worker.pid()) })
	answer, err := r.etcd.client.Get(request(t), r.key("members/"), clientv3.WithPrefix())
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	ghost := &rondov1.Member{}
	if err := proto.Unmarshal(answer.Kvs[0].Value, ghost); err != nil {
		t.Fatal(err)
	}
	ghost.Id, ghost.Address, ghost.Pid = "ghost", port.ForTest(t).Address(), 1
	text, err := proto.Marshal(ghost)
	if err == nil {
		_, err = r.etcd.client.Put(request(t), r.key("members/ghost"), string(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "a ring with a worker that is not there", func() bool {
		answer, err := r.etcd.client.Get(request(t), r.key("plan"))
		return err == nil && len(answer.Kvs) == 1 && answer.Kvs[0].Version > 0 &&
			strings.Contains(string(answer.Kvs[0].Value), "ghost")
	})
	began := time.Now()
	worker.signal(syscall.SIGTERM)
	code := worker.exitCode()
	if took := time.Since(began); code != exitLeft || took > promptly {
		t.Errorf("exit code %d after %v; it wrote:\n%s", code, took, worker.stderr)
	}
}

// TestSIGTERMAtTheEnd: a platform that takes one worker's success for the job's ends the others
// while they end themselves.
func TestSIGTERMAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, len(r.workers))
	for _, d := range r.workers {
		go func() {
			<-d.ended
			ended <- struct{}{}
		}()
	}
	<-ended
	for _, d := range r.workers {
		if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil &&
			!errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
	}
	r.verdict()
	for _, d := range r.workers {
		if code := d.exitCode(); code != 0 {
			t.Errorf("worker process %d: exit code %d; it wrote:\n%s", d.pid(), code, d.stderr)
		}
	}
}
