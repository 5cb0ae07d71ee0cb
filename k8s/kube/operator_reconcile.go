package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	rondov1 "rondo/proto/rondo/v1"
)

// annotationSpec of a job's record holds the spec of the RondoJob with which the run was begun.
const annotationSpec = "rondo.dev/spec"

// A reconciliation is an operator's work on one RondoJob after one event.
type reconciliation struct {
	*objects // of the RondoJob's namespace
	operator *operator
	key      types.NamespacedName
	found    *stored
	r        *rondoJob

	want   *Submission // nil: the spec is wrong
	record *corev1.ConfigMap
	work   *workers // of the record's run; nil: none
	job    *Job     // the same, or how it ended; nil: nothing is known
	over   bool     // only the RondoJob's status says how it ended
}

// reconcile makes the next change that a RondoJob needs, if any, and writes its status. again is
// the time of the next look without an event; 0: none.
func (o *operator) reconcile(
	ctx context.Context, key types.NamespacedName,
) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	there := *o.objects
	there.Cluster = o.in(key.Namespace)
	c := &reconciliation{objects: &there, operator: o, key: key}
	c.found, err = c.find(ctx, rondoJobKind(), key.Name)
	if err != nil || c.found == nil || c.found.object.GetDeletionTimestamp() != nil {
		o.mend(key, time.Time{})
		return 0, err
	}
	if c.r, err = rondoJobIn(c.found.object); err != nil {
		return 0, err
	}
	sight, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	next, applied := decide(sight)
	if err = c.act(ctx, next, sight); err != nil {
		applied.Status, applied.Reason, applied.Message = metav1.ConditionFalse, reasonFailed,
			err.Error()
	} else if next == begin {
		applied.Status, applied.Message = metav1.ConditionTrue, ""
	}
	if wrong := c.write(ctx, applied); wrong != nil && !apierrors.IsConflict(wrong) {
		return 0, Explain(wrong, "writing the status")
	} else if wrong != nil || sight.leaving {
		return retryFirst, err
	}
	if sight.ended {
		return 0, err
	}
	return lookAgain, err
}

// look reads the job's objects from the cluster.
func (c *reconciliation) look(ctx context.Context) (*sight, error) {
	s := &sight{suspending: c.r.suspended(), due: c.operator.due(c.key)}
	c.want, s.wrong = c.r.submission(c.operator.cfg.Image)
	n, _, _ := unstructured.NestedInt64(c.r.Spec, specReplicas)
	s.wanted = int(n)
	record, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, recordOf(c.r.Name),
		metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, Explain(err, "looking for the job's record")
	}
	work, err := c.findWorkers(ctx, c.r.Name)
	if err != nil {
		return nil, err
	}
	switch by := metav1.GetControllerOf(record); {
	case record.Name == "" && work == nil:
		return s, nil
	case record.Name == "" && len(work.object.GetOwnerReferences()) == 0:
		s.taken = nameOf(work.object)
		return s, nil
	case record.Name == "", record.DeletionTimestamp != nil, by != nil && by.UID != c.r.UID:
		s.leaving = true
		return s, nil
	case by == nil:
		s.taken = "configmap/" + record.Name
		return s, nil
	}
	return s, c.lookAtRun(record, work, s)
}

// lookAtRun compares the run that the record holds with the spec.
func (c *reconciliation) lookAtRun(record *corev1.ConfigMap, work *workers, s *sight) error {
	var begunWith map[string]any
	err := utiljson.Unmarshal([]byte(record.Annotations[annotationSpec]), &begunWith)
	if err != nil {
		return fmt.Errorf("%s of configmap/%s: %w", annotationSpec, record.Name, err)
	}
	c.record, s.run = record, true
	s.changed = changedFields(begunWith, fixedSpec(c.r.Spec))
	if work != nil && work.object.GetAnnotations()[annotationRun] ==
		record.Annotations[annotationRun] {
		c.work, c.job, s.there = work, work.job, true
	} else {
		c.job = endedJob(c.Cluster, record)
		last := c.r.Status
		c.over = c.job == nil && endedPhase(last.Phase) &&
			last.Run == record.Annotations[annotationRun]
	}
	s.ended = c.over
	if c.job != nil {
		s.begun, s.ended, s.queue = c.job.begun(), c.job.Ended(), c.job.Queue()
		s.workers, s.suspended = c.job.Wanted(), c.job.Suspended()
	}
	return nil
}

// act carries out an action.
func (c *reconciliation) act(ctx context.Context, what action, s *sight) error {
	log := c.operator.cfg.Log.With("namespace", c.Namespace, "job", c.r.Name)
	if what != leave {
		log.Info("a RondoJob is acted on", "action", string(what))
	}
	say := func(line string) { log.Info(line) }
	switch what {
	case begin:
		return c.begin(ctx, s.suspending, say)
	case mend:
		return c.mend(ctx, say)
	case scale:
		scaling := &scaling{c.job, Scale{Workers: s.wanted, Fits: c.operator.cfg.Fits, Say: say}}
		spec, err := scaling.check(ctx)
		if err == nil {
			err = scaling.setWorkers(ctx)
		}
		if err == nil {
			err = scaling.setBudget(ctx, spec)
		}
		return err
	case suspend:
		_, err := c.work.from.Patch(ctx, c.work.object.GetName(), types.MergePatchType,
			fmt.Appendf(nil, `{"spec": {"suspend": %t}}`, s.suspending),
			metav1.PatchOptions{FieldManager: manager})
		return Explain(err, "suspending or resuming "+nameOf(c.work.object))
	}
	return nil
}

// begin begins a run. The record, which owns the rest, is the RondoJob's.
func (c *reconciliation) begin(ctx context.Context, suspended bool, say func(string)) error {
	if err := (&submitter{Cluster: c.Cluster}).number(ctx, c.want); err != nil {
		return err
	}
	m, err := Render(ctx, c.want, c.Namespace)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(fixedSpec(c.r.Spec))
	if err != nil {
		return err
	}
	for _, object := range m.Job {
		if isRecord(object) {
			annotate(object, annotationSpec, string(spec))
			object.SetOwnerReferences([]metav1.OwnerReference{c.r.owner()})
		}
	}
	if suspended {
		err := unstructured.SetNestedField(m.workers().Object, true, "spec", "suspend")
		if err != nil {
			return err
		}
	}
	if c.work == nil { // coordinators of a run whose workers are gone
		left, err := c.find(ctx, appsv1.SchemeGroupVersion.WithKind("Deployment"),
			c.r.Name+"-"+Coordinator)
		if err == nil && left != nil {
			err = left.remove(ctx)
		}
		if err != nil {
			return err
		}
	}
	if err := (&applier{objects: c.objects, m: m, say: say}).run(ctx); err != nil {
		return err
	}
	c.operator.mend(c.key, time.Now())
	return nil
}

// mend applies objects of the present run that are missing, and renews certificates.
func (c *reconciliation) mend(ctx context.Context, say func(string)) error {
	kept, err := keptIn(c.record)
	if err != nil || kept == nil {
		return err
	}
	m, err := Render(ctx, kept, c.Namespace)
	if err != nil {
		return err
	}
	a := &applier{objects: c.objects, m: m, say: say}
	for _, step := range []func(context.Context) error{
		a.takeCertificates, a.applyCertificates, a.applyShared,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	owner, err := a.ownerOf(ctx, m.workers())
	if err != nil {
		return err
	}
	for _, object := range m.Job {
		there, err := c.find(ctx, object.GroupVersionKind(), object.GetName())
		if err == nil && there == nil {
			object.SetOwnerReferences([]metav1.OwnerReference{owner})
			say(nameOf(object) + " is missing and is made anew")
			err = c.apply(ctx, object)
		}
		if err != nil {
			return err
		}
	}
	if err := a.shareWith(ctx, owner, true); err != nil {
		return err
	}
	c.operator.mend(c.key, time.Now())
	return nil
}

// status returns the RondoJob's status without its conditions.
func (c *reconciliation) status(now time.Time) rondoJobStatus {
	if c.over {
		return c.r.Status
	}
	status := pendingStatus(c.r.Name)
	if c.job != nil {
		var spec *rondov1.JobSpec // nil: the time to the end is not known
		if kept, err := keptIn(c.record); err == nil && kept != nil {
			spec, _ = kept.job()
		}
		known := c.job.status(now)
		status.copy(&known, spec)
		status.Replicas = int64(c.job.Workers.Status.Active)
	}
	if c.record != nil {
		status.Run = c.record.Annotations[annotationRun]
	}
	return status
}

// write writes the status if it has changed.
func (c *reconciliation) write(ctx context.Context, applied metav1.Condition) error {
	status := c.status(time.Now())
	status.ObservedGeneration = c.r.Generation
	status.Conditions = slices.Clone(c.r.Status.Conditions)
	status.setConditions(applied, c.r.Generation)
	if equality.Semantic.DeepEqual(status, c.r.Status) {
		return nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: maps.Clone(c.found.object.Object)}
	object.Object["status"] = fields
	_, err = c.found.from.UpdateStatus(ctx, object, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		return nil // it was deleted meanwhile
	}
	return err
}
