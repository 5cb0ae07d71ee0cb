package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	rondov1 "rondo/proto/rondo/v1"
)

// Limits of an operator.
const (
	reconcilers = 8                // RondoJobs at a time
	retryFirst  = time.Second      // after a failure; the wait doubles
	retryLast   = time.Minute      // at most
	mendEvery   = 5 * time.Minute  // between two looks for missing objects of a job
	lookAgain   = SilenceLimit / 2 // at a job that has not ended, which may fall silent
)

// OperatorConfig holds the options of Operate.
type OperatorConfig struct {
	Everywhere bool   // RondoJobs of all namespaces
	Image      string // of RondoJobs without one
	Fits       func(*rondov1.JobSpec, int) error
	Log        *slog.Logger
}

// An operator submits the jobs that RondoJobs describe, and keeps them as described. It keeps
// no state outside the cluster, and each of its changes may be made twice, so any number of
// operators may run, and one may be replaced at any time.
type operator struct {
	*objects // of the namespace that is watched; empty: all
	cfg      OperatorConfig
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu     sync.Mutex
	mended map[types.NamespacedName]time.Time // when missing objects were last looked for
}

// Operate runs an operator until ctx ends.
func Operate(ctx context.Context, c *Cluster, cfg OperatorConfig) error {
	if cfg.Everywhere {
		c = c.in(metav1.NamespaceAll)
	}
	all, err := c.objects(false)
	if err != nil {
		return err
	}
	jobs, err := all.of(rondoJobKind(), c.Namespace)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster has no RondoJobs: rondo operator --manifest | " +
			"kubectl apply --server-side -f -")
	} else if err != nil {
		return Explain(err, "asking for the cluster's kinds")
	}
	o := &operator{objects: all, cfg: cfg, mended: map[types.NamespacedName]time.Time{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.
			NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryLast))}
	trouble := func(err error) { cfg.Log.Warn("watching the cluster", "err", err) }
	defer watchObjects(ctx, jobs, &unstructured.Unstructured{}, metav1.ListOptions{},
		func(job *unstructured.Unstructured, _ bool) {
			o.queue.Add(types.NamespacedName{Namespace: job.GetNamespace(), Name: job.GetName()})
		}, trouble)()
	defer watchObjects(ctx, c.Client.BatchV1().Jobs(c.Namespace), &batchv1.Job{},
		selecting("", Worker), func(job *batchv1.Job, _ bool) { o.see(job, false) }, trouble)()
	defer watchObjects(ctx, c.Client.AppsV1().Deployments(c.Namespace), &appsv1.Deployment{},
		selecting("", Coordinator), func(d *appsv1.Deployment, gone bool) { o.see(d, gone) },
		trouble)()
	cfg.Log.Info("the operator runs", "namespace", c.Namespace, "image", cfg.Image)
	var running sync.WaitGroup
	for range reconcilers {
		running.Go(func() {
			for o.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	o.queue.ShutDown()
	running.Wait()
	return nil
}

// see has the operator look at the RondoJob of an object. One that is gone is to be made anew.
func (o *operator) see(object interface {
	metav1.Object
	runtime.Object
}, gone bool) {
	key := types.NamespacedName{Namespace: object.GetNamespace(),
		Name: object.GetLabels()[labelJob]}
	if key.Name == "" {
		return
	}
	if gone {
		o.mend(key, time.Time{})
	}
	o.queue.Add(key)
}

// mend records when missing objects of a job were looked for.
func (o *operator) mend(key types.NamespacedName, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at.IsZero() {
		delete(o.mended, key)
		return
	}
	o.mended[key] = at
}

// due reports whether it is time to look for missing objects of a job.
func (o *operator) due(key types.NamespacedName) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.mended[key]) >= mendEvery
}

// next looks at one RondoJob. It returns false when the queue is closed.
func (o *operator) next(ctx context.Context) bool {
	key, closed := o.queue.Get()
	if closed {
		return false
	}
	defer o.queue.Done(key)
	again, err := o.reconcile(ctx, key)
	if err != nil && ctx.Err() == nil {
		o.cfg.Log.Warn("a RondoJob waits", "namespace", key.Namespace, "job", key.Name, "err", err)
		o.queue.AddRateLimited(key)
		return true
	}
	o.queue.Forget(key)
	if again > 0 {
		o.queue.AddAfter(key, again)
	}
	return true
}
