package kube

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/internal/app"
)

// Limits on reports of changes.
const (
	changesAtOnce = time.Second      // changes this close together are reported once
	changesLook   = 15 * time.Second // between looks without a change: for ages and events
	changesLost   = 2 * time.Minute  // of failed looks, until Watch fails
)

// Watch calls look now and after each change to the namespace's jobs (everywhere: to all jobs),
// until look returns done or ctx ends. Errors of the cluster go to troubled for a while; the first
// look must succeed.
func (c *Cluster) Watch(ctx context.Context, everywhere bool,
	look func(context.Context) (done bool, err error), troubled func(error)) error {
	namespace := c.Namespace
	if everywhere {
		namespace = metav1.NamespaceAll
	}
	changed := make(chan struct{}, 1)
	stop, err := c.notify(ctx, namespace, troubled, func() {
		select {
		case changed <- struct{}{}:
		default: // it is known already
		}
	})
	defer stop()
	if err != nil {
		return err
	}
	again := time.NewTicker(changesLook)
	defer again.Stop()
	for seen := (time.Time{}); ; {
		done, err := look(ctx)
		var wrong *app.UsageError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done:
			return err
		case err == nil:
			seen = time.Now()
		case errors.As(err, &wrong) || time.Since(seen) > changesLost:
			return err
		default:
			troubled(err)
		}
		if err := wait(ctx, changesAtOnce); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-again.C:
		}
	}
}

// notify calls changed after each change to a Job, pod or StatefulSet of Rondo's, until stop.
func (c *Cluster) notify(ctx context.Context, namespace string, troubled func(error),
	changed func()) (stop func(), err error) {
	trouble := func(err error) { troubled(Explain(err, "watching the job")) }
	all := selecting("", "")
	var stops [3]func()
	var failed [3]error
	stops[0], failed[0] = watchObjects(ctx, c.Client.BatchV1().Jobs(namespace), &batchv1.Job{},
		all, func(*batchv1.Job, bool) { changed() }, trouble)
	stops[1], failed[1] = watchObjects(ctx, c.Client.CoreV1().Pods(namespace), &corev1.Pod{},
		all, func(*corev1.Pod, bool) { changed() }, trouble)
	stops[2], failed[2] = watchObjects(ctx, c.Client.AppsV1().StatefulSets(namespace),
		&appsv1.StatefulSet{}, all, func(*appsv1.StatefulSet, bool) { changed() }, trouble)
	return func() {
		for _, stop := range stops {
			if stop != nil {
				stop()
			}
		}
	}, errors.Join(failed[:]...)
}
