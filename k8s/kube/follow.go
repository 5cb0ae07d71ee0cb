package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"rondo/telemetry"
)

// fatalFor is how long a fatal problem must last before it ends the wait: an object that is still
// being created looks like a missing one.
const fatalFor = 4 * time.Second

// A follower watches a run from its submission to its first step.
type follower struct {
	cluster *Cluster
	job     string
	run     string
	start   time.Time
	say     func(string)

	standing string               // last printed
	last     string               // the first problem, or else standing
	told     map[string]bool      // printed problems
	since    map[string]time.Time // when fatal problems were first seen
}

// Follow reports a run's progress until its first step or the job's end. It fails at the first
// problem that waiting does not cure.
func (c *Cluster) Follow(
	ctx context.Context, job string, run int64, timeout time.Duration, say func(string),
) error {
	f := &follower{cluster: c, job: job, run: strconv.FormatInt(run, 10), start: time.Now(),
		say: say, told: map[string]bool{}, since: map[string]time.Time{}}
	late, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.Watch(late, f.look, func(err error) { f.report(err.Error()) })
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; job %s goes on by itself", job)
	case late.Err() != nil:
		return fmt.Errorf("job %s has made no step in %v: %s; it goes on by itself: %s", job,
			timeout, f.last, c.command("status", job))
	}
	return err
}

// look reads the scene once.
func (f *follower) look(ctx context.Context) (done bool, err error) {
	s, err := f.cluster.scene(ctx, f.job)
	if err != nil {
		return false, err
	}
	if s.workers == nil && s.coordinator == nil {
		return true, fmt.Errorf("job %s was deleted", f.job)
	}
	f.report(s.standing(f.run))
	if w := s.workers; w != nil && w.Annotations[annotationRun] == f.run {
		job := Job{Workers: w}
		p := job.Progress()
		switch {
		case job.condition(batchv1.JobComplete) != nil, w.Annotations[annotationEnded] == f.run:
			f.report("the job has ended: all steps are done")
			return true, nil
		case p.Step > 0 && p.Phase == telemetry.PhaseRunning:
			f.report(fmt.Sprintf("the first step is done (step %d)", p.Step))
			return true, nil
		}
	}
	err = f.judge(s.problems(time.Now()))
	return err != nil, err
}

// report prints a new line, with the time since the submission.
func (f *follower) report(line string) {
	if line != f.standing {
		f.standing = line
		f.say(fmt.Sprintf("%6.1f s  %s", time.Since(f.start).Seconds(), line))
	}
}

// judge prints new problems, and returns an error for a fatal one that lasts.
func (f *follower) judge(problems []Problem) error {
	seen := map[string]time.Time{}
	f.last = f.standing
	if len(problems) > 0 {
		f.last = problems[0].String()
	}
	for _, p := range problems {
		if !f.told[p.Text] {
			f.told[p.Text] = true
			if !p.Fatal {
				f.say(fmt.Sprintf("%6.1f s  %v", time.Since(f.start).Seconds(), p))
			}
		}
		if !p.Fatal {
			continue
		}
		first, before := f.since[p.Text]
		if !before {
			first = time.Now()
		}
		seen[p.Text] = first
		if time.Since(first) >= fatalFor {
			return errors.New(p.String())
		}
	}
	f.since = seen
	return nil
}

// standing returns the state of a run's pods in one line.
func (s *scene) standing(run string) string {
	var parts []string
	if s.etcd != nil {
		parts = append(parts, fmt.Sprintf("etcd %d/%d", s.etcd.Status.ReadyReplicas,
			pointed(s.etcd.Spec.Replicas)))
	}
	coordinators, made, placed, running := 0, 0, 0, 0
	for i := range s.pods {
		pod := &s.pods[i]
		switch {
		case pod.Annotations[annotationRun] != run || pod.DeletionTimestamp != nil:
		case pod.Labels[labelComponent] == Worker:
			made++
			if pod.Spec.NodeName != "" {
				placed++
			}
			if pod.Status.Phase == corev1.PodRunning {
				running++
			}
		case ready(pod):
			coordinators++
		}
	}
	if s.coordinator != nil {
		parts = append(parts, fmt.Sprintf("coordinators %d/%d", coordinators,
			pointed(s.coordinator.Spec.Replicas)))
	}
	if s.workers != nil {
		job := s.cluster.jobOf(s.workers)
		switch {
		case job.Suspended():
			parts = append(parts, "workers are suspended: "+job.waitingFor())
		case running == job.Wanted():
			parts = append(parts, fmt.Sprintf("workers %d/%d run, %d joined", running,
				job.Wanted(), job.Progress().WorldSize))
		default:
			parts = append(parts, fmt.Sprintf("workers %d/%d run (%d made, %d on a node)", running,
				job.Wanted(), made, placed))
		}
	}
	return strings.Join(parts, ", ")
}
