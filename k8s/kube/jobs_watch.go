package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

// follow calls changed with the job as it is now and whenever it has changed, until that says it
// is done, or ctx ends. A connection that breaks is made anew.
func (j *Job) follow(ctx context.Context, changed func(*Job) (bool, error)) error {
	if done, err := changed(j); done || err != nil {
		return err
	}
	ended := make(chan error, 1)
	over := false
	jobs := j.cluster.Client.BatchV1().Jobs(j.Workers.Namespace)
	stop, err := watchObjects(ctx, jobs, &batchv1.Job{}, selecting(j.Name, Worker),
		func(workers *batchv1.Job, gone bool) {
			if over || workers.Name != j.Workers.Name {
				return
			}
			done, err := false, fmt.Errorf("job %s has been deleted", j.Name)
			if !gone {
				done, err = changed(&Job{j.Name, workers, j.cluster})
			}
			if over = done || err != nil; over {
				ended <- err
			}
		}, nil)
	if err != nil {
		return err
	}
	defer stop()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
