package kube

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/k8s/kube/kubetest"
	rondov1 "rondo/proto/rondo/v1"
)

func pointer[T any](value T) *T { return &value }

// someJob is job book of namespace here, with so many workers wanted.
func someJob(workers int32, said map[string]string) *batchv1.Job {
	own := map[string]string{labelName: "rondo", labelComponent: Worker, labelJob: "book"}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "book-worker", Namespace: "here",
		Labels: own, Annotations: map[string]string{}},
		Spec: batchv1.JobSpec{Completions: &workers, Parallelism: &workers,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: own},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: Worker,
					Env: []corev1.EnvVar{{Name: "ETCD",
						Value: "rondo-etcd-0.rondo-etcd:2379"}}}}}}}}
	for name, value := range said {
		job.Annotations[annotations+name] = value
	}
	return job
}

func somePod(name, ip string, phase corev1.PodPhase, labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "here",
		Labels: labels}, Status: corev1.PodStatus{PodIP: ip, Phase: phase}}
	if phase == corev1.PodRunning {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}
	}
	return pod
}

func coordinatorPod(name string) *corev1.Pod {
	pod := somePod(name, "", corev1.PodRunning, map[string]string{labelName: "rondo",
		labelComponent: Coordinator, labelJob: "book"})
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Observer, Ready: true}}
	return pod
}

// fits is the check of a scale that commands are given.
func fits(spec *rondov1.JobSpec, workers int) error {
	return coordinator.JobOf(spec).CheckScale(workers)
}

func with(job *batchv1.Job, kind batchv1.JobConditionType, message string) *batchv1.Job {
	job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind,
		Status: corev1.ConditionTrue, Message: message})
	return job
}

// someSpec is what the coordinators of job book are given: two to six workers.
func someSpec() []runtime.Object {
	return []runtime.Object{
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "book-coordinator",
			Namespace: "here"}, Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "spec",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{
						Name: "book-spec-1"}}}}}}}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "book-spec-1", Namespace: "here"},
			Data: map[string]string{"job.yaml": "job: book\ncorpus: builtin:opticks\n" +
				"workers: 3\nmin_workers: 2\nbatch: 6\n"}},
	}
}

// clusterOf is a cluster with these objects.
func clusterOf(objects ...runtime.Object) *Cluster {
	return &Cluster{Client: kubetest.New(objects...), Namespace: "here"}
}

// told collects what a command tells.
type told struct {
	mu    sync.Mutex
	lines []string
	heard chan struct{} // nil, or sent to at each line
}

func (l *told) say(text string) {
	l.mu.Lock()
	l.lines = append(l.lines, text)
	l.mu.Unlock()
	if l.heard != nil {
		l.heard <- struct{}{}
	}
}

// hear waits for n lines. Until then it does again and again, every moment, unless that is nil: the
// client of these tests tells a watch nothing of what has changed since the list before it.
func (l *told) hear(ctx context.Context, t *testing.T, n int, again func()) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range n {
		for said := false; !said; {
			select {
			case <-l.heard:
				said = true
			case <-tick.C:
				if again != nil {
					again()
				}
			case <-ctx.Done():
				t.Fatalf("nothing more is said after\n%s", l)
			}
		}
	}
}

func (l *told) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func TestPhase(t *testing.T) {
	suspended := someJob(2, map[string]string{"phase": "running"})
	suspended.Spec.Suspend = pointer(true)
	for want, job := range map[string]*batchv1.Job{
		"pending":   someJob(2, nil),
		"running":   someJob(2, map[string]string{"phase": "running"}),
		"suspended": suspended,
		"failed": with(someJob(2, map[string]string{"phase": "running"}), batchv1.JobFailed,
			"too bad"),
		"ended": with(someJob(2, map[string]string{"phase": "stopping"}),
			batchv1.JobSuccessCriteriaMet, ""),
		"paused": someJob(2, map[string]string{"phase": "paused"}),
	} {
		j := (&Cluster{}).jobOf(job)
		if got := j.Phase(); got != want {
			t.Errorf("phase %s, want %s", got, want)
		}
		if want == "failed" && j.Reason() != "too bad" {
			t.Errorf("the reason is %q", j.Reason())
		}
		if ended := want == "failed" || want == "ended"; j.Ended() != ended {
			t.Errorf("%s: ended %v", want, j.Ended())
		}
	}
}

func TestProgressIsReadAsItIsWritten(t *testing.T) {
	want := Progress{Phase: "running", Reason: "because", Step: 7, TotalSteps: 9, Epoch: 1,
		Loss: 1.25, Perplexity: 3.5, TokensPerSecond: 1000, WorldSize: 3, Generation: 4,
		Checkpoint: "s3://b/c", CheckpointStep: 5, Leader: "pod", Ring: "192.0.2.4=0-3",
		Evicted: "w (slow)"}
	now := time.Now().Truncate(time.Second)
	job := someJob(3, nil)
	for name, value := range want.annotate(now) {
		job.Annotations[name] = value.(string)
	}
	if got := (&Cluster{}).jobOf(job).Progress(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if at := (&Cluster{}).jobOf(job).Updated(); !at.Equal(now) {
		t.Errorf("updated %v, want %v", at, now)
	}
}

func TestNoSuchJob(t *testing.T) {
	_, err := clusterOf().Job(t.Context(), "book")
	var wrong *app.UsageError
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "rondo status") {
		t.Errorf("a job that is not there: %v", err)
	}
}

// TestScale scales while an observer writes how large the ring is.
func TestScale(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := clusterOf(append(someSpec(), someJob(2, map[string]string{"phase": "running",
		"world-size": "2"}))...)
	heard := &told{heard: make(chan struct{})}
	scaled := make(chan error, 1)
	go func() {
		scaled <- c.Scale(ctx, "book", Scale{Workers: 4, Fits: fits, Timeout: time.Minute,
			Say: heard.say})
	}()
	heard.hear(ctx, t, 2, nil) // it was asked for, and 2 are there
	job, err := c.Job(ctx, "book")
	if err != nil {
		t.Fatal(err)
	}
	if job.Wanted() != 4 || *job.Workers.Spec.Completions != 4 {
		t.Errorf("the Job has %d completions of %d at once", *job.Workers.Spec.Completions,
			job.Wanted())
	}
	for _, n := range []int64{3, 4} {
		annotate := func() {
			err := c.WorkerJob("book-worker").Annotate(ctx, Progress{Phase: "running",
				WorldSize: n}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
		}
		annotate()
		heard.hear(ctx, t, 1, annotate)
	}
	if err := <-scaled; err != nil {
		t.Fatal(err)
	}
	want := "job book: 4 workers wanted, 2 before\n2 of 4 workers in the ring\n" +
		"3 of 4 workers in the ring\n4 of 4 workers in the ring"
	if got := heard.String(); got != want {
		t.Errorf("it said\n%s\nwant\n%s", got, want)
	}
}

func TestScaleSaysWhatCannotBe(t *testing.T) {
	set := someJob(2, nil)
	set.OwnerReferences = []metav1.OwnerReference{{Kind: "JobSet", Name: "book-worker"}}
	queued := someJob(2, nil)
	queued.Labels = map[string]string{labelName: "rondo", labelComponent: Worker,
		labelJob: "book", labelQueue: "team"}
	elastic := queued.DeepCopy()
	elastic.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: elasticGate}}
	for name, c := range map[string]struct {
		job     *batchv1.Job
		workers int
		want    string
		usage   bool
	}{
		"too few": {someJob(2, nil), 1, "1 worker: this job can have 2 (--min-workers) to 6", true},
		"too many": {someJob(2, nil), 7, "7 workers: this job can have 2 (--min-workers) to 6 " +
			"(--batch", true},
		"over":     {with(someJob(2, nil), batchv1.JobFailed, "oh"), 3, "has ended: oh", false},
		"a queue":  {queued, 3, "its feature ElasticJobsViaWorkloadSlices Kueue would", true},
		"no quota": {elastic, 3, "after 20ms the ring of job book has 0 of 3 workers", false},
		"a JobSet": {set, 3, "JobSet book-worker, whose size is fixed", true},
		"never": {someJob(2, map[string]string{"phase": "running", "world-size": "2"}), 3,
			"after 20ms the ring of job book has 2 of 3 workers", false},
	} {
		err := clusterOf(append(someSpec(), c.job)...).Scale(t.Context(), "book", Scale{
			Workers: c.workers, Fits: fits, Timeout: 20 * time.Millisecond, Say: func(string) {}})
		var wrong *app.UsageError
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			errors.As(err, &wrong) != c.usage {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestScaleOfASuspendedJobWaitsForNothing(t *testing.T) {
	job := someJob(2, nil)
	job.Spec.Suspend = pointer(true)
	var heard told
	err := clusterOf(append(someSpec(), job)...).Scale(t.Context(), "book", Scale{Workers: 3,
		Fits: fits, Timeout: time.Minute, Say: heard.say})
	if err != nil || !strings.Contains(heard.String(), "rondo resume --job book") {
		t.Errorf("%v, %s", err, heard.String())
	}
}
