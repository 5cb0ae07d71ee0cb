package kube

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// A JobStatus is the public state of a job, for people and programs.
type JobStatus struct {
	Job             string     `json:"job"`
	Namespace       string     `json:"namespace"`
	Phase           string     `json:"phase"`
	Reason          string     `json:"reason,omitempty"`
	Ring            int        `json:"ring"`   // workers in the ring
	Wanted          int        `json:"wanted"` // workers that the job should have
	Generation      int64      `json:"generation,omitempty"`
	Step            int64      `json:"step"`
	TotalSteps      int64      `json:"total_steps,omitempty"`
	Epoch           int64      `json:"epoch,omitempty"`
	Loss            *float64   `json:"loss,omitempty"`
	Perplexity      *float64   `json:"perplexity,omitempty"`
	TokensPerSecond *float64   `json:"tokens_per_second,omitempty"`
	Checkpoint      string     `json:"checkpoint,omitempty"`
	CheckpointStep  int64      `json:"checkpoint_step,omitempty"`
	Queue           string     `json:"queue,omitempty"`
	JobSet          string     `json:"jobset,omitempty"`
	Created         time.Time  `json:"created"`
	Updated         *time.Time `json:"updated,omitempty"` // the last report
	Detail          *Detail    `json:"detail,omitempty"`
}

// Detail is the additional state of one job.
type Detail struct {
	SecondsLeft  *float64    `json:"seconds_left,omitempty"`
	Limit        string      `json:"limit,omitempty"`  // why it has fewer steps than --steps
	Leader       string      `json:"leader,omitempty"` // the pod whose coordinator leads
	Coordinators []PodStatus `json:"coordinators"`
	Etcd         *Ready      `json:"etcd,omitempty"` // nil: it is not in the namespace
	Workers      []PodStatus `json:"workers"`
	Problems     []Problem   `json:"problems"`
}

// Ready counts the ready ones.
type Ready struct {
	Ready int `json:"ready"`
	Of    int `json:"of"`
}

// A PodStatus is a pod of a job. Of the workers with one index it is the newest.
type PodStatus struct {
	Index    *int      `json:"index,omitempty"` // of a worker in its Job: its place, not its rank
	Rank     *int      `json:"rank,omitempty"`  // in the ring, if it is in it
	Lanes    []int     `json:"lanes,omitempty"` // from, to (exclusive)
	Pod      string    `json:"pod"`
	Node     string    `json:"node,omitempty"`
	IP       string    `json:"ip,omitempty"`
	Phase    string    `json:"phase"` // or the reason why a container waits
	Ready    bool      `json:"ready"`
	Restarts int       `json:"restarts"` // of a worker: includes its earlier, failed pods
	Created  time.Time `json:"created"`
	Memory   string    `json:"memory,omitempty"`   // the limit
	LastEnd  string    `json:"last_end,omitempty"` // why the container, or the pod before, ended
}

// Ended reports whether the job has ended, with success or not.
func (s *JobStatus) Ended() bool { return endedPhase(s.Phase) }

// Failed reports whether the job has failed, or has done no step and has a fatal problem.
func (s *JobStatus) Failed() bool {
	switch s.Phase {
	case telemetry.PhaseFailed:
		return true
	case phasePending, telemetry.PhaseWaiting, telemetry.PhaseForming:
		return s.Step == 0 && s.Detail != nil && slices.ContainsFunc(s.Detail.Problems,
			func(p Problem) bool { return p.Fatal })
	}
	return false
}

// Unknown reports whether the job's observer is silent.
func (s *JobStatus) Unknown() bool { return s.Phase == phaseUnknown }

// status returns the job's status without detail.
func (j *Job) status(now time.Time) JobStatus {
	p := j.Progress()
	s := JobStatus{Job: j.Name, Namespace: j.Workers.Namespace, Phase: j.Phase(),
		Reason: j.Reason(), Ring: j.Ring(), Wanted: j.Wanted(), Generation: p.Generation,
		Step: p.Step, TotalSteps: p.TotalSteps, Epoch: p.Epoch, Checkpoint: p.Checkpoint,
		CheckpointStep: p.CheckpointStep, Queue: j.Queue(), JobSet: j.JobSet(),
		Created: j.created()}
	if at := j.Updated(); !at.IsZero() {
		s.Updated = &at
	}
	if p.Step > 0 {
		for said, to := range map[string]**float64{"loss": &s.Loss, "perplexity": &s.Perplexity,
			"tokens-per-second": &s.TokensPerSecond} {
			x, err := strconv.ParseFloat(j.Workers.Annotations[annotations+said], 64)
			if err == nil && !math.IsNaN(x) && !math.IsInf(x, 0) {
				*to = &x
			}
		}
	}
	if silence := j.silence(now); silence > SilenceLimit {
		s.Phase, s.Ring, s.TokensPerSecond = phaseUnknown, 0, nil
		s.Reason = fmt.Sprintf("last heard %s ago", duration.HumanDuration(silence))
	}
	if s.Phase == phaseSuspended {
		s.Reason = j.waitingFor()
	}
	return s
}

// leave marks the job as deleted with its namespace.
func (s *JobStatus) leave() {
	if !s.Ended() {
		s.Phase, s.Reason = phaseDeleting, "its namespace is being deleted"
		s.Ring, s.TokensPerSecond = 0, nil
	}
}

// Statuses returns the jobs of the namespace, or of all namespaces, without detail.
func (c *Cluster) Statuses(ctx context.Context, everywhere bool) ([]JobStatus, error) {
	jobs, err := c.Jobs(ctx, everywhere)
	if err != nil {
		return nil, err
	}
	all, now := make([]JobStatus, 0, len(jobs)), time.Now()
	leaving := !everywhere && c.leaving(ctx)
	for _, job := range jobs {
		s := job.status(now)
		if leaving {
			s.leave()
		}
		all = append(all, s)
	}
	return all, nil
}

// Status returns a job with its detail.
func (c *Cluster) Status(ctx context.Context, name string) (*JobStatus, error) {
	scene, err := c.scene(ctx, name)
	if err != nil {
		return nil, err
	}
	if scene.workers == nil {
		return nil, c.missing(name)
	}
	job, now := c.jobOf(scene.workers), time.Now()
	s := job.status(now)
	if scene.leaving {
		s.leave()
	}
	s.Detail = scene.detail(job)
	s.Detail.Problems = append(s.Detail.Problems, scene.problems(now)...)
	if evicted := job.Progress().Evicted; evicted != "" && !s.Ended() && !s.Unknown() {
		s.Detail.Problems = append(s.Detail.Problems, Problem{Object: "job/" + job.Workers.Name,
			Text: "its leader keeps workers out of the ring: " + evicted})
	}
	if scene.coordinator != nil {
		if spec, err := job.specOf(ctx, scene.coordinator); err == nil { // the rest is useful too
			s.foresee(spec)
		}
	}
	return &s, nil
}

// detail returns the state of a job's parts.
func (s *scene) detail(job *Job) *Detail {
	d := &Detail{Coordinators: []PodStatus{}, Problems: []Problem{},
		Workers: workersOf(job, s.pods)}
	for i := range s.pods {
		pod := &s.pods[i]
		if pod.Labels[labelComponent] == Coordinator {
			d.Coordinators = append(d.Coordinators, podStatus(pod, Coordinator))
		}
	}
	slices.SortFunc(d.Coordinators, func(a, b PodStatus) int { return cmp.Compare(a.Pod, b.Pod) })
	d.seat(job)
	if s.etcd != nil {
		d.Etcd = &Ready{int(s.etcd.Status.ReadyReplicas), int(pointed(s.etcd.Spec.Replicas))}
	}
	return d
}

// seat adds the observer's report on the ring: the leader, and each worker's rank and lanes. It
// finds workers by their addresses.
func (d *Detail) seat(job *Job) {
	if job.Ring() == 0 {
		return
	}
	p := job.Progress()
	d.Leader = p.Leader
	for rank, member := range strings.Split(p.Ring, ",") {
		address, lanes, _ := strings.Cut(member, "=")
		var from, to int
		if n, _ := fmt.Sscanf(lanes, "%d-%d", &from, &to); n != 2 {
			return
		}
		for i := range d.Workers {
			if d.Workers[i].IP == address {
				d.Workers[i].Rank, d.Workers[i].Lanes = &rank, []int{from, to}
			}
		}
	}
}

// foresee estimates the time to the last step at the present speed, and names the limit if it ends
// before --steps.
func (s *JobStatus) foresee(spec *rondov1.JobSpec) {
	if s.TotalSteps > 0 && spec.Steps > s.TotalSteps {
		s.Detail.Limit = fmt.Sprintf("--epochs %d ends before --steps %d", spec.Epochs, spec.Steps)
	}
	if s.Ring == 0 || s.TokensPerSecond == nil || *s.TokensPerSecond <= 0 ||
		s.TotalSteps <= s.Step {
		return
	}
	left := float64(s.TotalSteps-s.Step) * float64(spec.Batch*spec.Bptt) / *s.TokensPerSecond
	s.Detail.SecondsLeft = &left
}

// workersOf returns the newest pod of each index, by index.
func workersOf(job *Job, pods []corev1.Pod) []PodStatus {
	newest := make(map[int]*corev1.Pod)
	failed := make(map[int][]*corev1.Pod)
	for i := range pods {
		pod := &pods[i]
		index, err := strconv.Atoi(pod.Labels[batchv1.JobCompletionIndexAnnotation])
		if pod.Labels[labelComponent] != Worker || err != nil ||
			!metav1.IsControlledBy(pod, job.Workers) {
			continue
		}
		if pod.Status.Phase == corev1.PodFailed {
			failed[index] = append(failed[index], pod)
		}
		old := newest[index]
		if old == nil || old.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest[index] = pod
		}
	}
	workers := make([]PodStatus, 0, len(newest))
	for index, pod := range newest {
		w := podStatus(pod, Worker)
		w.Index = &index
		before := slices.DeleteFunc(failed[index], func(p *corev1.Pod) bool { return p == pod })
		slices.SortFunc(before, func(a, b *corev1.Pod) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		})
		w.Restarts += len(before)
		if n := len(before); n > 0 && w.LastEnd == "" {
			w.LastEnd = podStatus(before[n-1], Worker).LastEnd
		}
		workers = append(workers, w)
	}
	slices.SortFunc(workers, func(a, b PodStatus) int { return cmp.Compare(*a.Index, *b.Index) })
	return workers
}

// ready reports whether a pod is ready and stays.
func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// podStatus returns the status of a pod and of one of its containers.
func podStatus(pod *corev1.Pod, container string) PodStatus {
	s := PodStatus{Pod: pod.Name, Node: pod.Spec.NodeName, IP: pod.Status.PodIP,
		Phase: string(pod.Status.Phase), Ready: ready(pod), Created: pod.CreationTimestamp.Time}
	for _, c := range pod.Spec.Containers {
		if limit, limited := c.Resources.Limits[corev1.ResourceMemory]; limited &&
			c.Name == container {
			s.Memory = limit.String()
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			s.Phase = c.State.Waiting.Reason
		}
		if c.Name != container {
			continue
		}
		s.Restarts = int(c.RestartCount)
		if end := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated); end != nil {
			s.LastEnd = said(end)
		}
	}
	switch {
	case pod.DeletionTimestamp != nil:
		s.Phase = "Terminating"
	case pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "":
		s.Phase = pod.Status.Reason // such as Evicted
	}
	return s
}
