package kube

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Run holds the options of a submission's run.
type Run struct {
	CreateNamespace bool
	ServerDryRun    bool
	Wait            bool          // until the first step
	Timeout         time.Duration // of the wait
}

// Print writes the manifests of a submission. It asks no cluster.
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

// submitter submits jobs, or resumes them, for one command.
type submitter struct {
	*Cluster
	how        Run
	out, notes io.Writer
}

func (s *submitter) say(line string) { fmt.Fprintln(s.out, line) }

// Submit applies a submission, and with how.Wait reports its progress until the first step.
func (c *Cluster) Submit(
	ctx context.Context, submission *Submission, how Run, out, notes io.Writer,
) error {
	return (&submitter{c, how, out, notes}).submit(ctx, submission)
}

func (s *submitter) submit(ctx context.Context, submission *Submission) error {
	if err := s.number(ctx, submission); err != nil {
		return err
	}
	m, err := Render(ctx, submission, s.Namespace)
	if err != nil {
		return err
	}
	if err := note(s.notes, m); err != nil {
		return err
	}
	err = refuseOwned(ctx, s.Cluster, m.Spec.Job, "edit rondojob/"+m.Spec.Job)
	if err != nil {
		return err
	}
	if err := s.apply(ctx, m); err != nil || s.how.ServerDryRun {
		return err
	}
	job := m.Spec.Job
	s.say(fmt.Sprintf("job %s is submitted to namespace %s", job, s.Namespace))
	if err := s.follow(ctx, job, submission.Run); err != nil {
		return err
	}
	s.say("next: " + s.command("status", job) + "\n" +
		"      " + s.command("logs", job) + "\n" +
		"      " + s.pageCommand(job) + " # the page: http://localhost:8080")
	return nil
}

// follow reports a run's progress until its first step, if the command waits for that.
func (s *submitter) follow(ctx context.Context, job string, run int64) error {
	if !s.how.Wait {
		return nil
	}
	return s.Follow(ctx, job, run, s.how.Timeout, s.say)
}

// number sets a submission's run number. It is above all earlier ones, whatever the clocks of the
// machines that submit.
func (s *submitter) number(ctx context.Context, submission *Submission) error {
	submission.Run = time.Now().UnixNano()
	spec, err := submission.job()
	if err != nil {
		return err
	}
	last, err := lastSubmission(ctx, s.Cluster, spec.Job)
	if err == nil && last != nil {
		submission.Run = max(submission.Run, last.Run+1)
	}
	return err
}

// lastSubmission returns the newest submission that is kept with a job's spec, or nil.
func lastSubmission(ctx context.Context, c *Cluster, job string) (*Submission, error) {
	specs, err := c.Client.CoreV1().ConfigMaps(c.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labelJob + "=" + job})
	if err != nil {
		return nil, Explain(err, "looking for the submission of job "+job)
	}
	var last *Submission
	for i := range specs.Items {
		one, err := keptIn(&specs.Items[i])
		if err != nil {
			return nil, err
		}
		if one != nil && (last == nil || one.Run > last.Run) {
			last = one
		}
	}
	return last, nil
}

// Resume runs a job again from its newest checkpoint, with the options of its submission and the
// changes that flags ask for. A suspended job is unsuspended instead. The workers may be gone; the
// kept submission is enough.
func (c *Cluster) Resume(
	ctx context.Context, job string, flags *SubmissionFlags, how Run, out, notes io.Writer,
) error {
	return (&submitter{c, how, out, notes}).resume(ctx, job, flags)
}

func (s *submitter) resume(ctx context.Context, job string, flags *SubmissionFlags) error {
	o, err := s.objects(false)
	if err != nil {
		return err
	}
	old, err := o.findWorkers(ctx, job)
	if err != nil {
		return err
	}
	stored, err := lastSubmission(ctx, s.Cluster, job)
	switch {
	case err != nil:
		return err
	case old == nil && stored == nil:
		return fmt.Errorf("there is no job %s in namespace %s to resume: %s begins one; with the "+
			"same --checkpoint-dir it goes on from the newest checkpoint", job, s.Namespace,
			s.command("submit", job))
	case stored == nil:
		return app.Usagef("%s was not made by rondo submit: submit it anew", nameOf(old.object))
	case old != nil && !old.job.Ended():
		return s.unsuspend(ctx, old, stored, flags)
	}
	submission, err := flags.Submission(stored)
	if err != nil {
		return err
	}
	if !flags.set.Changed("resume") {
		submission.Spec["resume"] = "auto" // the run before may have been told to begin anew
	}
	spec, err := submission.job()
	if err != nil {
		return err
	}
	var before *Job // nil: nothing is known of how it ended
	if old != nil {
		before = old.job
	} else if ended, err := endedJobs(ctx, s.Cluster, s.Namespace, job); err != nil {
		return err
	} else if len(ended) > 0 {
		before = ended[0]
	}
	if err := s.resumable(before, spec, flags); err != nil {
		return err
	}
	return s.submit(ctx, submission)
}

// resumable fails if the run would find no checkpoint or nothing to do. The job of the run before
// may be nil.
func (s *submitter) resumable(before *Job, spec *rondov1.JobSpec, flags *SubmissionFlags) error {
	if !jobspec.KeepsModel(spec) {
		return app.Usagef("job %s has no --checkpoint-dir, so there is nothing to go on from: "+
			"%s begins anew", spec.Job, s.command("submit", spec.Job))
	}
	if before == nil {
		return nil
	}
	p := before.Progress()
	if p.Step > 0 && p.Step == p.TotalSteps && !flags.set.Changed("steps") &&
		!flags.set.Changed("epochs") {
		return app.Usagef("job %s has done all its %d steps: give --steps or --epochs to go on",
			spec.Job, p.TotalSteps)
	}
	var waited int64
	early, _ := fmt.Sscanf(p.Reason, telemetry.EarlyStopped, &waited)
	if early == 1 && spec.EarlyStop > 0 && spec.EarlyStop <= waited &&
		!flags.set.Changed("eval-corpus") {
		return app.Usagef("job %s was ended by --early-stop %d: give --early-stop 0 or more than "+
			"%d to go on", spec.Job, spec.EarlyStop, waited)
	}
	return nil
}

// unsuspend starts suspended workers.
func (s *submitter) unsuspend(
	ctx context.Context, old *workers, stored *Submission, flags *SubmissionFlags,
) error {
	labels := old.object.GetLabels()
	job, queue := labels[labelJob], labels[labelQueue]
	suspended, _, _ := unstructured.NestedBool(old.object.Object, "spec", "suspend")
	err := refuseOwned(ctx, s.Cluster, job,
		"patch rondojob/"+job+` --type merge -p '{"spec":{"suspend":false}}'`)
	switch {
	case err != nil:
		return err
	case !suspended:
		return fmt.Errorf("job %s is running: see %s", job, s.command("status", job))
	case queue != "":
		return fmt.Errorf("job %s waits for Kueue to admit it to queue %s: only Kueue starts it "+
			"(kubectl get workloads)", job, queue)
	}
	if changed := flags.changed(); len(changed) > 0 {
		return app.Usagef("job %s is suspended and goes on as it was: leave out %s, or %s "+
			"first", job, strings.Join(changed, ", "), s.command("stop", job))
	}
	_, err = old.from.Patch(ctx, old.object.GetName(), types.MergePatchType,
		[]byte(`{"spec": {"suspend": false}}`), metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		return Explain(err, "resuming "+nameOf(old.object))
	}
	s.say("job " + job + " goes on")
	return s.follow(ctx, job, stored.Run)
}

// changed lists the submission's flags that were given, except the job's name.
func (f *SubmissionFlags) changed() []string {
	var names []string
	f.set.Visit(func(flag *pflag.Flag) {
		if flag.Name != "job" && f.owns(flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}
