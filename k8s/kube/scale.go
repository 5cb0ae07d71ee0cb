package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyapply "k8s.io/client-go/applyconfigurations/policy/v1"

	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Scale says how a job is scaled.
type Scale struct {
	Workers int
	Fits    func(*rondov1.JobSpec, int) error // whether the job can have so many
	Timeout time.Duration                     // for the ring to have them
	Say     func(string)                      // told of what happens, one line each
}

// Scale sets how many workers a job has, and waits until its ring has them. The observer beside
// the leader tells the leader; a pod that is not wanted any more hands its lanes over and ends.
func (c *Cluster) Scale(ctx context.Context, name string, how Scale) error {
	job, err := c.Job(ctx, name)
	if err != nil {
		return err
	}
	spec, err := c.scalable(ctx, job, how)
	if err != nil {
		return err
	}
	if err := c.setWorkers(ctx, job, how.Workers); err != nil {
		return err
	}
	if err := c.setBudget(ctx, job, spec, how.Workers); err != nil {
		how.Say(fmt.Sprintf("note: how many of them a drain may take stays as it was: %v", err))
	}
	how.Say(fmt.Sprintf("job %s: %d workers wanted, %d before", name, how.Workers, job.Wanted()))
	if sized := fewest(spec); how.Workers < sized {
		how.Say(fmt.Sprintf("note: their memory was sized for %d workers or more; if they are out "+
			"of it, stop the job, and resume it with --workers %d", sized, how.Workers))
	}
	switch {
	case job.Suspended():
		how.Say("it is suspended: they start when it goes on (" + c.command("resume", name) + ")")
		return nil
	case how.Timeout == 0:
		return nil
	}
	return c.awaitRing(ctx, job, how)
}

// scalable refuses what cannot be, with the reason.
func (c *Cluster) scalable(ctx context.Context, job *Job, how Scale) (
	*rondov1.JobSpec, error) {
	if job.Ended() {
		return nil, fmt.Errorf("job %s has ended: %s", job.Name, job.Reason())
	}
	if set := job.JobSet(); set != "" {
		return nil, app.Usagef("job %s runs as JobSet %s, whose size is fixed: %s", job.Name, set,
			c.stopAndResume(job, how.Workers))
	}
	if queue := job.Queue(); queue != "" && how.Workers > job.Wanted() {
		return nil, app.Usagef("job %s runs on what Kueue has admitted to queue %s, and Kueue "+
			"would suspend it for more: %s", job.Name, queue, c.stopAndResume(job, how.Workers))
	}
	spec, err := c.spec(ctx, job)
	if err != nil {
		return nil, err
	}
	if err := how.Fits(spec, how.Workers); err != nil {
		return nil, app.Usagef("scaling the job: %w", err)
	}
	return spec, nil
}

// stopAndResume is how a job gets workers that it cannot get while it runs.
func (c *Cluster) stopAndResume(job *Job, workers int) string {
	return c.command("stop", job.Name) + ", and then " +
		c.command("resume", job.Name, "--workers "+strconv.Itoa(workers))
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

// setBudget says how many of so many workers a drain must leave, as the same owner of that field as
// submit, which would otherwise find a conflict there.
func (c *Cluster) setBudget(
	ctx context.Context, job *Job, spec *rondov1.JobSpec, workers int,
) error {
	budgets := c.Client.PolicyV1().PodDisruptionBudgets(job.Workers.Namespace)
	budget, err := budgets.Get(ctx, job.Name+"-"+Worker, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return Explain(err, "looking at the workers' disruption budget")
	}
	owned, err := policyapply.ExtractPodDisruptionBudget(budget, manager)
	if err != nil {
		return err
	}
	if owned.Spec == nil {
		owned.WithSpec(policyapply.PodDisruptionBudgetSpec())
	}
	owned.Spec.WithMinAvailable(leastAvailable(spec, workers))
	_, err = budgets.Apply(ctx, owned, metav1.ApplyOptions{FieldManager: manager, Force: true})
	return Explain(err, "setting the workers' disruption budget")
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
			how.Say("it is suspended: " + c.waitingFor(now))
		case now.Suspended():
		case now.Wanted() != how.Workers && now.Wanted() != job.Wanted():
			return false, fmt.Errorf("somebody else has set the workers of job %s to %d meanwhile",
				job.Name, now.Wanted())
		case now.Ring() != ring:
			ring, suspended = now.Ring(), false
			how.Say(InRing(ring, how.Workers))
		}
		return ring == how.Workers && !suspended, nil
	})
}

// InRing says how many workers the ring has and is to have. It has more while it shrinks.
func InRing(ring, wanted int) string {
	if ring > wanted {
		return fmt.Sprintf("%d workers in the ring, %d wanted", ring, wanted)
	}
	return fmt.Sprintf("%d of %d workers in the ring", ring, wanted)
}

// waitingFor says what a suspended job waits for.
func (c *Cluster) waitingFor(job *Job) string {
	if queue := job.Queue(); queue != "" {
		return "Kueue admits it when queue " + queue + " has room for it"
	}
	return c.command("resume", job.Name) + " has it go on"
}
