package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// trained is a job of two workers that is at step 100.
func trained(t *testing.T) *Cluster {
	t.Helper()
	job := someJob(2, nil)
	job.UID = "job"
	job.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	p := Progress{Phase: telemetry.PhaseRunning, Reason: "two workers go on", Step: 100,
		TotalSteps: 400, Epoch: 2, Loss: 1.5, Perplexity: 4.4817, TokensPerSecond: 2100,
		WorldSize: 2, Generation: 4, Checkpoint: "s3://books/book", CheckpointStep: 80,
		Leader: "book-coordinator-a", Ring: "192.0.2.5=0-3,192.0.2.4=3-6"}
	for name, value := range p.annotate(time.Now()) {
		if text, is := value.(string); is {
			job.Annotations[name] = text
		}
	}
	owned := func(pod *corev1.Pod, node, ip string) *corev1.Pod {
		pod.OwnerReferences = []metav1.OwnerReference{{UID: "job",
			Controller: pointer(true)}}
		pod.Spec.NodeName, pod.Status.PodIP = node, ip
		pod.Spec.Containers = []corev1.Container{{Name: Worker,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("1Gi")}}}}
		return pod
	}
	killed := owned(workerPod("1", 2, corev1.PodFailed), "node-b", "")
	killed.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{
		Reason: "OOMKilled", ExitCode: 137}
	stranger := workerPod("0", 9, corev1.PodRunning)
	leader := coordinatorPod("book-coordinator-a")
	leader.Status.PodIP = "192.0.2.3"
	etcd := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "rondo-etcd",
		Namespace: "here", Labels: map[string]string{labelName: "rondo", labelComponent: Etcd}},
		Spec:   appsv1.StatefulSetSpec{Replicas: pointer[int32](3)},
		Status: appsv1.StatefulSetStatus{ReadyReplicas: 2}}
	return clusterOf(append(someSpec(), job, killed, stranger, leader, etcd,
		owned(workerPod("0", 1, corev1.PodRunning), "node-a", "192.0.2.4"),
		owned(workerPod("1", 3, corev1.PodRunning), "node-c", "192.0.2.5"))...)
}

// TestStatus compares with what programs read. What is wrong is Diagnose's to test.
func TestStatus(t *testing.T) {
	s, err := trained(t).Status(t.Context(), "book")
	if err != nil {
		t.Fatal(err)
	}
	s.Detail.Problems = []Problem{}
	s.Updated = pointer(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/status.json", string(got)+"\n")
}

// golden compares with a file; RONDO_UPDATE=1 writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("RONDO_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("it is not as %s has it:\n%s", path, got)
	}
}

// TestStatusAfterSilence: a job of which nothing was heard for half a minute has no rate and no
// time left, in the list, too. Only one that runs has to be heard of.
func TestStatusAfterSilence(t *testing.T) {
	for name, of := range map[string]struct {
		phase     string
		ago       time.Duration
		suspended bool
		want      string
	}{
		"heard":           {telemetry.PhaseRunning, 20 * time.Second, false, "running"},
		"silent":          {telemetry.PhaseRunning, 53 * time.Second, false, phaseUnknown},
		"silent, forming": {telemetry.PhaseForming, 3 * time.Minute, false, phaseUnknown},
		"ended":           {telemetry.PhaseEnded, time.Hour, false, "ended"},
		"suspended":       {telemetry.PhasePaused, time.Hour, true, phaseSuspended},
	} {
		c := trained(t)
		jobs := c.Client.BatchV1().Jobs("here")
		job, err := jobs.Get(t.Context(), "book-worker", metav1.GetOptions{})
		check(t, err)
		job.Annotations[annotations+"phase"] = of.phase
		job.Annotations[annotations+"updated"] = time.Now().Add(-of.ago).Format(time.RFC3339)
		job.Spec.Suspend = &of.suspended
		_, err = jobs.Update(t.Context(), job, metav1.UpdateOptions{})
		check(t, err)
		listed, err := c.Statuses(t.Context(), false)
		check(t, err)
		one, err := c.Status(t.Context(), "book")
		check(t, err)
		for _, s := range []*JobStatus{&listed[0], one} {
			silent := of.want == phaseUnknown
			if s.Phase != of.want || s.Unknown() != silent || s.Failed() ||
				silent != (s.TokensPerSecond == nil) || s.Step != 100 {
				t.Errorf("%s: %+v", name, s)
			}
			if silent && (s.Ring != 0 || !strings.HasPrefix(s.Reason, "last heard ")) {
				t.Errorf("%s: %d in the ring, %s", name, s.Ring, s.Reason)
			}
		}
		if (one.Detail.SecondsLeft == nil) != (of.want != "running") {
			t.Errorf("%s: seconds left %v", name, one.Detail.SecondsLeft)
		}
	}
}

// TestStatusSaysWhatEndsTheJob where --epochs leave it fewer steps than --steps.
func TestStatusSaysWhatEndsTheJob(t *testing.T) {
	for steps, want := range map[int64]string{0: "", 400: "",
		6000: "--epochs 10 ends before --steps 6000"} {
		s := JobStatus{TotalSteps: 400, Detail: &Detail{}}
		s.foresee(&rondov1.JobSpec{Steps: steps, Epochs: 10})
		if s.Detail.Limit != want {
			t.Errorf("--steps %d: %q, want %q", steps, s.Detail.Limit, want)
		}
	}
}

func TestInRing(t *testing.T) {
	for want, of := range map[string][2]int{"2 of 3 workers in the ring": {2, 3},
		"3 of 3 workers in the ring": {3, 3}, "4 workers in the ring, 3 wanted": {4, 3}} {
		if got := InRing(of[0], of[1]); got != want {
			t.Errorf("%v: %q, want %q", of, got, want)
		}
	}
}

// TestAJobThatCannotStartHasFailed, as far as exit codes go.
func TestAJobThatCannotStartHasFailed(t *testing.T) {
	fatal := &Detail{Problems: []Problem{{Text: "no image", Fatal: true}}}
	for name, of := range map[string]struct {
		status JobStatus
		want   bool
	}{
		"waits":         {JobStatus{Phase: phasePending, Detail: &Detail{}}, false},
		"cannot start":  {JobStatus{Phase: phasePending, Detail: fatal}, true},
		"cannot form":   {JobStatus{Phase: telemetry.PhaseForming, Detail: fatal}, true},
		"has trained":   {JobStatus{Phase: telemetry.PhaseForming, Step: 5, Detail: fatal}, false},
		"lacks one pod": {JobStatus{Phase: telemetry.PhaseRunning, Detail: fatal}, false},
		"failed":        {JobStatus{Phase: telemetry.PhaseFailed}, true},
	} {
		if got := of.status.Failed(); got != of.want {
			t.Errorf("%s: failed %t", name, got)
		}
	}
}

func TestStatusesAreListedByName(t *testing.T) {
	one, two, other := someJob(1, nil), someJob(1, nil), someJob(1, nil)
	two.Name, two.Labels = "air-worker", map[string]string{labelName: "rondo",
		labelComponent: Worker, labelJob: "air"}
	other.Namespace = "elsewhere"
	c := clusterOf(one, two, other)
	for everywhere, want := range map[bool]string{false: "here/air here/book",
		true: "elsewhere/book here/air here/book"} {
		statuses, err := c.Statuses(t.Context(), everywhere)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range statuses {
			names = append(names, s.Namespace+"/"+s.Job)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("everywhere %v: %s, want %s", everywhere, got, want)
		}
	}
}

func TestSaid(t *testing.T) {
	for want, end := range map[string]corev1.ContainerStateTerminated{
		"out of memory":          {Reason: "OOMKilled", ExitCode: 137},
		"killed (signal 9)":      {Reason: "Error", ExitCode: 137},
		"exit code 1":            {Reason: "Error", ExitCode: 1},
		"no such (exit code 2)":  {Reason: "Error", ExitCode: 2, Message: "no\nsuch\n"},
		"done after step 7":      {Reason: "Completed", Message: "done after step 7"},
		"Completed":              {Reason: "Completed"},
		"asked to (exit code 4)": {Reason: "Error", ExitCode: 4, Message: "asked to"},
	} {
		if got := said(&end); got != want {
			t.Errorf("%+v: %q, want %q", end, got, want)
		}
	}
}

// TestWatch looks again and again until the job has ended. A cluster that does not answer is asked
// again for a while.
func TestWatch(t *testing.T) {
	const answers, silent, over = "answers", "is silent", "over"
	for name, of := range map[string]struct {
		says  map[int]string // by look, and so on; over: the look is the last
		looks int
		told  int
		want  string
	}{
		"to the end":    {map[int]string{0: answers, 3: over}, 4, 0, ""},
		"a short break": {map[int]string{0: answers, 2: silent, 9: answers, 12: over}, 13, 7, ""},
		"away":          {map[int]string{0: answers, 1: silent}, 62, 60, silent},
		"never there":   {map[int]string{0: silent}, 1, 0, silent},
	} {
		synctest.Test(t, func(t *testing.T) {
			looks, told, now := 0, 0, ""
			err := clusterOf().Watch(t.Context(), func(context.Context) (bool, error) {
				now = cmp.Or(of.says[looks], now)
				looks++
				if now == silent {
					return false, errors.New(silent)
				}
				return now == over, nil
			}, func(error) { told++ })
			if looks != of.looks || told != of.told || (err == nil) != (of.want == "") {
				t.Errorf("%s: %d looks, %d told, %v", name, looks, told, err)
			}
		})
	}
}
