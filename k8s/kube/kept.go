package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// annotate sets an annotation of an object.
func annotate(object *unstructured.Unstructured, name, value string) {
	notes := object.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[name] = value
	object.SetAnnotations(notes)
}

// run returns the number of the submission's run, as annotations have it.
func (s *Submission) run() string { return strconv.FormatInt(s.Run, 10) }

// keep writes the submission into the annotations of the job's record, which outlives the workers.
func (s *Submission) keep(record *unstructured.Unstructured) error {
	var kept strings.Builder
	encoder := json.NewEncoder(&kept)
	encoder.SetEscapeHTML(false) // URLs stay as a person wrote them
	if err := encoder.Encode(s); err != nil {
		return err
	}
	annotate(record, annotationRun, s.run())
	annotate(record, annotationSubmission, strings.TrimSpace(kept.String()))
	return nil
}

// keptIn reads the submission from a ConfigMap, the job's record. It returns nil if there is none.
func keptIn(record *corev1.ConfigMap) (*Submission, error) {
	text, kept := record.Annotations[annotationSubmission]
	if !kept {
		return nil, nil
	}
	s := &Submission{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("%s of configmap %s cannot be read: %w", annotationSubmission,
			record.Name, err)
	}
	return s, nil
}

// endedJobs returns the jobs of a namespace, or of all, whose objects are gone, and whose records
// hold how they ended. An empty name selects all jobs. Without the right to read ConfigMaps there
// are none.
func endedJobs(ctx context.Context, c *Cluster, namespace, name string) ([]*Job, error) {
	records, err := c.Client.CoreV1().ConfigMaps(namespace).List(ctx, selecting(name, Record))
	if apierrors.IsForbidden(err) {
		return nil, nil
	} else if err != nil {
		return nil, Explain(err, "looking for records of jobs")
	}
	var jobs []*Job
	for i := range records.Items {
		if job := endedJob(c, &records.Items[i]); job != nil {
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

// endedJob returns the job of a record as it was at its end, or nil if the record holds no end of
// its newest run.
func endedJob(c *Cluster, record *corev1.ConfigMap) *Job {
	submission, err := keptIn(record)
	if err != nil || submission == nil || record.Annotations[annotationEnded] != submission.run() {
		return nil
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Name: record.Labels[labelJob] + "-" + Worker, Namespace: record.Namespace,
		Labels: record.Labels, Annotations: record.Annotations,
		CreationTimestamp: metav1.NewTime(time.Unix(0, submission.Run))}}
	if spec, err := submission.job(); err == nil {
		workers := int32(spec.Workers)
		job.Spec.Parallelism = &workers
	}
	return c.jobOf(job)
}
