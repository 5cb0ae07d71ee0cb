package kube

import (
	"cmp"
	"context"
	"errors"
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
	Record      = "record"   // what stays of the job
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

// Jobs returns the jobs of the namespace, or of all namespaces, sorted by namespace and name. Of
// those that have ended there may be a record only.
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
	ended, err := endedJobs(ctx, c, namespace, "")
	if err != nil {
		return nil, err
	}
	there := len(jobs)
	for _, job := range ended {
		if !slices.ContainsFunc(jobs[:there], func(other *Job) bool {
			return other.Name == job.Name && other.Workers.Namespace == job.Workers.Namespace
		}) {
			jobs = append(jobs, job)
		}
	}
	slices.SortFunc(jobs, func(a, b *Job) int {
		return cmp.Or(cmp.Compare(a.Workers.Namespace, b.Workers.Namespace),
			cmp.Compare(a.Name, b.Name), a.created().Compare(b.created()))
	})
	return jobs, nil
}

// Job returns the job of that name. An ended job may have only its record left.
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
	if newest != nil {
		return newest, nil
	}
	ended, err := endedJobs(ctx, c, c.Namespace, name)
	switch {
	case err != nil:
		return nil, err
	case len(ended) == 0:
		return nil, c.missing(name)
	}
	return ended[0], nil
}

// missing returns the error of a job that does not exist.
func (c *Cluster) missing(job string) error {
	return app.Usagef("%s has no job %s: `%s` lists its jobs, `%s` starts this one", c, job,
		c.command("status", ""), c.command("submit", job))
}

// isMissing reports whether an error is of a job that does not exist.
func isMissing(err error) bool {
	var missing *app.UsageError
	return errors.As(err, &missing)
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

// begun reports whether a worker of the job has run, as far as its state shows.
func (j *Job) begun() bool {
	return j.Workers.Status.Ready != nil && *j.Workers.Status.Ready > 0 || j.Progress().Step > 0
}

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

// elastic reports whether Kueue holds the pods that it has no quota for yet, and not the whole Job.
// Kueue adds the gate to the Job's pods when the Job is made, if its feature is on.
func (j *Job) elastic() bool { return gated(&j.Workers.Spec.Template.Spec) }

// gated reports whether Kueue keeps pods from being scheduled.
func gated(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.SchedulingGates, func(g corev1.PodSchedulingGate) bool {
		return g.Name == elasticGate
	})
}

// condition returns a condition of these types that holds, or nil.
func (j *Job) condition(kinds ...batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range j.Workers.Status.Conditions {
		if slices.Contains(kinds, c.Type) && c.Status == corev1.ConditionTrue {
			return &j.Workers.Status.Conditions[i]
		}
	}
	return nil
}

// Phase returns a phase of telemetry, or pending, suspended or deleting. A state of the Job itself
// overrides the observer's last annotation.
func (j *Job) Phase() string {
	if j.Workers.DeletionTimestamp != nil {
		return phaseDeleting
	}
	return j.runPhase()
}

// runPhase returns the phase of a job whether or not it is being deleted.
func (j *Job) runPhase() string {
	said := j.Workers.Annotations[annotations+"phase"]
	switch {
	case j.condition(batchv1.JobFailed, batchv1.JobFailureTarget) != nil:
		return telemetry.PhaseFailed
	case j.condition(batchv1.JobComplete, batchv1.JobSuccessCriteriaMet) != nil:
		return telemetry.PhaseEnded
	case endedPhase(said):
		return said
	case j.Suspended():
		return phaseSuspended
	case said == "":
		return phasePending
	}
	return said
}

// Ended reports whether the job has ended, with success or not.
func (j *Job) Ended() bool { return endedPhase(j.runPhase()) }

// endedPhase reports whether a job in this phase has ended.
func endedPhase(phase string) bool {
	return phase == telemetry.PhaseEnded || phase == telemetry.PhaseFailed
}

// Failed reports whether the job has ended and failed.
func (j *Job) Failed() bool { return j.runPhase() == telemetry.PhaseFailed }

// Reason returns the reason for the job's phase.
func (j *Job) Reason() string {
	if reason := j.Workers.Annotations[annotations+"reason"]; reason != "" {
		return reason
	}
	if c := j.condition(batchv1.JobFailed, batchv1.JobFailureTarget); c != nil {
		return c.Message
	}
	return ""
}

// Progress reads the observer's annotations. A missing one is zero.
func (j *Job) Progress() Progress {
	var p Progress
	for _, figure := range p.figures() {
		text := j.Workers.Annotations[annotations+figure.name]
		switch value := figure.value.(type) {
		case *string:
			*value = text
		case *int64:
			*value, _ = strconv.ParseInt(text, 10, 64) // nothing is 0
		case *float64:
			*value, _ = strconv.ParseFloat(text, 64)
		}
	}
	return p
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
	quiet := []string{phaseDeleting, phaseSuspended, phasePending, telemetry.PhaseEnded,
		telemetry.PhaseFailed}
	if at.IsZero() || slices.Contains(quiet, j.Phase()) {
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
