package kube

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"rondo/internal/app"
	"rondo/telemetry"
)

// Labels of Rondo's objects.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
)

// The components of a job.
const (
	Worker      = "worker"
	Coordinator = "coordinator"
	Observer    = "observer" // beside the coordinator
	Etcd        = "etcd"     // of the namespace's jobs together
)

// Phases of a job that only Kubernetes knows.
const (
	phasePending   = "pending"   // no coordinator has reported yet
	phaseSuspended = "suspended" // its workers are suspended and can be resumed
	phaseDeleting  = "deleting"  // it, or its namespace, is being deleted
	phaseUnknown   = "unknown"   // no report for SilenceLimit
)

// SilenceLimit is the time without a write of the job's observer after which the job's phase is
// unknown.
const SilenceLimit = 30 * time.Second

// A Job is a job as the cluster holds it: the Kubernetes Job of its workers.
type Job struct {
	Name    string
	Workers *batchv1.Job
	cluster *Cluster // in the job's namespace
}

// selecting selects Rondo's objects. An empty name selects all.
func selecting(job, component string) metav1.ListOptions {
	set := labels.Set{labelName: "rondo"}
	if component != "" {
		set[labelComponent] = component
	}
	if job != "" {
		set[labelJob] = job
	}
	return metav1.ListOptions{LabelSelector: set.AsSelector().String()}
}

// Jobs returns the jobs of the namespace, or of all namespaces, sorted by namespace and name.
func (c *Cluster) Jobs(ctx context.Context, everywhere bool) ([]*Job, error) {
	namespace := c.Namespace
	if everywhere {
		namespace = metav1.NamespaceAll
	}
	list, err := c.Client.BatchV1().Jobs(namespace).List(ctx, selecting("", Worker))
	if err != nil {
		return nil, Explain(err, "listing jobs")
	}
	var jobs []*Job
	for i := range list.Items {
		if job := c.jobOf(&list.Items[i]); job != nil {
			jobs = append(jobs, job)
		}
	}
	slices.SortFunc(jobs, func(a, b *Job) int {
		return cmp.Or(cmp.Compare(a.Workers.Namespace, b.Workers.Namespace),
			cmp.Compare(a.Name, b.Name), a.created().Compare(b.created()))
	})
	return jobs, nil
}

// Job returns the job of that name.
func (c *Cluster) Job(ctx context.Context, name string) (*Job, error) {
	list, err := c.Client.BatchV1().Jobs(c.Namespace).List(ctx, selecting(name, Worker))
	if err != nil {
		return nil, Explain(err, "looking for job "+name)
	}
	var newest *Job // a JobSet that is being replaced has two for a moment
	for i := range list.Items {
		job := c.jobOf(&list.Items[i])
		if job != nil && (newest == nil || job.created().After(newest.created())) {
			newest = job
		}
	}
	if newest == nil {
		return nil, app.Usagef("%s has no job %s: `%s` lists its jobs, `%s` starts this one",
			c, name, c.command("status", ""), c.command("submit", name))
	}
	return newest, nil
}

// jobOf returns the job whose workers a Job runs. It returns nil for a Job that is not Rondo's.
func (c *Cluster) jobOf(workers *batchv1.Job) *Job {
	name := workers.Labels[labelJob]
	if name == "" {
		return nil
	}
	return &Job{Name: name, Workers: workers, cluster: c.in(workers.Namespace)}
}

func (j *Job) created() time.Time { return j.Workers.CreationTimestamp.Time }

// Wanted returns the number of workers that the job should have.
func (j *Job) Wanted() int { return wantedBy(j.Workers).Workers }

// Suspended reports whether the job's workers are suspended.
func (j *Job) Suspended() bool { return wantedBy(j.Workers).Suspended }

// JobSet returns the JobSet that owns the workers' Job; empty: none.
func (j *Job) JobSet() string {
	for _, owner := range j.Workers.OwnerReferences {
		if owner.Kind == "JobSet" {
			return owner.Name
		}
	}
	return ""
}

// Queue returns Kueue's queue that admits the workers; empty: none.
func (j *Job) Queue() string { return j.Workers.Labels[labelQueue] }

// condition returns the Job's condition of a type if it holds, or nil.
func (j *Job) condition(kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range j.Workers.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return &j.Workers.Status.Conditions[i]
		}
	}
	return nil
}

// Phase returns a phase of telemetry, or pending, suspended or deleting. A state of the Job itself
// overrides the observer's last annotation.
func (j *Job) Phase() string {
	said := j.Workers.Annotations[annotations+"phase"]
	switch {
	case j.Workers.DeletionTimestamp != nil:
		return phaseDeleting
	case j.failed():
		return telemetry.PhaseFailed
	case j.condition(batchv1.JobComplete) != nil, j.condition(batchv1.JobSuccessCriteriaMet) != nil:
		return telemetry.PhaseEnded
	case said == telemetry.PhaseEnded, said == telemetry.PhaseFailed:
		return said
	case j.Suspended():
		return phaseSuspended
	case said == "":
		return phasePending
	}
	return said
}

func (j *Job) failed() bool {
	return j.condition(batchv1.JobFailed) != nil || j.condition(batchv1.JobFailureTarget) != nil
}

// Ended reports whether the job has ended, with success or not.
func (j *Job) Ended() bool { return endedPhase(j.Phase()) }

// endedPhase reports whether a job in this phase has ended.
func endedPhase(phase string) bool {
	return phase == telemetry.PhaseEnded || phase == telemetry.PhaseFailed
}

// Failed reports whether the job has ended and failed.
func (j *Job) Failed() bool { return j.Phase() == telemetry.PhaseFailed }

// Reason returns the reason for the job's phase.
func (j *Job) Reason() string {
	if reason := j.Workers.Annotations[annotations+"reason"]; reason != "" {
		return reason
	}
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobFailureTarget} {
		if c := j.condition(kind); c != nil {
			return c.Message
		}
	}
	return ""
}

// Progress reads the observer's annotations. A missing one is zero.
func (j *Job) Progress() Progress {
	read := func(name string) string { return j.Workers.Annotations[annotations+name] }
	integer := func(name string) int64 {
		n, _ := strconv.ParseInt(read(name), 10, 64) // nothing is 0
		return n
	}
	figure := func(name string) float64 {
		x, _ := strconv.ParseFloat(read(name), 64)
		return x
	}
	return Progress{Phase: read("phase"), Reason: read("reason"), Step: integer("step"),
		TotalSteps: integer("total-steps"), Epoch: integer("epoch"), Loss: figure("loss"),
		Perplexity: figure("perplexity"), TokensPerSecond: figure("tokens-per-second"),
		WorldSize: integer("world-size"), Generation: integer("generation"),
		Checkpoint: read("checkpoint"), CheckpointStep: integer("checkpoint-step"),
		Leader: read("leader"), Ring: read("ring"), Evicted: read("evicted")}
}

// Updated returns the time of the observer's last write; the zero time: never.
func (j *Job) Updated() time.Time {
	at, _ := time.Parse(time.RFC3339, j.Workers.Annotations[annotations+"updated"])
	return at
}

// silence returns the time since the observer's last write; 0: the job's phase needs no writes. It
// assumes that this machine's clock agrees with that of the observer's node.
func (j *Job) silence(now time.Time) time.Duration {
	at := j.Updated()
	switch j.Phase() {
	case phaseDeleting, phaseSuspended, phasePending, telemetry.PhaseEnded, telemetry.PhaseFailed:
		return 0
	}
	if at.IsZero() {
		return 0
	}
	return max(0, now.Sub(at))
}

// Ring returns the number of workers in the ring, as last reported.
func (j *Job) Ring() int {
	if j.Suspended() || j.Ended() {
		return 0
	}
	return int(j.Progress().WorldSize)
}
