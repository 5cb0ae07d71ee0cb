package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// applyShared creates the missing ones of the objects that the namespace's jobs share.
func (a *applier) applyShared(ctx context.Context) error {
	var missing []*unstructured.Unstructured
	for _, object := range a.m.Shared {
		old, err := a.find(ctx, object.GroupVersionKind(), object.GetName())
		if err == nil && old != nil && old.object.GetDeletionTimestamp() != nil {
			err = old.gone(ctx) // it goes with the job that was its last
			old = nil
		}
		used := old != nil
		if used && err == nil && object.GetKind() == "StatefulSet" {
			used, err = a.useEtcd(ctx, old, object)
		}
		if err != nil {
			return err
		}
		if !used {
			missing = append(missing, object)
		}
	}
	return a.applyAll(ctx, missing, "etcd and what jobs share")
}

// useEtcd reports whether the existing etcd can be used. If no member has ever started, for lack of
// its image or a volume, it holds no data, and useEtcd removes it for the submitted one, if that
// has another image or other volumes. A member whose pod is only being replaced has a volume older
// than its pod.
func (a *applier) useEtcd(
	ctx context.Context, set *stored, submitted *unstructured.Unstructured,
) (bool, error) {
	pods, err := a.Client.CoreV1().Pods(a.Namespace).List(ctx, selecting("", Etcd))
	if err != nil {
		return false, Explain(err, "looking at the members of etcd")
	}
	claims, err := a.etcdClaims(ctx)
	if err != nil {
		return false, err
	}
	same, err := sameEtcd(set.object, submitted)
	if err != nil {
		return false, err
	}
	if a.how.ServerDryRun || same || slices.ContainsFunc(pods.Items, started) ||
		slices.ContainsFunc(claims, func(claim corev1.PersistentVolumeClaim) bool {
			return usedBefore(claim, pods.Items)
		}) {
		a.say(nameOf(set.object) + " exists and is used as it is")
		return true, a.fits(set.object)
	}
	a.say(nameOf(set.object) + " has never started and is replaced")
	if err := set.remove(ctx); err != nil {
		return false, err
	}
	return false, a.removeClaims(ctx, func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.Phase == corev1.ClaimPending
	})
}

// sameEtcd reports whether two StatefulSets of etcd have the same image and volumes.
func sameEtcd(a, b *unstructured.Unstructured) (bool, error) {
	var needs [2]string
	for i, object := range []*unstructured.Unstructured{a, b} {
		set := &appsv1.StatefulSet{}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set)
		if err != nil {
			return false, fmt.Errorf("%s cannot be read: %w", nameOf(object), err)
		}
		for _, container := range set.Spec.Template.Spec.Containers {
			needs[i] += container.Image + " " + string(container.ImagePullPolicy) + "\n"
		}
		for _, claim := range set.Spec.VolumeClaimTemplates {
			needs[i] += fmt.Sprintln(pointed(claim.Spec.StorageClassName),
				claim.Spec.Resources.Requests.Storage())
		}
	}
	return needs[0] == needs[1], nil
}

// started reports whether a container of the pod has ever run.
func started(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.ContainerID != "" || s.RestartCount > 0
	})
}

// claimAge is the largest age of a claim, beyond its pod's, if the claim was made for that pod.
const claimAge = time.Minute

// usedBefore reports whether a claim of etcd's has a volume to which a pod before these may have
// written.
func usedBefore(claim corev1.PersistentVolumeClaim, pods []corev1.Pod) bool {
	madeFor := func(pod corev1.Pod) bool {
		return claim.Name == "data-"+pod.Name &&
			pod.CreationTimestamp.Sub(claim.CreationTimestamp.Time) < claimAge
	}
	return claim.Status.Phase != corev1.ClaimPending && !slices.ContainsFunc(pods, madeFor)
}

// etcdClaims returns the claims of etcd's volumes.
func (o *objects) etcdClaims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	all, err := o.Client.CoreV1().PersistentVolumeClaims(o.Namespace).List(ctx,
		selecting("", Etcd))
	if err != nil {
		return nil, Explain(err, "listing the claims of etcd's volumes")
	}
	return all.Items, nil
}

// removeClaims deletes the chosen claims of etcd's volumes.
func (o *objects) removeClaims(
	ctx context.Context, chosen func(*corev1.PersistentVolumeClaim) bool,
) error {
	all, err := o.etcdClaims(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if !chosen(&all[i]) {
			continue
		}
		err := o.Client.CoreV1().PersistentVolumeClaims(o.Namespace).Delete(ctx, all[i].Name,
			metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return Explain(err, "deleting persistentvolumeclaim/"+all[i].Name)
		}
	}
	return nil
}

// fits fails if the etcd uses TLS and the job does not, or the reverse. It points the job's pods to
// the members that there are.
func (a *applier) fits(object *unstructured.Unstructured) error {
	set := &appsv1.StatefulSet{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set)
	secure := slices.ContainsFunc(set.Spec.Template.Spec.Containers,
		func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Args, func(arg string) bool {
				return strings.HasPrefix(arg, "--tls=")
			})
		})
	switch {
	case err != nil:
		return fmt.Errorf("%s cannot be read: %w", nameOf(object), err)
	case secure && a.m.Options.Insecure:
		return fmt.Errorf("the etcd of namespace %s requires TLS: leave out --insecure, or give "+
			"another --namespace", a.Namespace)
	case !secure && !a.m.Options.Insecure:
		return fmt.Errorf("the etcd of namespace %s has no TLS: give another --namespace, or "+
			"remove it with its last job (rondo delete --with-etcd), or give --insecure",
			a.Namespace)
	}
	members := int(pointed(set.Spec.Replicas))
	if members == 1 && highlyAvailable(&Submission{Options: a.m.Options}, a.m.Spec) {
		a.say("note: the namespace's etcd has one member, and gets more only when it is " +
			"made anew: delete its jobs first, or give another --namespace")
	}
	return a.m.fitEtcd(members)
}
