package kube

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/local"
	rondov1 "rondo/proto/rondo/v1"
)

// remoteJob is job book with an etcd and a coordinator that a command reaches through an API
// server alone: in the cluster they have other addresses than here.
type remoteJob struct {
	cluster *Cluster
	here    meet.Config
	store   *etcdstore.Store
}

func startRemoteJob(ctx context.Context, t *testing.T) *remoteJob {
	t.Helper()
	etcd, err := local.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	j := &remoteJob{here: meet.Config{Etcd: []string{etcd.Endpoint()}, Job: "book"}}
	if j.store, err = j.here.Store(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.store.Close() })
	spec := jobspec.Textbook()
	spec.Job, spec.Workers, spec.MinWorkers, spec.Batch = "book", 1, 1, 6
	spec.Submitted = 7
	text, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.store.PutSpec(ctx, text); err != nil {
		t.Fatal(err)
	}
	leading, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = coordinator.Run(leading, coordinator.Config{Config: j.here})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	_, etcdPort, _ := net.SplitHostPort(strings.TrimPrefix(etcd.Endpoint(), "http://"))
	host, port := j.leader(ctx, t)
	f := &forwarder{listening: map[string]string{
		"rondo-etcd-0:2379": "127.0.0.1:" + etcdPort,
		"leader:" + port:    net.JoinHostPort(host, port),
	}}
	server := httptest.NewServer(f)
	t.Cleanup(func() {
		f.cut()
		server.Close()
	})
	j.cluster = clusterOf(someJob(1, map[string]string{"phase": "running"}),
		somePod("rondo-etcd-0", "192.0.2.5", corev1.PodRunning, nil),
		somePod("leader", host, corev1.PodRunning, nil))
	j.cluster.Config = &rest.Config{Host: server.URL}
	return j
}

// leader waits for somebody to lead the job, and returns the address.
func (j *remoteJob) leader(ctx context.Context, t *testing.T) (host, port string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		leader, err := j.store.Leader(ctx)
		if ctx.Err() != nil {
			t.Fatalf("nobody leads: %v", err)
		}
		if err == nil {
			host, port, _ = net.SplitHostPort(leader.Address)
			return host, port
		}
	}
	return "", ""
}

// work is a worker that trains nothing: asked to stop, it says that it has saved, and is done.
func (j *remoteJob) work(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, err := j.store.Register(ctx, cluster.Member{ID: "w", Host: "h",
		Version: meet.Version()}, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	client, err := j.here.Client(j.store, 0)
	if err != nil {
		t.Fatal(err)
	}
	reporter, err := client.NewReporter("w")
	if err != nil {
		t.Fatal(err)
	}
	running, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		begun := false
		_ = j.store.WatchPlan(ctx, func(p cluster.Plan) error {
			if p.Phase == cluster.Running && !begun {
				begun = true
				close(running)
			}
			if p.Phase != cluster.Stopping {
				return nil
			}
			_ = reporter.Report(ctx, &rondov1.Event{Kind: &rondov1.Event_Done{
				Done: &rondov1.DoneEvent{Step: 12, Checkpoint: "s3://books/book/step-12",
					Stopped: true, Generation: uint64(p.Generation)}}})
			return errors.New("done")
		})
	}()
	t.Cleanup(func() {
		<-over
		_ = reporter.Close(context.WithoutCancel(ctx))
	})
	<-running
}

// TestStopThroughTheAPIServer: the command finds etcd and the leader under their addresses in the
// cluster, waits for the end, and says where the checkpoint is, with no observer to tell it.
func TestStopThroughTheAPIServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := startRemoteJob(ctx, t)
	j.work(ctx, t)
	var heard told
	how := Stop{Reason: "rondo stop", Timeout: 30 * time.Second, Say: heard.say}
	var wrong *app.UsageError
	if err := j.cluster.Stop(ctx, "book", how); !errors.As(err, &wrong) {
		t.Errorf("stopping a job whose model is lost: %v", err)
	} else {
		wants(t, err, "its model would be lost")
	}
	if view, err := j.store.View(ctx); err != nil || view.Plan.Phase != cluster.Running {
		t.Fatalf("what was refused has stopped it: %v, %v", view.Plan.Phase, err)
	}
	how.Force = true
	if err := j.cluster.Stop(ctx, "book", how); err != nil {
		t.Fatal(err)
	}
	want := "job book is running, with 1 in the ring: stopping it\n" +
		"job book has ended (stopped: rondo stop); checkpoint of step 12: s3://books/book/step-12"
	if got := heard.String(); got != want {
		t.Errorf("it said\n%s\nwant\n%s", got, want)
	}
	err := j.cluster.Stop(ctx, "book", how)
	if err == nil || err.Error() != "job book has ended: stopped: rondo stop" {
		t.Errorf("stopping it again: %v", err)
	}
}

// TestStopWithoutWorkers: a job that has none has nothing to save, and ends at once.
func TestStopWithoutWorkers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := startRemoteJob(ctx, t)
	job, err := j.cluster.Job(ctx, "book")
	check(t, err)
	job.Workers.Spec.Suspend = pointer(true)
	job.Workers.Spec.Template.Annotations = map[string]string{annotationRun: "8"}
	jobs := j.cluster.Client.BatchV1().Jobs("here")
	_, err = jobs.Update(ctx, job.Workers, metav1.UpdateOptions{})
	check(t, err)
	var heard told
	how := Stop{Reason: "rondo stop", Timeout: 30 * time.Second, Say: heard.say}
	check(t, j.cluster.Stop(ctx, "book", how))
	want := "job book has ended (stopped before the start: rondo stop) without a checkpoint: " +
		"it was submitted without --checkpoint-dir"
	if got := heard.String(); !strings.HasSuffix(got, want) {
		t.Errorf("it said\n%s\nwant\n%s", got, want)
	}
	if got := heard.String(); !strings.Contains(got, "(run 7, which the newer run 8 waits for)") {
		t.Errorf("it does not say which run it has stopped: %s", got)
	}
	if job, err = j.cluster.Job(ctx, "book"); err != nil || job.Ended() {
		t.Errorf("run 7 has ended, run 8 has not: %v, %s", err, job.Phase())
	}
}

// TestStopOfASuspendedJob: nothing but its annotations tells that it will not go on.
func TestStopOfASuspendedJob(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := startRemoteJob(ctx, t)
	job, err := j.cluster.Job(ctx, "book")
	check(t, err)
	job.Workers.Spec.Suspend = pointer(true)
	job.Workers.Spec.Template.Annotations = map[string]string{annotationRun: "7"}
	jobs := j.cluster.Client.BatchV1().Jobs("here")
	_, err = jobs.Update(ctx, job.Workers, metav1.UpdateOptions{})
	check(t, err)
	check(t, j.cluster.Stop(ctx, "book", Stop{Reason: "rondo stop", Timeout: 30 * time.Second,
		Say: func(string) {}}))
	if job, err = j.cluster.Job(ctx, "book"); err != nil || !job.Ended() {
		t.Errorf("%v, %s", err, job.Phase())
	}
}

// TestStopThatTakesTooLong says so, and that the job goes on stopping.
func TestStopThatTakesTooLong(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j := startRemoteJob(ctx, t)
	if _, err := j.store.Register(ctx, cluster.Member{ID: "stuck", Host: "h",
		Version: meet.Version()}, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	formed := errors.New("formed")
	if err := j.store.WatchPlan(ctx, func(p cluster.Plan) error {
		if p.Phase == cluster.Running {
			return formed
		}
		return nil
	}); !errors.Is(err, formed) {
		t.Fatal(err)
	}
	err := j.cluster.Stop(ctx, "book", Stop{Timeout: 2 * time.Second, Force: true,
		Say: func(string) {}})
	if err == nil || !strings.Contains(err.Error(), "has not ended within 2s") {
		t.Errorf("stopping a job whose worker does not: %v", err)
	}
}
