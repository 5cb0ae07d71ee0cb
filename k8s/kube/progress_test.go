package kube

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"rondo/k8s/kube/kubetest"
)

// workerJob is a Job of n workers.
func workerJob(n int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-worker", Namespace: "lab",
			Annotations: map[string]string{"else": "kept",
				"rondo.dev/checkpoint": "of another run"}},
		Spec: batchv1.JobSpec{Parallelism: &n},
	}
}

func inCluster(objects ...runtime.Object) (*kubetest.Client, *WorkerJob) {
	client := kubetest.New(objects...)
	cluster := &Cluster{Client: client, Namespace: "lab"}
	return client, cluster.WorkerJob("demo-worker")
}

// annotationsOf are the Job's as they are now, but for when they were written.
func annotationsOf(t *testing.T, client *kubetest.Client) map[string]string {
	t.Helper()
	job, err := client.BatchV1().Jobs("lab").Get(t.Context(), "demo-worker", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return job.Annotations
}

func TestAnnotate(t *testing.T) {
	client, job := inCluster(workerJob(2))
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	p := Progress{Phase: "running", Reason: "4 workers go on", Step: 12, TotalSteps: 50, Epoch: 2,
		Loss: 1.23456, Perplexity: 3.4369, TokensPerSecond: 12345.6, WorldSize: 4, Generation: 3}
	if err := job.Annotate(t.Context(), p, at); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"else": "kept", "rondo.dev/phase": "running",
		"rondo.dev/reason": "4 workers go on", "rondo.dev/step": "12",
		"rondo.dev/total-steps": "50", "rondo.dev/epoch": "2", "rondo.dev/loss": "1.2346",
		"rondo.dev/perplexity": "3.437", "rondo.dev/tokens-per-second": "12346",
		"rondo.dev/world-size": "4", "rondo.dev/generation": "3",
		"rondo.dev/updated": "2030-01-02T03:04:05Z"}
	if got := annotationsOf(t, client); !maps.Equal(got, want) {
		t.Errorf("annotations %v\nwant %v", got, want)
	}
	p = Progress{Phase: "forming", Checkpoint: "runs/5", CheckpointStep: 5, Loss: math.NaN()}
	if err := job.Annotate(t.Context(), p, at); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{"else": "kept", "rondo.dev/phase": "forming",
		"rondo.dev/world-size": "0", "rondo.dev/generation": "0", "rondo.dev/checkpoint": "runs/5",
		"rondo.dev/checkpoint-step": "5", "rondo.dev/updated": "2030-01-02T03:04:05Z"}
	if got := annotationsOf(t, client); !maps.Equal(got, want) {
		t.Errorf("of another run: %v\nwant %v", got, want)
	}
	p = Progress{Phase: "ended", Reason: "done", WorldSize: 2, Generation: 7}
	if err := job.Annotate(t.Context(), p, at); err != nil {
		t.Fatal(err)
	}
	want["rondo.dev/phase"], want["rondo.dev/reason"] = "ended", "done"
	want["rondo.dev/world-size"], want["rondo.dev/generation"] = "2", "7"
	if got := annotationsOf(t, client); !maps.Equal(got, want) {
		t.Errorf("of the end, by who saw no step: %v\nwant %v", got, want)
	}
	if now, err := job.Read(t.Context()); err != nil || now != (Wanted{Workers: 2, Over: true}) {
		t.Errorf("it reads as %+v, %v", now, err)
	}
	for _, action := range client.Actions() {
		patch, is := action.(clienttesting.PatchAction)
		if is && patch.GetPatchType() != types.MergePatchType {
			t.Errorf("a patch of type %s", patch.GetPatchType())
		}
	}
}

func TestAnnotateOfNoJob(t *testing.T) {
	_, job := inCluster()
	err := job.Annotate(t.Context(), Progress{Phase: "running"}, time.Now())
	if now, err := job.Read(t.Context()); !apierrors.IsNotFound(err) || now != (Wanted{}) {
		t.Errorf("it reads as %+v, %v", now, err)
	}
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "job lab/demo-worker") {
		t.Errorf("the error is %v", err)
	}
}

// heard is what a watch has told.
type heard struct {
	wanted  chan Wanted
	reached chan error
}

func watchJob(t *testing.T, job *WorkerJob) heard {
	t.Helper()
	h := heard{make(chan Wanted, 16), make(chan error, 16)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- job.Watch(ctx, func(w Wanted) { h.wanted <- w },
			func(err error) { h.reached <- err })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return h
}

// next waits for one word of a watch.
func next[T any](t *testing.T, from chan T) T {
	t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	select {
	case got := <-from:
		return got
	case <-timeout.C:
		t.Fatal("the watch says nothing")
		panic("unreachable")
	}
}

// await waits until the Job is wanted so.
func (h heard) await(t *testing.T, want Wanted) {
	t.Helper()
	for next(t, h.wanted) != want {
	}
}

func TestWatchFollowsTheScale(t *testing.T) {
	client, job := inCluster(workerJob(2))
	h := watchJob(t, job)
	h.await(t, Wanted{Workers: 2})
	if err := next(t, h.reached); err != nil {
		t.Errorf("reached: %v", err)
	}
	untilWatched(t, client)
	jobs := client.BatchV1().Jobs("lab")
	changed := workerJob(5)
	suspended := workerJob(5)
	suspended.Spec.Suspend = new(bool)
	*suspended.Spec.Suspend = true
	for _, to := range []*batchv1.Job{changed, suspended} {
		if _, err := jobs.Update(t.Context(), to, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	h.await(t, Wanted{Workers: 5})
	h.await(t, Wanted{Workers: 5, Suspended: true})
	if err := jobs.Delete(t.Context(), "demo-worker", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.await(t, Wanted{})
}

// untilWatched waits until there is a watch, and holds it to the one object that it is about.
func untilWatched(t *testing.T, client *kubetest.Client) {
	t.Helper()
	due := time.NewTicker(10 * time.Millisecond)
	defer due.Stop()
	for range 3000 {
		for _, action := range client.Actions() {
			watch, is := action.(clienttesting.WatchAction)
			if !is {
				continue
			}
			of := watch.GetWatchRestrictions().Fields.String()
			if of != "metadata.name=demo-worker" {
				t.Errorf("the watch is of %q", of)
			}
			return
		}
		<-due.C
	}
	t.Fatal("nobody watches")
}

// An API server that refuses or is away is asked again, and what it says meanwhile is told.
func TestWatchOutlastsTheServer(t *testing.T) {
	client, job := inCluster(workerJob(3))
	left := []error{apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"},
		"demo-worker", errors.New("not yet"))}
	client.PrependReactor("list", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		if len(left) == 0 {
			return false, nil, nil
		}
		err := left[0]
		left = left[1:]
		return true, nil, err
	})
	h := watchJob(t, job)
	if err := next(t, h.reached); err == nil || !strings.Contains(err.Error(), "lab/demo-worker") {
		t.Errorf("a refusal is told as %v", err)
	}
	h.await(t, Wanted{Workers: 3})
	if err := next(t, h.reached); err != nil {
		t.Errorf("reached again, but told %v", err)
	}
}
