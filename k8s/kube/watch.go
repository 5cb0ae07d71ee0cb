package kube

import (
	"context"
	"fmt"
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
	stop := watchObjects(ctx, jobs, &batchv1.Job{}, selecting(j.Name, Worker),
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

// Limits on looking again and again.
const (
	lookEvery = 2 * time.Second
	lookLost  = 2 * time.Minute // of failed looks, until Watch fails
)

// Watch calls look every lookEvery until it returns done or ctx ends. Errors of the cluster go to
// troubled for a while; the first look must succeed.
func (c *Cluster) Watch(ctx context.Context, look func(context.Context) (done bool, err error),
	troubled func(error)) error {
	for seen := (time.Time{}); ; {
		done, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done:
			return err
		case err == nil:
			seen = time.Now()
		case isMissing(err) || time.Since(seen) > lookLost:
			return err
		default:
			troubled(err)
		}
		if err := wait(ctx, lookEvery); err != nil {
			return err
		}
	}
}
