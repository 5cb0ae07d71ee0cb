package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Run says how a submission is run.
type Run struct {
	CreateNamespace bool
	ServerDryRun    bool
	Wait            bool          // until the first step
	Timeout         time.Duration // of the wait
}

// Print writes the manifests of a submission, and asks no cluster.
func Print(ctx context.Context, s *Submission, namespace string, out, notes io.Writer) error {
	m, err := Render(ctx, s, namespace)
	if err != nil {
		return err
	}
	text, err := m.YAML()
	if err != nil {
		return err
	}
	if err := note(notes, m); err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

func note(out io.Writer, m *Manifests) error {
	for _, text := range m.Notes {
		if _, err := fmt.Fprintln(out, "note: "+text); err != nil {
			return err
		}
	}
	return nil
}

// Submit applies a submission and says what becomes of it, until its first step if that is wanted.
func (c *Cluster) Submit(
	ctx context.Context, s *Submission, how Run, out, notes io.Writer,
) error {
	if err := c.number(ctx, s); err != nil {
		return err
	}
	m, err := Render(ctx, s, c.Namespace)
	if err != nil {
		return err
	}
	if err := note(notes, m); err != nil {
		return err
	}
	say := func(line string) { fmt.Fprintln(out, line) }
	err = c.Apply(ctx, m, Apply{CreateNamespace: how.CreateNamespace, DryRun: how.ServerDryRun,
		Say: say})
	if err != nil || how.ServerDryRun {
		return err
	}
	job := m.Spec.Job
	say(fmt.Sprintf("job %s is submitted to namespace %s", job, c.Namespace))
	if how.Wait {
		if err := c.Follow(ctx, job, s.Run, how.Timeout, say); err != nil {
			return err
		}
	}
	say("next: " + c.command("status", job) + "\n" +
		"      " + c.command("logs", job) + "\n" +
		"      " + c.pageCommand(job) + " # the page: http://localhost:8080")
	return nil
}

// number gives a submission its run: a number above those before it, whatever the clocks of the
// people who submit.
func (c *Cluster) number(ctx context.Context, s *Submission) error {
	s.Run = time.Now().UnixNano()
	spec, err := s.job()
	if err != nil {
		return err
	}
	last, err := c.lastSubmission(ctx, spec.Job)
	if err != nil {
		return err
	}
	if last != nil {
		s.Run = max(s.Run, last.Run+1)
	}
	return nil
}

// findWorkers finds the Job or JobSet of a job; nil if there is none. A JobSet is told of its run's
// progress by the annotations of its Job.
func (c *Cluster) findWorkers(
	ctx context.Context, o *objects, job string,
) (dynamic.ResourceInterface, *unstructured.Unstructured, error) {
	for _, kind := range workersKinds(c.Namespace, job+"-worker") {
		resources, err := o.of(kind)
		if meta.IsNoMatchError(err) {
			continue // no JobSets here
		} else if err != nil {
			return nil, nil, Explain(err, "looking for job "+job)
		}
		found, err := resources.Get(ctx, kind.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, nil, Explain(err, "looking for job "+job)
		}
		if found.GetKind() == "JobSet" {
			return resources, found, c.progressOf(ctx, found)
		}
		return resources, found, nil
	}
	return nil, nil, nil
}

// progressOf gives a JobSet, as it is here, what its Job's annotations say of the run.
func (c *Cluster) progressOf(ctx context.Context, set *unstructured.Unstructured) error {
	name := set.GetName() + "-ring-0"
	inner, err := c.Client.BatchV1().Jobs(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return Explain(err, "looking at job/"+name)
	}
	notes := map[string]string{}
	maps.Copy(notes, inner.Annotations)
	maps.Copy(notes, set.GetAnnotations())
	set.SetAnnotations(notes)
	return nil
}

// Resume runs a job again with the options of its submission, over which flags say what changes,
// from its newest checkpoint. A job that is suspended goes on instead. One whose workers were
// removed, but not those options, is run again as well.
func (c *Cluster) Resume(
	ctx context.Context, job string, flags *SubmissionFlags, how Run, out, notes io.Writer,
) error {
	o, err := c.objects(false)
	if err != nil {
		return err
	}
	resources, workers, err := c.findWorkers(ctx, o, job)
	if err != nil {
		return err
	}
	stored, err := c.lastSubmission(ctx, job)
	if err != nil {
		return err
	}
	if workers == nil && stored == nil {
		return fmt.Errorf("there is no job %s in namespace %s to resume: %s begins one; with the "+
			"same --checkpoint-dir it goes on from the newest checkpoint", job, c.Namespace,
			c.command("submit", job))
	}
	if stored == nil {
		if stored, err = submissionOf(workers); err != nil {
			return err
		}
	}
	if workers != nil && !endedObject(workers) {
		return c.unsuspend(ctx, resources, workers, stored, flags, how, out)
	}
	s, err := flags.Submission(stored)
	if err != nil {
		return err
	}
	if !flags.set.Changed("resume") {
		s.Spec["resume"] = "auto" // the run before may have been told to begin anew
	}
	spec, err := s.job()
	if err != nil {
		return err
	}
	if err := c.resumable(workers, spec, flags); err != nil {
		return err
	}
	return c.Submit(ctx, s, how, out, notes)
}

// resumable refuses a run that would find nothing to go on from, or nothing to do. The workers of
// the run before may be gone (nil).
func (c *Cluster) resumable(
	workers *unstructured.Unstructured, spec *rondov1.JobSpec, flags *SubmissionFlags,
) error {
	if !jobspec.KeepsModel(spec) {
		return app.Usagef("job %s has no --checkpoint-dir, so there is nothing to go on from: "+
			"%s begins anew", spec.Job, c.command("submit", spec.Job))
	}
	if workers == nil {
		return nil
	}
	notes := workers.GetAnnotations()
	step, total := notes[annotations+"step"], notes[annotations+"total-steps"]
	if step != "" && step == total && !flags.set.Changed("steps") && !flags.set.Changed("epochs") {
		return app.Usagef("job %s has done all its %s steps: give --steps or --epochs to go on",
			spec.Job, total)
	}
	var waited int64
	early, _ := fmt.Sscanf(notes[annotations+"reason"], telemetry.EarlyStopped, &waited)
	if early == 1 && spec.EarlyStop > 0 && spec.EarlyStop <= waited &&
		!flags.set.Changed("eval-corpus") {
		return app.Usagef("job %s was ended by --early-stop %d: give --early-stop 0 or more than "+
			"%d to go on", spec.Job, spec.EarlyStop, waited)
	}
	return nil
}

// unsuspend lets suspended workers start again.
func (c *Cluster) unsuspend(ctx context.Context, resources dynamic.ResourceInterface,
	workers *unstructured.Unstructured, stored *Submission, flags *SubmissionFlags, how Run,
	out io.Writer,
) error {
	job := workers.GetLabels()[labelJob]
	suspended, _, _ := unstructured.NestedBool(workers.Object, "spec", "suspend")
	queue := workers.GetLabels()[labelQueue]
	switch {
	case !suspended:
		return fmt.Errorf("job %s is running: see %s", job, c.command("status", job))
	case queue != "":
		return fmt.Errorf("job %s waits for Kueue to admit it to queue %s: only Kueue starts it "+
			"(kubectl get workloads)", job, queue)
	}
	if changed := flags.changed(); len(changed) > 0 {
		return app.Usagef("job %s is suspended and goes on as it was: leave out %s, or %s "+
			"first", job, strings.Join(changed, ", "), c.command("stop", job))
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"suspend": false}})
	if err != nil {
		return err
	}
	_, err = resources.Patch(ctx, workers.GetName(), types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		return Explain(err, "resuming "+nameOf(workers))
	}
	say := func(line string) { fmt.Fprintln(out, line) }
	say("job " + job + " goes on")
	if !how.Wait {
		return nil
	}
	return c.Follow(ctx, job, stored.Run, how.Timeout, say)
}

// changed lists the flags of a submission that were given, but the job's name.
func (f *SubmissionFlags) changed() []string {
	var names []string
	f.set.Visit(func(flag *pflag.Flag) {
		if flag.Name != "job" && f.owns(flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}
