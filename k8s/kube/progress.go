package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"rondo/telemetry"
)

// annotations is the prefix of a job's annotations.
const annotations = "rondo.dev/"

// Values of the annotation "forget": a command requests it, and an observer reports that it is
// done.
const (
	toForget  = "please"
	forgotten = "done"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = 10 * time.Second

// Progress is a job's progress, as the annotations of its workers' Job have it.
type Progress struct {
	Phase, Reason                     string
	Step, TotalSteps, Epoch           int64
	Loss, Perplexity, TokensPerSecond float64
	WorldSize, Generation             int64
	Checkpoint                        string // path; empty: none is known
	CheckpointStep                    int64
	Leader                            string // the pod whose coordinator leads
	Ring                              string // the ring's workers, by rank: IP=FROM-TO,... of lanes
	Evicted                           string // workers that the leader keeps out, and why
}

// Over reports whether the job has ended, with success or not.
func (p Progress) Over() bool { return endedPhase(p.Phase) }

// A figure is a part of Progress with an annotation of its own.
type figure struct {
	name   string
	value  any // *string, *int64 or *float64
	known  bool
	stays  bool // at the job's end, if it is unknown then
	digits int  // of a float64, after the point
}

func (p *Progress) figures() []figure {
	stepped, saved := p.Step > 0, p.Checkpoint != ""
	return []figure{
		{name: "phase", value: &p.Phase, known: true},
		{name: "world-size", value: &p.WorldSize, known: true},
		{name: "generation", value: &p.Generation, known: true},
		{name: "reason", value: &p.Reason, known: p.Reason != ""},
		{name: "leader", value: &p.Leader, known: p.Leader != ""},
		{name: "ring", value: &p.Ring, known: p.Ring != ""},
		{name: "evicted", value: &p.Evicted, known: p.Evicted != ""},
		{name: "step", value: &p.Step, known: stepped, stays: true},
		{name: "total-steps", value: &p.TotalSteps, known: stepped, stays: true},
		{name: "epoch", value: &p.Epoch, known: stepped, stays: true},
		{name: "loss", value: &p.Loss, known: stepped, stays: true, digits: 4},
		{name: "perplexity", value: &p.Perplexity, stays: true, digits: 3,
			known: stepped && p.Perplexity != 0}, // a mean squared error has none
		{name: "tokens-per-second", value: &p.TokensPerSecond, known: stepped, stays: true},
		{name: "checkpoint", value: &p.Checkpoint, known: saved, stays: true},
		{name: "checkpoint-step", value: &p.CheckpointStep, known: saved, stays: true},
	}
}

// annotate returns the annotations. An unknown value is null, which removes the annotation, so that
// none is of another run. At the end unknown values stay, because an observer that saw the end only
// knows less than the annotations.
func (p Progress) annotate(now time.Time) map[string]any {
	out := map[string]any{annotations + "updated": now.UTC().Format(time.RFC3339)}
	if p.Over() || p.Phase == telemetry.PhaseStopping {
		out[annotations+"stop"] = nil // the request is fulfilled
	}
	for _, figure := range p.figures() {
		switch {
		case figure.known:
			out[annotations+figure.name] = figure.text()
		case !p.Over() || !figure.stays:
			out[annotations+figure.name] = nil
		}
	}
	return out
}

// text returns the value of the annotation; nil for a number that is not finite.
func (f figure) text() any {
	switch value := f.value.(type) {
	case *int64:
		return strconv.FormatInt(*value, 10)
	case *float64:
		if math.IsNaN(*value) || math.IsInf(*value, 0) {
			return nil
		}
		return strconv.FormatFloat(*value, 'f', f.digits, 64)
	default:
		return *f.value.(*string)
	}
}

// WorkerJob is the Job of a job's workers, as the observer uses it.
type WorkerJob struct {
	client          API
	namespace, name string
	record          string    // empty: there is none
	uid             types.UID // after the first Annotate
}

// WorkerJob returns the Job of that name.
func (c *Cluster) WorkerJob(name string) *WorkerJob {
	return &WorkerJob{client: c.Client, namespace: c.Namespace, name: name}
}

// WithRecord returns the Job with the name of the job's record.
func (j WorkerJob) WithRecord(record string) *WorkerJob {
	j.record = record
	return &j
}

// observerManager is the field manager of what observers write.
const observerManager = "rondo-observer"

// Annotate writes the job's progress into the Job's annotations, and its end into the record too.
func (j *WorkerJob) Annotate(ctx context.Context, p Progress, now time.Time) error {
	job, err := j.patch(ctx, p.annotate(now), observerManager)
	if err != nil {
		return Explain(err, fmt.Sprintf("writing the progress to job %s/%s", j.namespace, j.name))
	}
	j.uid = job.UID
	if !p.Over() || j.record == "" {
		return nil
	}
	return Explain(j.keepEnd(ctx, job), fmt.Sprintf("writing the end of job %s/%s to configmap %s",
		j.namespace, j.name, j.record))
}

// keepEnd copies the progress from the annotations of an ended Job into the record. Annotations
// that the Job lacks are removed there: they are of an earlier run.
func (j *WorkerJob) keepEnd(ctx context.Context, job *batchv1.Job) error {
	kept := map[string]any{annotationEnded: job.Spec.Template.Annotations[annotationRun],
		annotations + "updated": job.Annotations[annotations+"updated"]}
	for _, figure := range (&Progress{}).figures() {
		name := annotations + figure.name
		if text, has := job.Annotations[name]; has {
			kept[name] = text
		} else {
			kept[name] = nil
		}
	}
	patch, err := annotationsPatch(kept)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = j.client.CoreV1().ConfigMaps(j.namespace).Patch(ctx, j.record, types.MergePatchType,
		patch, metav1.PatchOptions{FieldManager: observerManager})
	return err
}

// leaveTimeout bounds Leave, which runs while the pod's grace period does.
const leaveTimeout = 5 * time.Second

// Leave ends the Job if its namespace is being deleted. The namespace goes only when its pods are
// gone, and a failed pod of a Job that goes on waits for a replacement, which the namespace
// refuses.
func (j *WorkerJob) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	namespace, err := j.client.CoreV1().Namespaces().Get(ctx, j.namespace, metav1.GetOptions{})
	if err != nil {
		return Explain(err, "looking at namespace "+j.namespace)
	}
	if namespace.DeletionTimestamp == nil {
		return nil
	}
	_, err = j.client.BatchV1().Jobs(j.namespace).Patch(ctx, j.name, types.MergePatchType,
		[]byte(`{"spec": {"activeDeadlineSeconds": 1}}`),
		metav1.PatchOptions{FieldManager: observerManager})
	return Explain(err, fmt.Sprintf("ending job %s/%s with its namespace", j.namespace, j.name))
}

// Forgotten annotates the Job: etcd has no keys of the job any more.
func (j *WorkerJob) Forgotten(ctx context.Context) error {
	_, err := j.patch(ctx, map[string]any{annotations + "forget": forgotten}, observerManager)
	return Explain(err, fmt.Sprintf("annotating job %s/%s", j.namespace, j.name))
}

// patch sets annotations of the Job. A nil value removes an annotation.
func (j *WorkerJob) patch(
	ctx context.Context, notes map[string]any, as string,
) (*batchv1.Job, error) {
	patch, err := annotationsPatch(notes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return j.client.BatchV1().Jobs(j.namespace).Patch(ctx, j.name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: as})
}

// annotationsPatch returns the merge patch that sets annotations, and removes those that are nil.
func annotationsPatch(notes map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"annotations": notes}})
}

// Wanted is the Job's wishes for its workers and its run.
type Wanted struct {
	Workers   int // 0: the Job does not exist
	Suspended bool
	Run       int64  // the run of its pods; 0: unknown
	Over      bool   // the run has ended, by the annotations
	Stop      string // why the run should stop; empty: it should not
	Forget    bool   // the run should stop, and its keys in etcd should be removed
}

// Read returns the Job's present wishes.
func (j *WorkerJob) Read(ctx context.Context) (Wanted, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	job, err := j.client.BatchV1().Jobs(j.namespace).Get(ctx, j.name, metav1.GetOptions{})
	if err != nil {
		return Wanted{}, Explain(err, fmt.Sprintf("reading job %s/%s", j.namespace, j.name))
	}
	return wantedBy(job), nil
}

// Watch calls changed with the Job's wishes now and after each change, and reached with the error
// of a watch that failed, or nil when it works again, until ctx ends.
func (j *WorkerJob) Watch(ctx context.Context, changed func(Wanted), reached func(error)) error {
	own := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", j.name).String()}
	stop := watchObjects(ctx, j.client.BatchV1().Jobs(j.namespace), &batchv1.Job{}, own,
		func(job *batchv1.Job, gone bool) {
			if gone {
				changed(Wanted{})
				return
			}
			changed(wantedBy(job))
			reached(nil)
		}, func(err error) {
			reached(Explain(err, fmt.Sprintf("watching job %s/%s", j.namespace, j.name)))
		})
	defer stop()
	<-ctx.Done()
	return ctx.Err()
}

func wantedBy(job *batchv1.Job) Wanted {
	w := Wanted{Workers: 1} // Kubernetes' default
	if job.Spec.Parallelism != nil {
		w.Workers = int(*job.Spec.Parallelism)
	}
	w.Suspended = job.Spec.Suspend != nil && *job.Spec.Suspend
	w.Run, _ = strconv.ParseInt(job.Spec.Template.Annotations[annotationRun], 10, 64)
	w.Over = endedPhase(job.Annotations[annotations+"phase"])
	w.Stop = job.Annotations[annotations+"stop"]
	w.Forget = job.Annotations[annotations+"forget"] == toForget
	return w
}
