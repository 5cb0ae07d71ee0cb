package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// applyShared makes what is missing of the objects that the namespace's jobs share.
func (a *applier) applyShared(ctx context.Context) error {
	var missing []*unstructured.Unstructured
	for _, object := range a.m.Shared {
		there, err := a.exists(ctx, object)
		if err != nil {
			return err
		}
		if there && object.GetKind() == "StatefulSet" {
			used, err := a.useEtcd(ctx, object)
			if err != nil {
				return err
			}
			there = used
		}
		if !there {
			missing = append(missing, object)
		}
	}
	return a.applyAll(ctx, missing, "etcd and what jobs share")
}

// useEtcd says whether the etcd that is there can be used. One of which no member has ever started,
// for want of its image or of a volume, holds nothing, and makes room for the one submitted now.
// Members whose pods are only made anew have volumes older than those pods.
func (a *applier) useEtcd(
	ctx context.Context, object *unstructured.Unstructured,
) (bool, error) {
	pods, err := a.Client.CoreV1().Pods(a.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: etcdSelector})
	if err != nil {
		return false, Explain(err, "looking at the members of etcd")
	}
	claims, err := a.etcdClaims(ctx)
	if err != nil {
		return false, err
	}
	if a.how.DryRun || slices.ContainsFunc(pods.Items, started) ||
		slices.ContainsFunc(claims, func(claim corev1.PersistentVolumeClaim) bool {
			return usedBefore(claim, pods.Items)
		}) {
		a.how.Say(nameOf(object) + " is there, and used as it is")
		return true, a.fits(ctx, object)
	}
	a.how.Say(nameOf(object) + " has never started, and is made anew")
	resources, err := a.of(object)
	if err != nil {
		return false, Explain(err, "deleting "+nameOf(object))
	}
	old, err := resources.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		return false, Explain(err, "looking at "+nameOf(object))
	}
	if err := remove(ctx, resources, old); err != nil {
		return false, err
	}
	return false, a.removeClaims(ctx, func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.Phase == corev1.ClaimPending
	})
}

// started says whether a container of the pod has ever run.
func started(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.ContainerID != "" || s.RestartCount > 0
	})
}

// claimAge is how much older than its pod a volume's claim is at most if it was made for that pod.
const claimAge = time.Minute

// usedBefore says whether a claim of etcd's has a volume that an earlier pod than one of these may
// have written to.
func usedBefore(claim corev1.PersistentVolumeClaim, pods []corev1.Pod) bool {
	madeFor := func(pod corev1.Pod) bool {
		return claim.Name == "data-"+pod.Name &&
			pod.CreationTimestamp.Sub(claim.CreationTimestamp.Time) < claimAge
	}
	return claim.Status.Phase != corev1.ClaimPending && !slices.ContainsFunc(pods, madeFor)
}

// etcdClaims are the claims of etcd's volumes.
func (o *objects) etcdClaims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	all, err := o.Client.CoreV1().PersistentVolumeClaims(o.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: etcdSelector})
	if err != nil {
		return nil, Explain(err, "listing the claims of etcd's volumes")
	}
	return all.Items, nil
}

// removeClaims deletes the claims of etcd's volumes that which chooses.
func (o *objects) removeClaims(
	ctx context.Context, which func(*corev1.PersistentVolumeClaim) bool,
) error {
	all, err := o.etcdClaims(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if !which(&all[i]) {
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

// fits refuses an etcd that does not speak as the job does.
func (a *applier) fits(ctx context.Context, object *unstructured.Unstructured) error {
	set, err := a.Client.AppsV1().StatefulSets(object.GetNamespace()).Get(ctx, object.GetName(),
		metav1.GetOptions{})
	if err != nil {
		return Explain(err, "looking at "+nameOf(object))
	}
	secure := slices.ContainsFunc(set.Spec.Template.Spec.Containers,
		func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Args, func(arg string) bool {
				return strings.HasPrefix(arg, "--tls=")
			})
		})
	switch {
	case secure && !a.m.Options.TLS:
		return fmt.Errorf("the etcd of namespace %s speaks TLS alone: give --tls, or another "+
			"--namespace", a.Namespace)
	case !secure && a.m.Options.TLS:
		return fmt.Errorf("the etcd of namespace %s speaks no TLS: leave out --tls, or give "+
			"another --namespace, or remove it with its last job (rondo delete --with-etcd)",
			a.Namespace)
	}
	return nil
}
