package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	elected "rondo/cluster/coordinator"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/cluster/rpc"
	"rondo/coordinator"
	"rondo/job/jobspec"
	"rondo/local"
	rondov1 "rondo/proto/rondo/v1"
)

// limit bounds a test's waits.
const limit = 40 * time.Second

// aJob is a job in an etcd of its own, with workers and coordinators made by the test.
type aJob struct {
	t     *testing.T
	close func() // etcd
	where meet.Config
	store *etcdstore.Store
	spec  *rondov1.JobSpec
}

func newJob(t *testing.T) *aJob {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	j := &aJob{t: t, spec: jobspec.Textbook()}
	j.spec.Job, j.spec.Workers, j.spec.MinWorkers = "demo", 2, 1
	j.spec.Batch, j.spec.Bptt = 6, 10
	etcd, err := local.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	j.close = sync.OnceFunc(etcd.Close)
	t.Cleanup(j.close)
	j.where = meet.Config{Etcd: []string{etcd.Endpoint()}, Job: "demo"}
	if j.store, err = j.where.Store(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.store.Close() })
	return j
}

// submit stores a run of the job.
func (j *aJob) submit(run int64) {
	j.t.Helper()
	j.spec.Submitted = run
	text, err := proto.Marshal(j.spec)
	if err != nil {
		j.t.Fatal(err)
	}
	if _, created, err := j.store.PutSpec(j.t.Context(), text); err != nil || !created {
		j.t.Fatalf("run %d: created %t, %v", run, created, err)
	}
}

// lead starts a coordinator; stop has it give the leadership up. It ends with the run.
func (j *aJob) lead(pod string) (stop func()) {
	j.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		j.t.Fatal(err)
	}
	id := "coordinator-" + pod + "-1"
	job := coordinator.JobOf(j.spec)
	service, err := rpc.NewServer(id, job, j.store.Leader)
	if err != nil {
		j.t.Fatal(err)
	}
	server := service.GRPC()
	served, led := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- server.Serve(listener) }()
	go func() {
		_, err := elected.Run(ctx, elected.Config{Job: job, LeaseTTL: 5 * time.Second,
			Self:     cluster.Leader{ID: id, Address: listener.Addr().String()},
			Election: j.store, Events: service.Events(), Audience: service,
			Farewell: func(ctx context.Context) {
				limited, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				_ = service.Drain(limited)
			}})
		led <- err
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-led; err != nil && !errors.Is(err, context.Canceled) {
			j.t.Errorf("%s: %v", id, err)
		}
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			j.t.Errorf("%s: %v", id, err)
		}
	})
	j.t.Cleanup(stop)
	return stop
}

// worker is a registered worker that sends the test's reports.
type worker struct {
	*rpc.Reporter
	t     *testing.T
	id    string
	entry cluster.Registration
}

func (j *aJob) join(id string) *worker {
	j.t.Helper()
	client, err := j.where.Client(j.store, limit)
	if err != nil {
		j.t.Fatal(err)
	}
	w := &worker{t: j.t, id: id}
	if w.entry, err = j.store.Register(j.t.Context(), cluster.Member{ID: id, Host: "host-" + id,
		Device: "cpu", Version: meet.Version()}, 20*time.Second); err != nil {
		j.t.Fatal(err)
	}
	if w.Reporter, err = client.NewReporter(id); err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(w.leave)
	return w
}

func (w *worker) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.Close(ctx)
	_ = w.entry.Leave(ctx)
}

func (w *worker) say(events ...*rondov1.Event) {
	w.t.Helper()
	for _, e := range events {
		if err := w.Report(w.t.Context(), e); err != nil {
			w.t.Fatal(err)
		}
	}
}

func step(generation uint64, n int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Step{Step: &rondov1.StepEvent{Step: n,
		TotalSteps: 20, Epoch: 1, Loss: 2, Tokens: 60, TokensPerSecond: 600, WorldSize: 2,
		Generation: generation}}}
}

func seated(generation uint64, w *worker, rank int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Worker{Worker: &rondov1.WorkerEvent{Id: w.id,
		Rank: rank, Generation: generation}}}
}

func saved(n int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Checkpoint{Checkpoint: &rondov1.CheckpointEvent{
		Step: n, Path: fmt.Sprintf("runs/step-%d", n)}}}
}

func done(generation uint64, n int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Done{Done: &rondov1.DoneEvent{Step: n, Epoch: 1,
		Loss: 1, TokensPerSecond: 600, Generation: generation}}}
}

// shown is a state as the page serves it.
type shown struct {
	Job, Run, Phase, Reason, Leader string
	Generation                      uint64
	Troubles                        map[string]struct{ Text string }
	Progress                        struct{ Step int64 }
	Workers                         []struct{ State, Host string }
	Checkpoints                     []struct{ Path string }
	Notices                         []struct{ Text, Kind string }
	Curve                           struct{ Points [][]float64 }
}

// ring is how many workers are in the ring.
func (s shown) ring() (n int) {
	for _, w := range s.Workers {
		if w.State == "ring" {
			n++
		}
	}
	return n
}

// observed is an observer of the job.
type observed struct {
	t    *testing.T
	url  string
	stop func() error
}

func (j *aJob) observe(beside *Beside) *observed {
	j.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	opened, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Meet: j.where, Listen: "127.0.0.1:0", Beside: beside,
			Opened: func(address string) { opened <- address }})
	}()
	o := &observed{t: j.t, stop: sync.OnceValue(func() error {
		cancel()
		return <-ended
	})}
	j.t.Cleanup(func() {
		_ = o.stop()
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case address := <-opened:
		o.url = "http://" + address
	case err := <-ended:
		j.t.Fatal(err)
	}
	return o
}

func (o *observed) get(path string) (status int, body []byte) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url+path, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		o.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if body, err = io.ReadAll(answer.Body); err != nil {
		o.t.Fatal(err)
	}
	return answer.StatusCode, body
}

// until waits for a state in which fn is true.
func (o *observed) until(what string, fn func(shown) bool) shown {
	o.t.Helper()
	due := time.NewTicker(50 * time.Millisecond)
	defer due.Stop()
	var body []byte
	for end := time.Now().Add(limit); time.Now().Before(end); <-due.C {
		var now shown
		if _, body = o.get("/api/state"); json.Unmarshal(body, &now) != nil {
			o.t.Fatalf("the state is not JSON: %s", body)
		}
		if fn(now) {
			return now
		}
	}
	o.t.Fatalf("%s did not come within %v; the state is\n%s", what, limit, body)
	panic("unreachable")
}
