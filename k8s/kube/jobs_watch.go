package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

// follow calls changed with the job now and after each change, until changed reports done or ctx
// ends. It reconnects when the connection breaks.
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

// why returns the first problem of a job, as the end of an error; empty: none is known.
func (c *Cluster) why(job string) string {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	problems, err := c.Diagnose(ctx, job)
	if err != nil || len(problems) == 0 {
		return ""
	}
	return ": " + problems[0].String()
}

// limited returns ctx with a deadline. The text of its cause is computed when somebody asks for it.
func limited(ctx context.Context, d time.Duration, text func() string) (
	context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, lateError{sync.OnceValue(text)})
}

// lateError computes its text when it is asked for.
type lateError struct{ text func() string }

func (e lateError) Error() string { return e.text() }
