package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Owners of a job's objects, so that one deletion removes all of them, whoever deletes:
//
//	record -> Job or JobSet of the workers -> coordinators, services, policies, roles, ...
//	       -> texts                        -> etcd and other shared objects, with the other jobs'
//
// The Job goes a while after its end (--ttl-after-finished), and with it all that it owns. The
// cluster removes a shared object with the last Job that owns it.

// recordName is the end of the name of a job's record.
const recordName = "-record"

// recordOf returns the name of a job's record.
func recordOf(job string) string { return job + recordName }

// applyJob applies the job's own objects. The record comes first, because it owns others.
func (a *applier) applyJob(ctx context.Context) error {
	if a.how.ServerDryRun { // the record that would own them may not exist
		return a.applyAll(ctx, a.m.Job, "")
	}
	record := slices.IndexFunc(a.m.Job, isRecord)
	if err := a.apply(ctx, a.m.Job[record]); err != nil {
		return err
	}
	owner, err := a.ownerOf(ctx, a.m.Job[record])
	if err != nil {
		return err
	}
	for _, object := range a.m.Job {
		if a.ownedByRecord(object) {
			object.SetOwnerReferences([]metav1.OwnerReference{owner})
		}
	}
	return a.applyAll(ctx, a.m.Job, "job "+a.m.Spec.Job)
}

func isRecord(o *unstructured.Unstructured) bool {
	return o.GetKind() == "ConfigMap" && o.GetLabels()[labelComponent] == Record
}

// ownedByRecord reports whether an object stays with the record after the Job is gone, or is the
// Job.
func (a *applier) ownedByRecord(o *unstructured.Unstructured) bool {
	return o == a.m.workers() || o.GetKind() == "ConfigMap" &&
		strings.HasPrefix(o.GetName(), a.m.Spec.Job+textName)
}

// ownerOf returns the reference to an object of the cluster as an owner. It must exist.
func (o *objects) ownerOf(
	ctx context.Context, object *unstructured.Unstructured,
) (owner metav1.OwnerReference, err error) {
	found, err := o.find(ctx, object.GroupVersionKind(), object.GetName())
	if err != nil {
		return owner, err
	}
	if found == nil {
		return owner, deletedMeanwhile(object)
	}
	owner = metav1.OwnerReference{APIVersion: object.GetAPIVersion(), Kind: object.GetKind(),
		Name: object.GetName(), UID: found.object.GetUID()}
	if !isRecord(object) { // a deletion in the foreground waits for what is owned
		owner.BlockOwnerDeletion = new(bool)
		*owner.BlockOwnerDeletion = true
	}
	return owner, nil
}

func deletedMeanwhile(object *unstructured.Unstructured) error {
	return fmt.Errorf("%s was deleted while it was applied: submit the job again", nameOf(object))
}

// own makes the workers' Job the owner of the job's other objects, and one owner of the shared
// ones. The Job must exist before, and what its pods need must exist before the Job, so the objects
// are applied a second time.
func (a *applier) own(ctx context.Context) error {
	owner, err := a.ownerOf(ctx, a.m.workers())
	if err != nil {
		return err
	}
	for _, object := range a.m.Job {
		if isRecord(object) || a.ownedByRecord(object) {
			continue
		}
		object.SetOwnerReferences([]metav1.OwnerReference{owner})
		if err := a.apply(ctx, object); err != nil {
			return err
		}
	}
	if err := a.shareWith(ctx, owner, true); err != nil {
		return err
	}
	for _, c := range a.certificates {
		if c.secret.GetLabels()[labelJob] == "" {
			continue
		}
		if err := a.addOwner(ctx, c.secret, owner, false); err != nil {
			return err
		}
	}
	return nil
}

// holdShared makes the job's record an owner of the shared objects in place of the job's Job, which
// is about to be replaced: the cluster would remove them with it.
func (a *applier) holdShared(ctx context.Context) error {
	record, err := a.find(ctx, corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		recordOf(a.m.Spec.Job))
	if err != nil || record == nil {
		return err
	}
	owner, err := a.ownerOf(ctx, record.object)
	if err != nil {
		return err
	}
	return a.shareWith(ctx, owner, false)
}

// shareWith adds an owner to the objects that the namespace's jobs share. With needed it fails if
// one is gone: the cluster may have removed it with the job that was its last owner.
func (a *applier) shareWith(
	ctx context.Context, owner metav1.OwnerReference, needed bool,
) error {
	shared := slices.Clone(a.m.Shared)
	authorities := map[string]bool{}
	for _, c := range a.certificates {
		if c.secret.GetLabels()[labelJob] == "" {
			shared = append(shared, c.secret)
		}
		if !authorities[c.by] {
			authorities[c.by] = true
			shared = append(shared, newSecret(c.by, c.secret))
		}
	}
	for i, object := range shared {
		must := needed && i < len(a.m.Shared) // certificates may be there in part
		if err := a.addOwner(ctx, object, owner, must); err != nil {
			return err
		}
	}
	return nil
}

// addOwner adds an owner to an object that rondo submit has made. With needed it fails if the
// object is gone or being deleted. The field manager is the job's
// own, so that the owners that other jobs have added stay, and this job's earlier one goes.
func (a *applier) addOwner(
	ctx context.Context, object *unstructured.Unstructured, owner metav1.OwnerReference,
	needed bool,
) error {
	found, err := a.find(ctx, object.GroupVersionKind(), object.GetName())
	if err == nil && needed && (found == nil || found.object.GetDeletionTimestamp() != nil) {
		return deletedMeanwhile(object)
	}
	if err != nil || found == nil || found.object.GetLabels()[labelManagedBy] != manager {
		return err
	}
	owned := &unstructured.Unstructured{Object: map[string]any{}}
	owned.SetGroupVersionKind(object.GroupVersionKind())
	owned.SetName(object.GetName())
	owned.SetNamespace(object.GetNamespace())
	owned.SetUID(found.object.GetUID()) // one that was deleted meanwhile is not made anew
	owned.SetOwnerReferences([]metav1.OwnerReference{owner})
	return a.applyAs(ctx, manager+"-"+a.m.Spec.Job, owned)
}
