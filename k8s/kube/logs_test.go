package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// workerPod is a worker of job book, the number-th pod of its index.
func workerPod(index string, number int, phase corev1.PodPhase) *corev1.Pod {
	name := fmt.Sprintf("book-worker-%s-pod%d", index, number)
	pod := somePod(name, "", phase, map[string]string{labelName: "rondo", labelComponent: Worker,
		labelJob: "book", batchv1.JobCompletionIndexAnnotation: index})
	pod.UID = types.UID(name)
	pod.CreationTimestamp = metav1.NewTime(time.Unix(int64(1000+number), 0).UTC())
	state := corev1.ContainerState{}
	switch phase {
	case corev1.PodRunning:
		state.Running = &corev1.ContainerStateRunning{}
	case corev1.PodFailed, corev1.PodSucceeded:
		state.Terminated = &corev1.ContainerStateTerminated{}
	default:
		state.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Worker, State: state}}
	return pod
}

// written is the logs that nodes hold: each opening of a pod's log gives its next part, and all
// but the last of these break off.
type written struct {
	mu    sync.Mutex
	parts map[string][]string
	asked map[string][]corev1.PodLogOptions
}

func (w *written) open(_ context.Context, pod string, o *corev1.PodLogOptions) (
	io.ReadCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked == nil {
		w.asked = map[string][]corev1.PodLogOptions{}
	}
	w.asked[pod] = append(w.asked[pod], *o)
	parts := w.parts[pod]
	if len(parts) == 0 {
		return nil, errors.New("the node does not answer")
	}
	if len(parts) > 1 {
		w.parts[pod] = parts[1:]
	}
	return io.NopCloser(strings.NewReader(parts[0])), nil
}

// at is a line with its time.
func at(second int, text string) string {
	return fmt.Sprintf("2026-01-01T00:00:%02d.5Z %s\n", second, text)
}

// readLogs collects lines and notes.
func readLogs(c *Cluster, w *written, how Logs) (r *logReader, lines, notes *told) {
	lines, notes = &told{}, &told{}
	how.Line = func(s LogSource, text string) error {
		lines.say(s.String() + " " + text)
		return nil
	}
	how.Note = notes.say
	r = newLogReader(c, "book", how)
	r.open = w.open
	return r, lines, notes
}

func TestLogsOfAllWorkers(t *testing.T) {
	objects := []runtime.Object{someJob(3, nil), workerPod("0", 1, corev1.PodFailed),
		workerPod("0", 2, corev1.PodRunning), workerPod("1", 3, corev1.PodRunning),
		workerPod("2", 4, corev1.PodPending)}
	held := func() *written {
		return &written{parts: map[string][]string{
			"book-worker-0-pod1": {at(1, "I die")}, "book-worker-0-pod2": {at(2, "I live")},
			"book-worker-1-pod3": {at(3, "one") + at(4, "two")},
		}}
	}
	for name, c := range map[string]struct {
		how  Logs
		want string
	}{
		"all": {Logs{Index: -1}, "worker-0/pod2 I live\nworker-1/pod3 one\nworker-1/pod3 two"},
		"one": {Logs{Index: 0}, "worker-0/pod2 I live"},
		"with times": {Logs{Index: 0, Timestamps: true},
			"worker-0/pod2 2026-01-01T00:00:02.5Z I live"},
		"of the pod before": {Logs{Index: -1, Previous: true}, "worker-0/pod1 I die"},
	} {
		c.how.Component, c.how.Tail = Worker, -1
		r, lines, notes := readLogs(clusterOf(objects...), held(), c.how)
		if err := r.read(t.Context()); err != nil || lines.String() != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, lines, c.want)
		}
		if name == "all" && notes.String() != "worker-2/pod4: not started yet: ImagePullBackOff" {
			t.Errorf("notes: %s", notes)
		}
	}
}

// TestLogsOfAJob: without --component they are those of workers and coordinators, and of one index
// its worker's alone. Where no pod came before the present ones, that is said.
func TestLogsOfAJob(t *testing.T) {
	led := coordinatorPod("book-coordinator-a")
	led.Status.ContainerStatuses = append(led.Status.ContainerStatuses, corev1.ContainerStatus{
		Name:  Coordinator,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	objects := []runtime.Object{someJob(1, nil), led, workerPod("0", 1, corev1.PodRunning)}
	for name, c := range map[string]struct {
		how         Logs
		want, wrong string
	}{
		"all":    {Logs{Index: -1}, "coordinator/a step 7\nworker-0/pod1 joined", ""},
		"one":    {Logs{Index: 0}, "worker-0/pod1 joined", ""},
		"before": {Logs{Index: -1, Previous: true}, "", "no worker of job book has an earlier pod"},
	} {
		c.how.Tail = -1
		r, lines, _ := readLogs(clusterOf(objects...), &written{parts: map[string][]string{
			"book-worker-0-pod1": {at(1, "joined")}, "book-coordinator-a": {at(2, "step 7")},
		}}, c.how)
		err := r.read(t.Context())
		if lines.String() != c.want || (err == nil) != (c.wrong == "") ||
			err != nil && !strings.HasPrefix(err.Error(), c.wrong) {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, lines, c.want)
		}
	}
}

// TestLogsThatCannotBeRead: the others are shown all the same.
func TestLogsThatCannotBeRead(t *testing.T) {
	objects := []runtime.Object{someJob(2, nil), workerPod("0", 1, corev1.PodRunning),
		workerPod("1", 2, corev1.PodRunning)}
	how := Logs{Component: Worker, Index: -1, Tail: -1}
	one := &written{parts: map[string][]string{"book-worker-1-pod2": {at(1, "here")}}}
	r, lines, notes := readLogs(clusterOf(objects...), one, how)
	err := r.read(t.Context())
	const lost = "reading the log of pod book-worker-0-pod1: the node does not answer"
	if err != nil || lines.String() != "worker-1/pod2 here" || notes.String() != lost {
		t.Errorf("one of two: %v, %q, %q", err, lines, notes)
	}
	r, _, _ = readLogs(clusterOf(objects...), &written{}, how)
	if err := r.read(t.Context()); err == nil || err.Error() != lost {
		t.Errorf("none of two: %v, want %s", err, lost)
	}
	how.Component, how.Previous = Coordinator, true
	pod := coordinatorPod("book-coordinator-a")
	pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
		Name:  Coordinator,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	r, _, notes = readLogs(clusterOf(someJob(1, nil), pod), &written{}, how)
	err = r.read(t.Context())
	if want := "coordinator/a: there was no container before this one"; err != nil ||
		notes.String() != want {
		t.Errorf("%v, %s, want %s", err, notes, want)
	}
}

func TestLogsAskForWhatIsWanted(t *testing.T) {
	w := &written{parts: map[string][]string{"book-worker-0-pod1": {at(1, "x")}}}
	r, _, _ := readLogs(clusterOf(someJob(1, nil), workerPod("0", 1, corev1.PodRunning)), w,
		Logs{Component: Worker, Index: -1, Tail: 7, Since: time.Minute})
	if err := r.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := w.asked["book-worker-0-pod1"][0]
	if o.Container != Worker || o.Follow || *o.TailLines != 7 || *o.SinceSeconds != 60 {
		t.Errorf("asked for %+v", o)
	}
}

// TestLogsFollowed: a stream that breaks goes on after the last line, without lines twice; a pod
// that comes later is read from its beginning, and one that has ended before anybody looked, too;
// the job's end is the end.
func TestLogsFollowed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	first := workerPod("0", 1, corev1.PodRunning)
	c := clusterOf(someJob(1, map[string]string{"phase": "running"}), first)
	w := &written{parts: map[string][]string{
		"book-worker-0-pod1": {at(1, "one") + at(2, "two"), at(2, "two") + at(3, "three")},
		"book-worker-0-pod2": {at(4, "four")}, "book-worker-0-pod3": {at(5, "five")},
	}}
	r, lines, notes := readLogs(c, w, Logs{Component: Worker, Index: -1, Follow: true, Tail: 10})
	lines.heard = make(chan struct{})
	read := make(chan error, 1)
	go func() { read <- r.read(ctx) }()
	for range 3 {
		<-lines.heard
	}
	pods := c.Client.CoreV1().Pods("here")
	first = workerPod("0", 1, corev1.PodFailed)
	if _, err := pods.Update(ctx, first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for number, phase := range map[int]corev1.PodPhase{2: corev1.PodFailed,
		3: corev1.PodSucceeded} {
		pod := workerPod("0", number, phase)
		pod.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Minute))
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		<-lines.heard
	}
	ended := with(someJob(1, nil), batchv1.JobComplete, "")
	_, err := c.Client.BatchV1().Jobs("here").Update(ctx, ended, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil || notes.String() != "" {
		t.Errorf("%v, notes: %s", err, notes)
	}
	got := slices.Sorted(slices.Values(strings.Split(lines.String(), "\n")))
	want := []string{"worker-0/pod1 one", "worker-0/pod1 three", "worker-0/pod1 two",
		"worker-0/pod2 four", "worker-0/pod3 five"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	again := w.asked["book-worker-0-pod1"][1]
	if again.SinceTime == nil || again.TailLines != nil || again.SinceTime.Second() != 2 {
		t.Errorf("the second time it asked for %+v", again)
	}
	if later := w.asked["book-worker-0-pod2"][0]; later.TailLines != nil {
		t.Errorf("of a pod that came later it asked for %+v", later)
	}
}

// TestLogsFollowedEndWithTheOutput: where nobody takes the lines, the reading ends.
func TestLogsFollowedEndWithTheOutput(t *testing.T) {
	w := &written{parts: map[string][]string{"book-worker-0-pod1": {at(1, "x")}}}
	r, _, _ := readLogs(clusterOf(someJob(1, nil), workerPod("0", 1, corev1.PodRunning)), w,
		Logs{Component: Worker, Index: -1, Follow: true, Tail: -1})
	closed := errors.New("the output is closed")
	r.how.Line = func(LogSource, string) error { return closed }
	if err := r.read(t.Context()); !errors.Is(err, closed) {
		t.Errorf("reading for nobody: %v", err)
	}
}

func TestLogLines(t *testing.T) {
	long := strings.Repeat("x", 2*maxLogLine)
	r, lines, notes := readLogs(nil, nil, Logs{})
	text := at(1, "short") + at(2, long) + at(3, "after") +
		"unable to retrieve container logs for containerd://1\n" + at(4, "no end")
	_, err := r.lines(strings.NewReader(strings.TrimSuffix(text, "\n")),
		LogSource{Component: Etcd, Index: 2, Pod: "rondo-etcd-2"}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(lines.String(), "\n")
	if len(got) != 4 || got[0] != "etcd-2 short" || len(got[1]) > maxLogLine ||
		got[2] != "etcd-2 after" || got[3] != "etcd-2 no end" {
		t.Errorf("%d lines: %.100q", len(got), got)
	}
	if notes.String() != "etcd-2: its node has no log of it any more" {
		t.Errorf("notes: %s", notes)
	}
}

// TestLogsOfEtcdNeedNoJob: etcd is the namespace's, and its log is needed where no job came to be.
func TestLogsOfEtcdNeedNoJob(t *testing.T) {
	pod := workerPod("1", 3, corev1.PodRunning)
	pod.Name, pod.Status.ContainerStatuses[0].Name = "rondo-etcd-1", Etcd
	pod.Labels = map[string]string{labelName: "rondo", labelComponent: Etcd,
		"apps.kubernetes.io/pod-index": "1"}
	held := &written{parts: map[string][]string{"rondo-etcd-1": {at(1, "founding")}}}
	r, lines, _ := readLogs(clusterOf(pod), held, Logs{Component: Etcd, Index: -1, Tail: -1})
	if err := r.read(t.Context()); err != nil || lines.String() != "etcd-1 founding" {
		t.Errorf("%v, %s", err, lines)
	}
	r, _, _ = readLogs(clusterOf(), held, Logs{Component: Worker, Index: -1, Tail: -1})
	if err := r.read(t.Context()); err == nil || !strings.Contains(err.Error(), "has no job book") {
		t.Errorf("of the workers of no job: %v", err)
	}
}
