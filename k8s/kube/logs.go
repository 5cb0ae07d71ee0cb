package kube

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Limits on reading logs.
const (
	maxLogLine    = 64 << 10         // bytes; a longer line is cut
	maxLogStreams = 256              // logs that are followed at once
	logAgain      = time.Second      // first pause before a broken stream is opened again
	logAgainMax   = 10 * time.Second // longest pause, after repeated failures
	logFarewell   = 5 * time.Second  // for the last lines after the job has ended
)

// Logs selects the logs to read.
type Logs struct {
	Component  string // Worker, Coordinator, Observer or Etcd; empty: workers and coordinators
	Index      int    // of one worker in its Job; -1: all
	Follow     bool   // go on until the job has ended
	Previous   bool   // read the earlier container, or a worker's earlier pod
	Timestamps bool
	Since      time.Duration // 0: from the log's begin
	Tail       int64         // lines of each log; negative: all

	// Line receives one line after another.
	Line func(LogSource, string) error
	// Note receives why a log cannot be read.
	Note func(string)
}

// A LogSource is the pod of a line.
type LogSource struct {
	Component string
	Index     int    // of a worker or a member of etcd; -1: none
	Pod       string // its name
}

// String returns a short name that differs between a pod and its replacement.
func (s LogSource) String() string {
	name := s.Component
	if s.Index >= 0 {
		name += "-" + strconv.Itoa(s.Index)
	}
	if s.Component == Etcd {
		return name
	}
	return name + "/" + s.Pod[strings.LastIndex(s.Pod, "-")+1:]
}

// logReader reads the logs of a job's pods.
type logReader struct {
	cluster *Cluster
	job     string
	how     Logs
	open    func(ctx context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error)
	end     context.CancelCauseFunc // ends the reading

	mu      sync.Mutex
	known   map[types.UID]bool // pods that are followed, or must not be
	streams int                // logs that are followed now
	full    bool               // the note about maxLogStreams was sent
	running sync.WaitGroup
}

// Logs reads the logs of a job's pods, one after the other. With Follow it reads all at once, and
// later pods too, until the job has ended.
func (c *Cluster) Logs(ctx context.Context, job string, how Logs) error {
	return newLogReader(c, job, how).read(ctx)
}

func newLogReader(c *Cluster, job string, how Logs) *logReader {
	if how.Previous && how.Component == "" {
		how.Component = Worker
	}
	r := &logReader{cluster: c, job: job, how: how, known: map[types.UID]bool{}}
	r.open = func(ctx context.Context, pod string, o *corev1.PodLogOptions) (
		io.ReadCloser, error) {
		return c.Client.CoreV1().Pods(c.Namespace).GetLogs(pod, o).Stream(ctx)
	}
	return r
}

func (r *logReader) read(ctx context.Context) error {
	ctx, r.end = context.WithCancelCause(ctx)
	defer r.end(nil)
	var one sync.Mutex
	say := r.how.Line
	r.how.Line = func(source LogSource, text string) error {
		one.Lock()
		defer one.Unlock()
		err := say(source, Outside(text))
		if err != nil {
			r.end(err) // the lines cannot be printed
		}
		return err
	}
	job, err := r.cluster.Job(ctx, r.job)
	if r.how.Component == Etcd && isMissing(err) {
		job = nil // the namespace may have an etcd without the job
	} else if err != nil {
		return err
	}
	list, err := r.cluster.Client.CoreV1().Pods(r.cluster.Namespace).List(ctx, r.selection())
	if err != nil {
		return Explain(err, "listing the job's pods")
	}
	pods := r.choose(list.Items)
	switch {
	case r.how.Follow && (job == nil || !job.Ended()):
		return r.follow(ctx, job, pods, list.Items)
	case len(pods) == 0 && r.how.Component == Etcd:
		return fmt.Errorf("%s has no pods of etcd", r.cluster)
	case len(pods) == 0 && r.how.Previous && len(list.Items) > 0:
		return fmt.Errorf("no worker of job %s has an earlier pod: none was replaced, or its pod "+
			"was deleted, and the log with it", r.job)
	case len(pods) == 0 && job.Ended():
		return fmt.Errorf("job %s has ended, and its %s pods are gone", r.job, r.wanted())
	case len(pods) == 0:
		return fmt.Errorf("job %s has no %s pods%s", r.job, r.wanted(), r.cluster.why(r.job))
	}
	return r.readEach(ctx, pods)
}

// readEach reads one pod after the other. It notes pods that cannot be read, and fails if none can.
func (r *logReader) readEach(ctx context.Context, pods []*corev1.Pod) error {
	var failed []error
	for _, pod := range pods {
		state := podStatus(pod, r.container(pod))
		switch {
		case !hasLog(pod, r.container(pod)):
			r.how.Note(fmt.Sprintf("%s: not started yet: %s", r.source(pod), state.Phase))
			continue
		case r.options(pod, false).Previous && state.Restarts == 0:
			r.how.Note(fmt.Sprintf("%s: there was no container before this one", r.source(pod)))
			continue
		}
		_, err := r.copy(ctx, pod, r.options(pod, false), time.Time{})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) == len(pods) {
		return failed[0]
	}
	for _, err := range failed {
		r.how.Note(err.Error())
	}
	return nil
}

func (r *logReader) selection() metav1.ListOptions {
	switch r.how.Component {
	case Etcd:
		return selecting("", Etcd)
	case Observer:
		return selecting(r.job, Coordinator)
	case "":
		both := selecting(r.job, "")
		both.LabelSelector += fmt.Sprintf(",%s in (%s, %s)", labelComponent, Worker, Coordinator)
		return both
	}
	return selecting(r.job, r.how.Component)
}

// container returns the name of the container whose log is read.
func (r *logReader) container(pod *corev1.Pod) string {
	return cmp.Or(r.how.Component, pod.Labels[labelComponent])
}

// wanted names the selected pods, for people.
func (r *logReader) wanted() string { return cmp.Or(r.how.Component, Worker+" or "+Coordinator) }

// index returns a pod's index among those of its kind; -1: none.
func index(pod *corev1.Pod) int {
	for _, label := range []string{batchv1.JobCompletionIndexAnnotation,
		"apps.kubernetes.io/pod-index"} {
		if n, err := strconv.Atoi(pod.Labels[label]); err == nil {
			return n
		}
	}
	return -1
}

// choose returns the pods to read first, in order: of each index the newest pod, or with Previous
// the one before.
func (r *logReader) choose(all []corev1.Pod) []*corev1.Pod {
	var chosen []*corev1.Pod
	place := 0 // of the pod to read among those of an index, the newest first
	if r.how.Previous {
		place = 1
	}
	newer := make(map[int]int) // pods of an index
	for i := range all {
		chosen = append(chosen, &all[i])
	}
	slices.SortFunc(chosen, func(a, b *corev1.Pod) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(b.Name, a.Name))
	})
	chosen = slices.DeleteFunc(chosen, func(pod *corev1.Pod) bool {
		if !r.wants(pod) {
			return true
		}
		if r.container(pod) != Worker {
			return false
		}
		newer[index(pod)]++
		return newer[index(pod)]-1 != place
	})
	slices.SortFunc(chosen, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(index(a), index(b)), cmp.Compare(a.Name, b.Name))
	})
	return chosen
}

// wants reports whether a pod has the selected index.
func (r *logReader) wants(pod *corev1.Pod) bool {
	return r.how.Index < 0 || index(pod) == r.how.Index
}

// source returns the source of a pod's lines.
func (r *logReader) source(pod *corev1.Pod) LogSource {
	return LogSource{Component: r.container(pod), Index: index(pod), Pod: pod.Name}
}

// hasLog reports whether a container has started, so that it has a log.
func hasLog(pod *corev1.Pod, container string) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == container && (s.State.Running != nil || s.State.Terminated != nil ||
			s.LastTerminationState.Terminated != nil)
	})
}

// options returns the options of the first read of a pod. Every line carries its time, so that a
// later read can continue there.
func (r *logReader) options(pod *corev1.Pod, follow bool) *corev1.PodLogOptions {
	o := &corev1.PodLogOptions{Container: r.container(pod), Follow: follow, Timestamps: true,
		Previous: r.how.Previous && r.how.Component != Worker}
	if r.how.Tail >= 0 {
		o.TailLines = &r.how.Tail
	}
	if r.how.Since > 0 {
		seconds := int64(max(1, r.how.Since.Round(time.Second).Seconds()))
		o.SinceSeconds = &seconds
	}
	return o
}

// copy passes on the lines of a log after a time, and returns the time of the last one.
func (r *logReader) copy(ctx context.Context, pod *corev1.Pod, o *corev1.PodLogOptions,
	after time.Time) (last time.Time, err error) {
	source := r.source(pod)
	stream, err := r.open(ctx, pod.Name, o)
	if err != nil {
		return after, Explain(err, "reading the log of pod "+pod.Name)
	}
	defer func() { _ = stream.Close() }()
	return r.lines(stream, source, after)
}

// lines passes on the lines of a stream after a time. It cuts lines at maxLogLine.
func (r *logReader) lines(stream io.Reader, source LogSource, after time.Time) (
	last time.Time, err error) {
	last = after
	for lines := bufio.NewReaderSize(stream, maxLogLine); ; {
		line, more, err := lines.ReadLine()
		at, text := r.split(string(line))
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
		switch {
		case errors.Is(err, io.EOF):
			return last, nil
		case err != nil:
			return last, fmt.Errorf("reading the log of pod %s: %w", source.Pod, err)
		case at.IsZero() && strings.HasPrefix(text, "unable to retrieve container logs"):
			r.how.Note(fmt.Sprintf("%s: its node has no log of it any more", source))
		case at.IsZero() || at.After(after):
			last = cmp.Or(at, last)
			if err := r.how.Line(source, text); err != nil {
				return last, err
			}
		}
	}
}

// split separates a line's time from its text, which keeps the time if that was asked for.
func (r *logReader) split(line string) (at time.Time, text string) {
	stamp, rest, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return time.Time{}, line
	}
	if r.how.Timestamps {
		return at, line
	}
	return at, rest
}
