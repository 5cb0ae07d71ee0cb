package kube

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// seenClaims names claims in the list of what may not be read.
const seenClaims = "claims of volumes"

// Limits on reading events.
const (
	eventsAtOnce = 500
	maxEvents    = 20 * eventsAtOnce
)

// A scene is the state of a job's objects in the cluster. A missing object is nil.
type scene struct {
	cluster     *Cluster
	job         string
	leaving     bool         // the namespace is being deleted
	workers     *batchv1.Job // nil: there is none
	coordinator *appsv1.Deployment
	etcd        *appsv1.StatefulSet // nil also if the job uses another
	pods        []corev1.Pod        // the job's and etcd's
	claims      []corev1.PersistentVolumeClaim
	events      []corev1.Event // warnings
	unseen      []string       // kinds that this user may not read
}

// scene reads the job's objects. What this user may not read is left out; the rest is still useful.
func (c *Cluster) scene(ctx context.Context, job string) (*scene, error) {
	s := &scene{cluster: c, job: job, leaving: c.leaving(ctx)}
	found, err := c.Job(ctx, job)
	if err == nil {
		s.workers = found.Workers
	} else if !isMissing(err) {
		return nil, err
	}
	s.coordinator, err = see(s, "deployments", func() (*appsv1.Deployment, error) {
		return c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, job+"-"+Coordinator,
			metav1.GetOptions{})
	})
	if err != nil {
		return nil, err
	}
	s.etcd, err = see(s, "statefulsets", func() (*appsv1.StatefulSet, error) {
		return c.Client.AppsV1().StatefulSets(c.Namespace).Get(ctx, etcdName, metav1.GetOptions{})
	})
	if err != nil {
		return nil, err
	}
	if s.coordinator != nil && !usesOwnEtcd(&s.coordinator.Spec.Template) {
		s.etcd = nil
	}
	return s, s.seeParts(ctx)
}

// seeParts reads the pods, and the claims and events of the namespace.
func (s *scene) seeParts(ctx context.Context) error {
	core, namespace := s.cluster.Client.CoreV1(), s.cluster.Namespace
	wanted := []metav1.ListOptions{selecting(s.job, "")}
	if s.etcd != nil {
		wanted = append(wanted, selecting("", Etcd))
	}
	for _, selected := range wanted {
		list, err := see(s, "pods", func() (*corev1.PodList, error) {
			return core.Pods(namespace).List(ctx, selected)
		})
		if err != nil {
			return err
		} else if list != nil {
			s.pods = append(s.pods, list.Items...)
		}
	}
	claims, err := see(s, seenClaims, func() (*corev1.PersistentVolumeClaimList, error) {
		return core.PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	})
	if err != nil {
		return err
	} else if claims != nil {
		s.claims = claims.Items
	}
	for _, selector := range []string{"type=Warning", "reason=" + failedBinding} {
		if err := s.seeEvents(ctx, selector); err != nil {
			return err
		}
	}
	return nil
}

// seeEvents reads the selected events page by page. The cluster sorts them by name, so the newest
// can be on any page.
func (s *scene) seeEvents(ctx context.Context, selector string) error {
	options := metav1.ListOptions{FieldSelector: selector, Limit: eventsAtOnce}
	for range maxEvents / eventsAtOnce {
		list, err := see(s, "events", func() (*corev1.EventList, error) {
			return s.cluster.Client.CoreV1().Events(s.cluster.Namespace).List(ctx, options)
		})
		if err != nil || list == nil {
			return err
		}
		s.events = append(s.events, list.Items...)
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	return nil
}

// see returns what read returns, or nil if it does not exist, or if this user may not read it.
func see[T any](s *scene, what string, read func() (*T, error)) (*T, error) {
	seen, err := read()
	switch {
	case err == nil:
		return seen, nil
	case apierrors.IsForbidden(err) && !slices.Contains(s.unseen, what):
		s.unseen = append(s.unseen, what)
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		return nil, Explain(err, "looking at the job's "+what)
	}
	return nil, nil
}
