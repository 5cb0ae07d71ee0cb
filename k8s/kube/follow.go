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

	seen     *scene               // the last one
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
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTooLong)
	defer cancel()
	for {
		done, err := f.look(ctx)
		if done || err != nil && ctx.Err() == nil {
			return err
		}
		if err := wait(ctx, pollEvery); errors.Is(err, errTooLong) {
			return fmt.Errorf("job %s has made no step in %v: %s; it goes on by itself: %s", job,
				timeout, f.last, c.command("status", job))
		} else if err != nil {
			return fmt.Errorf("interrupted; job %s goes on by itself", job)
		}
	}
}

var errTooLong = errors.New("it took too long")

// look reads the scene once.
func (f *follower) look(ctx context.Context) (done bool, err error) {
	s, err := f.cluster.scene(ctx, f.job, f.seen)
	if err != nil {
		return false, err
	}
	f.seen = s
	if s.workers == nil && s.coordinator == nil {
		return false, fmt.Errorf("job %s was deleted", f.job)
	}
	f.report(s.standing(f.run))
	if w := s.workers; w != nil && w.Annotations[annotationRun] == f.run {
		step, phase := w.Annotations[annotations+"step"], w.Annotations[annotations+"phase"]
		switch {
		case ended(w) == string(batchv1.JobComplete):
			f.report("the job has ended: all steps are done")
			return true, nil
		case step != "" && phase == "running":
			f.report("the first step is done (step " + step + ")")
			return true, nil
		}
	}
	return false, f.judge(s.problems(time.Now()))
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
	coordinators, up := 0, 0
	made, placed, running := 0, 0, 0
	for i := range s.pods {
		pod := &s.pods[i]
		if pod.Annotations[annotationRun] != run || pod.DeletionTimestamp != nil {
			continue
		}
		switch pod.Labels["app.kubernetes.io/component"] {
		case "coordinator":
			coordinators++
			if ready(pod) {
				up++
			}
		case "worker":
			made++
			if pod.Spec.NodeName != "" {
				placed++
			}
			if pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
	}
	if s.coordinator != nil {
		parts = append(parts, fmt.Sprintf("coordinators %d/%d", up,
			pointed(s.coordinator.Spec.Replicas)))
	}
	if w := s.workers; w != nil {
		wanted := int(pointed(w.Spec.Parallelism))
		switch {
		case pointed(w.Spec.Suspend):
			parts = append(parts, suspendedBy(w))
		case running == wanted:
			joined := w.Annotations[annotations+"world-size"]
			if joined == "" {
				joined = "0"
			}
			parts = append(parts, fmt.Sprintf("workers %d/%d run, %s joined", running, wanted,
				joined))
		default:
			parts = append(parts, fmt.Sprintf("workers %d/%d run (%d made, %d on a node)", running,
				wanted, made, placed))
		}
	}
	return strings.Join(parts, ", ")
}

// suspendedBy returns why workers are suspended.
func suspendedBy(w *batchv1.Job) string {
	if queue := w.Labels[labelQueue]; queue != "" {
		return "workers wait for queue " + queue + " to admit them"
	}
	return "workers are suspended (rondo resume)"
}
