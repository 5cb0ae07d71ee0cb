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
func (p Progress) Over() bool { return over(p.Phase) }

func over(phase string) bool {
	return phase == telemetry.PhaseEnded || phase == telemetry.PhaseFailed
}

// annotate returns the annotations. An unknown value is null, which removes the annotation, so that
// none is of another run. At the end unknown values stay, because an observer that saw the end only
// knows less than the annotations.
func (p Progress) annotate(now time.Time) map[string]any {
	out := map[string]any{
		"phase": p.Phase, "world-size": whole(p.WorldSize), "generation": whole(p.Generation),
		"updated": now.UTC().Format(time.RFC3339), "reason": nil,
	}
	if p.Over() || p.Phase == telemetry.PhaseStopping {
		out["stop"] = nil // the request is fulfilled
	}
	for name, value := range map[string]string{"leader": p.Leader, "ring": p.Ring,
		"evicted": p.Evicted} {
		if out[name] = nil; value != "" {
			out[name] = value
		}
	}
	if !p.Over() {
		for _, name := range []string{"step", "total-steps", "epoch", "loss", "perplexity",
			"tokens-per-second", "checkpoint", "checkpoint-step"} {
			out[name] = nil
		}
	}
	if p.Reason != "" {
		out["reason"] = p.Reason
	}
	if p.Step > 0 {
		out["step"], out["epoch"] = whole(p.Step), whole(p.Epoch)
		out["total-steps"] = whole(p.TotalSteps)
		out["loss"], out["perplexity"] = figure(p.Loss, 4), nil
		if p.Perplexity != 0 { // else the loss is a mean squared error
			out["perplexity"] = figure(p.Perplexity, 3)
		}
		out["tokens-per-second"] = figure(p.TokensPerSecond, 0)
	}
	if p.Checkpoint != "" {
		out["checkpoint"], out["checkpoint-step"] = p.Checkpoint, whole(p.CheckpointStep)
	}
	named := make(map[string]any, len(out))
	for name, value := range out {
		named[annotations+name] = value
	}
	return named
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

// figure formats a number with some digits after the point; nil if it is not finite.
func figure(x float64, digits int) any {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return strconv.FormatFloat(x, 'f', digits, 64)
}

// WorkerJob is the Job of a job's workers, as the observer uses it.
type WorkerJob struct {
	client          API
	namespace, name string
}

// WorkerJob returns the Job of that name.
func (c *Cluster) WorkerJob(name string) *WorkerJob {
	return &WorkerJob{client: c.Client, namespace: c.Namespace, name: name}
}

// Annotate writes the job's progress into the Job's annotations.
func (j *WorkerJob) Annotate(ctx context.Context, p Progress, now time.Time) error {
	err := j.patch(ctx, p.annotate(now), "rondo-observer")
	return Explain(err, fmt.Sprintf("writing the progress to job %s/%s", j.namespace, j.name))
}

// Forgotten annotates the Job: etcd has no keys of the job any more.
func (j *WorkerJob) Forgotten(ctx context.Context) error {
	err := j.patch(ctx, map[string]any{annotations + "forget": forgotten}, "rondo-observer")
	return Explain(err, fmt.Sprintf("annotating job %s/%s", j.namespace, j.name))
}

// patch sets annotations of the Job. A nil value removes an annotation.
func (j *WorkerJob) patch(ctx context.Context, notes map[string]any, as string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": notes}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = j.client.BatchV1().Jobs(j.namespace).Patch(ctx, j.name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: as})
	return err
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
	stop, err := watchObjects(ctx, j.client.BatchV1().Jobs(j.namespace), &batchv1.Job{}, own,
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
	if err != nil {
		return err
	}
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
	w.Over = over(job.Annotations[annotations+"phase"])
	w.Stop = job.Annotations[annotations+"stop"]
	w.Forget = job.Annotations[annotations+"forget"] == toForget
	return w
}
