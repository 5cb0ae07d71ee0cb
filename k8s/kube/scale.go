package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyapply "k8s.io/client-go/applyconfigurations/policy/v1"

	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Scale holds the options of Cluster.Scale.
type Scale struct {
	Workers int
	Fits    func(*rondov1.JobSpec, int) error // nil if the job can have so many
	Timeout time.Duration                     // for the ring to have them
	Say     func(string)                      // receives a line about each change
}

// scaling scales one job.
type scaling struct {
	*Job
	how Scale
}

// Scale sets the number of workers of a job, and waits until its ring has them. The observer beside
// the leader reports the number to the leader. A worker that is not wanted any more hands its lanes
// over and ends.
func (c *Cluster) Scale(ctx context.Context, name string, how Scale) error {
	err := refuseOwned(ctx, c, name, fmt.Sprintf("scale rondojob/%s --replicas %d", name,
		how.Workers))
	if err != nil {
		return err
	}
	job, err := c.Job(ctx, name)
	if err != nil {
		return err
	}
	return (&scaling{job, how}).run(ctx)
}

func (s *scaling) run(ctx context.Context) error {
	spec, err := s.check(ctx)
	if err != nil {
		return err
	}
	if err := s.setWorkers(ctx); err != nil {
		return err
	}
	how := s.how
	if err := s.setBudget(ctx, spec); err != nil {
		how.Say(fmt.Sprintf("note: the workers' disruption budget stays as it was: %v", err))
	}
	how.Say(fmt.Sprintf("job %s: %d workers wanted, %d before", s.Name, how.Workers, s.Wanted()))
	if sized := fewest(spec); how.Workers < sized {
		how.Say(fmt.Sprintf("note: their memory was sized for %d workers or more; if they run out "+
			"of it, stop the job, and resume it with --workers %d", sized, how.Workers))
	}
	switch {
	case s.Suspended():
		how.Say("it is suspended: they start when it is resumed (" +
			s.cluster.command("resume", s.Name) + ")")
		return nil
	case how.Timeout == 0:
		return nil
	}
	return s.awaitRing(ctx)
}

// check fails if the job cannot have so many workers.
func (s *scaling) check(ctx context.Context) (*rondov1.JobSpec, error) {
	if s.Ended() {
		return nil, fmt.Errorf("job %s has ended: %s", s.Name, s.Reason())
	}
	if set := s.JobSet(); set != "" {
		return nil, app.Usagef("job %s runs as JobSet %s, whose size is fixed: %s", s.Name, set,
			s.stopAndResume())
	}
	if queue := s.Queue(); queue != "" && s.how.Workers > s.Wanted() && !s.elastic() {
		return nil, app.Usagef("job %s runs on what Kueue has admitted to queue %s, and without "+
			"its feature %s Kueue would suspend it for more: %s", s.Name, queue, elasticFeature,
			s.stopAndResume())
	}
	spec, err := s.spec(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.how.Fits(spec, s.how.Workers); err != nil {
		return nil, app.Usagef("scaling the job: %w", err)
	}
	return spec, nil
}

// stopAndResume returns the commands that change the number of workers between two runs.
func (s *scaling) stopAndResume() string {
	return s.cluster.command("stop", s.Name) + ", and then " +
		s.cluster.command("resume", s.Name, "--workers "+strconv.Itoa(s.how.Workers))
}

// spec reads the spec that the job's coordinators read.
func (j *Job) spec(ctx context.Context) (*rondov1.JobSpec, error) {
	deployment, err := j.cluster.Client.AppsV1().Deployments(j.Workers.Namespace).Get(ctx,
		j.Name+"-"+Coordinator, metav1.GetOptions{})
	if err != nil {
		return nil, Explain(err, "reading the spec of job "+j.Name)
	}
	return j.specOf(ctx, deployment)
}

func (j *Job) specOf(
	ctx context.Context, deployment *appsv1.Deployment,
) (*rondov1.JobSpec, error) {
	doing := "reading the spec of job " + j.Name
	volumes := deployment.Spec.Template.Spec.Volumes
	i := slices.IndexFunc(volumes, func(v corev1.Volume) bool {
		return v.Name == "spec" && v.ConfigMap != nil
	})
	if i < 0 {
		return nil, fmt.Errorf("%s: deployment %s has no ConfigMap volume \"spec\": rondo "+
			"submit did not make it", doing, deployment.Name)
	}
	name := volumes[i].ConfigMap.Name
	stored, err := j.cluster.Client.CoreV1().ConfigMaps(j.Workers.Namespace).Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return nil, Explain(err, doing)
	}
	return jobspec.FromYAML("configmap "+stored.Name, []byte(stored.Data["job.yaml"]))
}

// setWorkers sets completions and parallelism together, as an Indexed Job requires.
func (s *scaling) setWorkers(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"spec": {"completions": %d, "parallelism": %[1]d}}`,
		s.how.Workers)
	_, err := s.cluster.Client.BatchV1().Jobs(s.Workers.Namespace).Patch(ctx, s.Workers.Name,
		types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	return Explain(err, "setting the number of workers of job "+s.Name)
}

// setBudget sets how many workers a drain must leave. It owns that field under submit's name, so
// that submit finds no conflict later.
func (s *scaling) setBudget(ctx context.Context, spec *rondov1.JobSpec) error {
	budgets := s.cluster.Client.PolicyV1().PodDisruptionBudgets(s.Workers.Namespace)
	budget, err := budgets.Get(ctx, s.Name+"-"+Worker, metav1.GetOptions{})
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
	owned.Spec.WithMinAvailable(leastAvailable(spec, s.how.Workers))
	_, err = budgets.Apply(ctx, owned, metav1.ApplyOptions{FieldManager: manager, Force: true})
	return Explain(err, "setting the workers' disruption budget")
}

// awaitRing waits until the ring has the wanted number of workers.
func (s *scaling) awaitRing(ctx context.Context) error {
	ring, suspended := -1, false
	late, cancel := context.WithTimeout(ctx, s.how.Timeout)
	defer cancel()
	err := s.follow(late, func(now *Job) (bool, error) {
		switch {
		case now.Ended():
			return false, fmt.Errorf("job %s has ended: %s", s.Name, now.Reason())
		case now.Suspended() && !suspended:
			suspended = true
			s.how.Say("it is suspended: " + now.waitingFor())
		case now.Suspended():
		case now.Wanted() != s.how.Workers && now.Wanted() != s.Wanted():
			return false, fmt.Errorf("somebody else has set the workers of job %s to %d meanwhile",
				s.Name, now.Wanted())
		case now.Ring() != ring:
			ring, suspended = now.Ring(), false
			s.how.Say(InRing(ring, s.how.Workers))
		}
		return ring == s.how.Workers && !suspended, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("after %v the ring of job %s has %d of %d workers%s", s.how.Timeout,
			s.Name, ring, s.how.Workers, s.cluster.why(s.Name))
	}
	return err
}

// InRing describes the ring's present and wanted size. The ring is larger than wanted while it
// shrinks.
func InRing(ring, wanted int) string {
	if ring > wanted {
		return fmt.Sprintf("%d workers in the ring, %d wanted", ring, wanted)
	}
	return fmt.Sprintf("%d of %d workers in the ring", ring, wanted)
}

// waitingFor returns what a suspended job waits for.
func (j *Job) waitingFor() string {
	if queue := j.Queue(); queue != "" {
		return "Kueue admits it when queue " + queue + " has room for it"
	}
	return j.cluster.command("resume", j.Name) + " resumes it"
}
