package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/coordinator"
	"rondo/internal/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Scale says how a job is scaled.
type Scale struct {
	Workers int
	Timeout time.Duration // for the ring to have them
	Say     func(string)  // told of what happens, one line each
}

// Scale sets how many workers a job has, and waits until its ring has them. The observer beside
// the leader tells the leader; a pod that is not wanted any more hands its lanes over and ends.
func (c *Cluster) Scale(ctx context.Context, name string, how Scale) error {
	job, err := c.Job(ctx, name)
	if err != nil {
		return err
	}
	if err := c.scalable(ctx, job, how.Workers); err != nil {
		return err
	}
	if err := c.setWorkers(ctx, job, how.Workers); err != nil {
		return err
	}
	how.Say(fmt.Sprintf("job %s: %d workers wanted, %d before", name, how.Workers, job.Wanted()))
	switch {
	case job.Suspended():
		how.Say("it is suspended: they start when it goes on (rondo resume --job " + name + ")")
		return nil
	case how.Timeout == 0:
		return nil
	}
	return c.awaitRing(ctx, job, how)
}

// scalable refuses what cannot be, with the reason.
func (c *Cluster) scalable(ctx context.Context, job *Job, workers int) error {
	if job.Ended() {
		return fmt.Errorf("job %s has ended: %s", job.Name, job.Reason())
	}
	if set := job.JobSet(); set != "" {
		return app.Usagef("job %s runs as JobSet %s, whose size is fixed: rondo stop --job %s, "+
			"and then rondo resume --job %s --workers %d", job.Name, set,
			job.Name, job.Name, workers)
	}
	spec, err := c.spec(ctx, job)
	if err != nil {
		return err
	}
	if err := coordinator.JobOf(spec).CheckScale(workers); err != nil {
		return app.Usagef("scaling the job: %w", err)
	}
	return nil
}

// spec reads the job as its coordinators are given it.
func (c *Cluster) spec(ctx context.Context, job *Job) (*rondov1.JobSpec, error) {
	doing := "reading the spec of job " + job.Name
	namespace := job.Workers.Namespace
	deployment, err := c.Client.AppsV1().Deployments(namespace).Get(ctx,
		job.Name+"-"+Coordinator, metav1.GetOptions{})
	if err != nil {
		return nil, Explain(err, doing)
	}
	volumes := deployment.Spec.Template.Spec.Volumes
	i := slices.IndexFunc(volumes, func(v corev1.Volume) bool {
		return v.Name == "spec" && v.ConfigMap != nil
	})
	if i < 0 {
		return nil, fmt.Errorf("%s: deployment %s has no volume \"spec\" of a ConfigMap: it is "+
			"not as rondo submit makes it", doing, deployment.Name)
	}
	stored, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, volumes[i].ConfigMap.Name,
		metav1.GetOptions{})
	if err != nil {
		return nil, Explain(err, doing)
	}
	return jobspec.FromYAML("configmap "+stored.Name, []byte(stored.Data["job.yaml"]))
}

// setWorkers changes both numbers at once: of an Indexed Job they can only change together.
func (c *Cluster) setWorkers(ctx context.Context, job *Job, workers int) error {
	patch, err := json.Marshal(map[string]any{
		"spec": map[string]any{"completions": workers, "parallelism": workers},
	})
	if err != nil {
		return err
	}
	_, err = c.Client.BatchV1().Jobs(job.Workers.Namespace).Patch(ctx, job.Workers.Name,
		types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	return Explain(err, "setting the number of workers of job "+job.Name)
}

// awaitRing waits until the ring has as many workers as are wanted.
func (c *Cluster) awaitRing(ctx context.Context, job *Job, how Scale) error {
	ring, suspended := -1, false
	ctx, cancel := limited(ctx, how.Timeout, func() string {
		return fmt.Sprintf("after %v the ring of job %s has %d of %d workers%s", how.Timeout,
			job.Name, ring, how.Workers, c.why(job.Name))
	})
	defer cancel()
	return c.follow(ctx, job, func(now *Job) (bool, error) {
		switch {
		case now.Ended():
			return false, fmt.Errorf("job %s has ended: %s", job.Name, now.Reason())
		case now.Suspended() && !suspended:
			suspended = true
			how.Say("it is suspended: " + waitingFor(now))
		case now.Suspended():
		case now.Wanted() != how.Workers && now.Wanted() != job.Wanted():
			return false, fmt.Errorf("somebody else has set the workers of job %s to %d meanwhile",
				job.Name, now.Wanted())
		case now.Ring() != ring:
			ring, suspended = now.Ring(), false
			how.Say(fmt.Sprintf("%d of %d workers in the ring", ring, how.Workers))
		}
		return ring == how.Workers && !suspended, nil
	})
}

// waitingFor says what a suspended job waits for.
func waitingFor(job *Job) string {
	if queue := job.Queue(); queue != "" {
		return "Kueue admits it when queue " + queue + " has room for it"
	}
	return "rondo resume --job " + job.Name + " has it go on"
}
