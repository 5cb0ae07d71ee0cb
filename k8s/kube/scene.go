package kube

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// seenClaims names claims in the list of what may not be read.
const seenClaims = "claims of volumes"

// A scene is the state of a job's objects in the cluster.
type scene struct {
	cluster     *Cluster
	job         string
	leaving     bool         // the namespace is being deleted
	workers     *batchv1.Job // nil: there is none
	coordinator *appsv1.Deployment
	etcd        *appsv1.StatefulSet
	pods        []corev1.Pod // the job's and etcd's
	claims      []corev1.PersistentVolumeClaim
	events      []corev1.Event
	listed      time.Time // when claims and events were read
	unseen      []string  // kinds that this user may not read
}

// sceneReader reads a scene from its cluster.
type sceneReader struct {
	*Cluster
	*scene
}

// scene reads the job's objects. A missing object is nil. What this user may not read is left out;
// the rest is still useful. before is an earlier scene, or nil. Its claims and events stay valid
// for a while, because a namespace can have thousands of them.
func (c *Cluster) scene(ctx context.Context, job string, before *scene) (*scene, error) {
	s := &sceneReader{Cluster: c, scene: &scene{cluster: c, job: job, leaving: c.leaving(ctx)}}
	if before != nil && time.Since(before.listed) < listEvery {
		s.claims, s.events, s.listed = before.claims, before.events, before.listed
	}
	for _, look := range []struct {
		what string
		at   func(context.Context) error
	}{
		{"jobs", s.seeWorkers}, {"deployments", s.seeCoordinator}, {"statefulsets", s.seeEtcd},
		{"pods", s.seePods}, {seenClaims, s.seeClaims}, {"events", s.seeEvents},
	} {
		err := look.at(ctx)
		if apierrors.IsForbidden(err) && look.what != "jobs" {
			s.unseen = append(s.unseen, look.what)
		} else if err != nil {
			return nil, Explain(err, "looking at the job's "+look.what)
		}
	}
	if s.listed.IsZero() {
		s.listed = time.Now()
	}
	return s.scene, nil
}

func (s *sceneReader) seeWorkers(ctx context.Context) error {
	jobs, err := s.Client.BatchV1().Jobs(s.Namespace).List(ctx, s.own())
	if err != nil {
		return err
	}
	for i := range jobs.Items {
		s.workers = &jobs.Items[i]
	}
	return nil
}

// own selects the job's objects.
func (s *sceneReader) own() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labelJob + "=" + s.job}
}

func (s *sceneReader) seeCoordinator(ctx context.Context) error {
	found, err := s.Client.AppsV1().Deployments(s.Namespace).Get(ctx,
		s.job+"-coordinator", metav1.GetOptions{})
	if err == nil {
		s.coordinator = found
	}
	return ignoreMissing(err)
}

func (s *sceneReader) seeEtcd(ctx context.Context) error {
	found, err := s.Client.AppsV1().StatefulSets(s.Namespace).Get(ctx, etcdName,
		metav1.GetOptions{})
	if err == nil && (s.coordinator == nil || usesOwnEtcd(&s.coordinator.Spec.Template)) {
		s.etcd = found
	}
	return ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (s *sceneReader) seePods(ctx context.Context) error {
	wanted := []metav1.ListOptions{s.own()}
	if s.etcd != nil {
		wanted = append(wanted, metav1.ListOptions{LabelSelector: etcdSelector})
	}
	for _, options := range wanted {
		pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, options)
		if err != nil {
			return err
		}
		s.pods = append(s.pods, pods.Items...)
	}
	return nil
}

func (s *sceneReader) seeClaims(ctx context.Context) error {
	if !s.listed.IsZero() {
		return nil
	}
	claims, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx,
		metav1.ListOptions{})
	if err == nil {
		s.claims = claims.Items
	}
	return err
}

// seeEvents reads the events page by page. The cluster sorts them by name, so the newest can be on
// any page.
func (s *sceneReader) seeEvents(ctx context.Context) error {
	if !s.listed.IsZero() {
		return nil
	}
	options := metav1.ListOptions{Limit: eventsAtOnce}
	for range maxEvents / eventsAtOnce {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, options)
		if err != nil {
			return err
		}
		s.events = append(s.events, events.Items...)
		if options.Continue = events.Continue; options.Continue == "" {
			break
		}
	}
	return nil
}
