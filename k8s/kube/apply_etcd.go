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
func (c *Cluster) applyShared(ctx context.Context, o *objects, m *Manifests, how Apply) error {
	var missing []*unstructured.Unstructured
	for _, object := range m.Shared {
		there, err := o.exists(ctx, object)
		if err != nil {
			return err
		}
		if there && object.GetKind() == "StatefulSet" {
			used, err := c.useEtcd(ctx, o, object, m.Options, how)
			if err != nil {
				return err
			}
			there = used
		}
		if !there {
			missing = append(missing, object)
		}
	}
	return o.applyAll(ctx, missing, "etcd and what jobs share", how)
}

// useEtcd says whether the etcd that is there can be used. One of which no member has ever started,
// for want of its image or of a volume, holds nothing, and makes room for the one submitted now.
// Members whose pods are only made anew have volumes older than those pods.
func (c *Cluster) useEtcd(
	ctx context.Context, o *objects, object *unstructured.Unstructured, options Options, how Apply,
) (bool, error) {
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: etcdSelector})
	if err != nil {
		return false, Explain(err, "looking at the members of etcd")
	}
	claims, err := c.etcdClaims(ctx)
	if err != nil {
		return false, err
	}
	if how.DryRun || slices.ContainsFunc(pods.Items, started) ||
		slices.ContainsFunc(claims, func(claim corev1.PersistentVolumeClaim) bool {
			return usedBefore(claim, pods.Items)
		}) {
		how.Say(nameOf(object) + " is there, and used as it is")
		return true, c.fits(ctx, object, options)
	}
	how.Say(nameOf(object) + " has never started, and is made anew")
	resources, err := o.of(object)
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
	return false, c.removeClaims(ctx, func(claim *corev1.PersistentVolumeClaim) bool {
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
func (c *Cluster) etcdClaims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	all, err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: etcdSelector})
	if err != nil {
		return nil, Explain(err, "listing the claims of etcd's volumes")
	}
	return all.Items, nil
}

// removeClaims deletes the claims of etcd's volumes that which chooses.
func (c *Cluster) removeClaims(
	ctx context.Context, which func(*corev1.PersistentVolumeClaim) bool,
) error {
	all, err := c.etcdClaims(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if !which(&all[i]) {
			continue
		}
		err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Delete(ctx, all[i].Name,
			metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return Explain(err, "deleting persistentvolumeclaim/"+all[i].Name)
		}
	}
	return nil
}

// fits refuses an etcd that does not speak as the job does.
func (c *Cluster) fits(
	ctx context.Context, object *unstructured.Unstructured, options Options,
) error {
	set, err := c.Client.AppsV1().StatefulSets(object.GetNamespace()).Get(ctx, object.GetName(),
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
	case secure && !options.TLS:
		return fmt.Errorf("the etcd of namespace %s speaks TLS alone: give --tls, or another "+
			"--namespace", c.Namespace)
	case !secure && options.TLS:
		return fmt.Errorf("the etcd of namespace %s speaks no TLS: leave out --tls, or give "+
			"another --namespace, or remove it with its last job (rondo delete --with-etcd)",
			c.Namespace)
	}
	return nil
}
