package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// follow calls changed with the job as it is now and whenever it has changed, until that says it
// is done, or ctx ends. A connection that breaks is made anew.
func (c *Cluster) follow(ctx context.Context, job *Job, changed func(*Job) (bool, error)) error {
	if done, err := changed(job); done || err != nil {
		return err
	}
	jobs := c.Client.BatchV1().Jobs(job.Workers.Namespace)
	options := func(o *metav1.ListOptions) {
		o.LabelSelector = selecting(job.Name, Worker).LabelSelector
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (
			runtime.Object, error) {
			options(&o)
			return jobs.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (
			watch.Interface, error) {
			options(&o)
			return jobs.Watch(ctx, o)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, source, &batchv1.Job{}, nil,
		func(event watch.Event) (bool, error) {
			workers, is := event.Object.(*batchv1.Job)
			if !is || workers.Name != job.Workers.Name {
				return false, nil
			}
			if event.Type == watch.Deleted {
				return false, fmt.Errorf("job %s has been deleted", job.Name)
			}
			return changed(&Job{Name: job.Name, Workers: workers})
		})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// why names what keeps a job, for the end of an error; empty if nothing is known.
func (c *Cluster) why(job string) string {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	problems, err := c.Diagnose(ctx, job)
	if err != nil || len(problems) == 0 {
		return ""
	}
	return ": " + problems[0].String()
}

// limited is ctx with a deadline, and what to say when it has passed.
func limited(ctx context.Context, d time.Duration, text func() string) (
	context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, lateError{sync.OnceValue(text)})
}

// lateError is an error whose text is found out when it is asked for.
type lateError struct{ text func() string }

func (e lateError) Error() string { return e.text() }
