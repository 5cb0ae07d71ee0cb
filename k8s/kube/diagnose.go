package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// A Problem is what keeps a job from going on, and what to do about it.
type Problem struct {
	Object string `json:"object"`           // kind/name
	Text   string `json:"text"`             // one line
	Remedy string `json:"remedy,omitempty"` // empty: none is known
	Fatal  bool   `json:"fatal"`            // waiting does not help
}

func (p Problem) String() string { return join(p.Object+": "+p.Text, p.Remedy) }

// Limits of what is looked at.
const (
	eventsAtOnce = 500
	maxEvents    = 20 * eventsAtOnce
	eventsFrom   = 15 * time.Minute // older events speak of what was
	listEvery    = 5 * time.Second  // of claims and events
)

// Diagnose says what is wrong with a job, from what the cluster says of its objects and of the
// etcd that it uses; the gravest first, each once. An empty list means that nothing is known to be
// wrong.
func (c *Cluster) Diagnose(ctx context.Context, job string) ([]Problem, error) {
	s, err := c.scene(ctx, job, nil)
	if err != nil {
		return nil, err
	}
	return s.problems(time.Now()), nil
}

// The etcd that the jobs of a namespace share.
const (
	etcdName     = "rondo-etcd"
	etcdSelector = "app.kubernetes.io/name=rondo,app.kubernetes.io/component=etcd"
)

// usesOwnEtcd says whether a job's pods are told of the namespace's etcd.
func usesOwnEtcd(coordinator *appsv1.Deployment) bool {
	for _, container := range coordinator.Spec.Template.Spec.Containers {
		for _, env := range container.Env {
			if env.Name == "ETCD" {
				return strings.HasPrefix(env.Value, etcdName+"-")
			}
		}
	}
	return true
}

// problems judges the scene. It is pure.
func (s *scene) problems(now time.Time) []Problem {
	if s.leaving {
		return []Problem{{Object: "job/" + s.job, Fatal: true, Text: "its namespace is being " +
			"deleted, which a Job with a pod that has failed holds up for ever",
			Remedy: s.command("delete")}}
	}
	all := s.ofJob()
	if len(all) > 0 {
		return all // what its pods say now is why, or comes of it
	}
	if s.workers != nil && (&Job{Workers: s.workers}).Ended() {
		return nil // whatever is still there, or is not, keeps nobody waiting
	}
	for i := range s.pods {
		if s.counts(&s.pods[i]) {
			all = append(all, s.ofPod(&s.pods[i])...)
		}
	}
	all = append(all, s.ofNodes()...)
	all = append(all, s.ofClaims()...)
	all = append(all, s.ofCreation(now)...)
	all = append(all, s.ofMounts(now)...)
	if s.quorum() {
		for i := range all { // a member that is missing holds nobody up
			_, name, _ := strings.Cut(all[i].Object, "/")
			all[i].Fatal = all[i].Fatal && !strings.HasPrefix(strings.TrimPrefix(name, "data-"),
				etcdName+"-")
		}
	} else if len(all) == 0 {
		all = s.ofQuorum(now)
	}
	all = append(all, s.ofCoordinators(now, len(all) == 0)...)
	if len(s.unseen) > 0 {
		all = append(all, Problem{Object: "namespace/" + s.cluster.Namespace,
			Text: "you may not read its " + strings.Join(s.unseen, " and ") + ", which can say " +
				"what is wrong", Remedy: "ask an administrator for the right to list them"})
	}
	return gathered(all)
}

// command is a command line about the job.
func (s *scene) command(verb string) string { return s.cluster.command(verb, s.job) }

// gathered names each problem once, whatever the number of objects that have it; the fatal first.
func gathered(all []Problem) []Problem {
	var kept []Problem
	have := map[string]map[string]bool{} // text: objects
	for _, p := range all {
		if have[p.Text] == nil {
			have[p.Text] = map[string]bool{}
			kept = append(kept, p)
		}
		have[p.Text][p.Object] = true
	}
	for i := range kept {
		if n := len(have[kept[i].Text]); n > 1 {
			kept[i].Object = fmt.Sprintf("%s and %d more", kept[i].Object, n-1)
		}
	}
	return slices.Concat(
		slices.DeleteFunc(slices.Clone(kept), func(p Problem) bool { return !p.Fatal }),
		slices.DeleteFunc(kept, func(p Problem) bool { return p.Fatal }))
}

// ofJob says why a Job has failed: in the words of the process that ended it, if they are known.
func (s *scene) ofJob() []Problem {
	if s.workers == nil {
		return nil
	}
	for _, condition := range s.workers.Status.Conditions {
		if condition.Type != batchv1.JobFailed || condition.Status != corev1.ConditionTrue {
			continue
		}
		for i := range s.pods {
			pod := &s.pods[i]
			end := terminated(pod)
			if end != nil && end.ExitCode == 3 &&
				strings.Contains(condition.Message, pod.Name) {
				return []Problem{{Object: "job/" + s.workers.Name, Text: "failed: " + said(end),
					Remedy: s.again(), Fatal: true}}
			}
		}
		return []Problem{{Object: "job/" + s.workers.Name, Fatal: true,
			Text:   fmt.Sprintf("failed: %s (%s)", condition.Message, condition.Reason),
			Remedy: "see " + s.command("logs")}}
	}
	return nil
}

// again says how a job that has ended badly is run again.
func (s *scene) again() string {
	return "correct what it names and submit again, or " + s.command("resume") +
		" goes on from the newest checkpoint"
}

// counts says whether what a pod says is of now: it is of the newest run, and no other has taken
// its place.
func (s *scene) counts(pod *corev1.Pod) bool {
	run := pod.Annotations[annotationRun]
	if s.coordinator != nil && run != "" &&
		run != s.coordinator.Spec.Template.Annotations[annotationRun] {
		return false
	}
	return !s.replaced(pod)
}

// replaced says whether another pod has taken over the index of a worker's pod that has ended.
func (s *scene) replaced(pod *corev1.Pod) bool {
	index := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
	if index == "" || pod.Status.Phase != corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(s.pods, func(other corev1.Pod) bool {
		return other.Annotations[batchv1.JobCompletionIndexAnnotation] == index &&
			other.Name != pod.Name && !other.CreationTimestamp.Before(&pod.CreationTimestamp)
	})
}

// ofPod says what is wrong with a pod.
func (s *scene) ofPod(pod *corev1.Pod) []Problem {
	name := "pod/" + pod.Name
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse &&
			condition.Reason == corev1.PodReasonUnschedulable {
			p := unschedulable(condition.Message)
			p.Object = name
			return []Problem{p}
		}
	}
	if pod.Status.Phase == corev1.PodFailed && len(pod.Status.ContainerStatuses) == 0 {
		return []Problem{{Object: name, Text: strings.TrimSpace(pod.Status.Reason + ": " +
			pod.Status.Message)}}
	}
	var problems []Problem
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		if p := s.ofContainer(status); p != nil {
			p.Object = name
			p.Fatal = p.Fatal || s.hopeless(pod)
			problems = append(problems, *p)
		}
	}
	return problems
}

// hopelessAfter is how often a worker may fail before the first step until waiting is of no use.
const hopelessAfter = 3

// hopeless says whether a worker has failed again and again, and no step was ever done.
func (s *scene) hopeless(pod *corev1.Pod) bool {
	index := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
	if index == "" || s.workers == nil || s.workers.Annotations[annotations+"step"] != "" {
		return false
	}
	failures := 0
	for i := range s.pods {
		other := &s.pods[i]
		end := terminated(other)
		if other.Annotations[batchv1.JobCompletionIndexAnnotation] == index &&
			other.Annotations[annotationRun] == pod.Annotations[annotationRun] &&
			end != nil && end.ExitCode != 0 && end.ExitCode != 4 {
			failures++
		}
	}
	return failures >= hopelessAfter
}

// ofClaims says which volumes that pods wait for do not come.
func (s *scene) ofClaims() []Problem {
	wanted := map[string]bool{}
	for i := range s.pods {
		for _, v := range s.pods[i].Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				wanted[v.PersistentVolumeClaim.ClaimName] = true
			}
		}
	}
	var problems []Problem
	for i := range s.claims {
		claim := &s.claims[i]
		if !wanted[claim.Name] || claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		if claim.Status.Phase == corev1.ClaimLost {
			problems = append(problems, Problem{Object: "persistentvolumeclaim/" + claim.Name,
				Text: "its volume is lost", Remedy: "delete the claim and make a new one",
				Fatal: true})
			continue
		}
		event := s.last("PersistentVolumeClaim", claim.Name, "FailedBinding", "ProvisioningFailed")
		if event == nil {
			continue
		}
		p := unbound(event.Message, strings.HasPrefix(claim.Name, "data-"+etcdName+"-"))
		p.Object = "persistentvolumeclaim/" + claim.Name
		problems = append(problems, p)
	}
	return problems
}

// ofCreation says why pods that are wanted are not made.
func (s *scene) ofCreation(now time.Time) []Problem {
	var problems []Problem
	add := func(object, message string) {
		_, after, _ := strings.Cut(message, "Error creating: ")
		if after == "" {
			after = message
		}
		what, remedy := refusal(after)
		problems = append(problems, Problem{Object: object, Text: "its pods are refused: " + what,
			Remedy: remedy, Fatal: !strings.Contains(message, "exceeded quota")})
	}
	if j := s.workers; j != nil && !pointed(j.Spec.Suspend) && ended(j) == "" &&
		j.Status.Active < pointed(j.Spec.Parallelism) {
		if e := s.lastSince(now, "Job", j.Name, "FailedCreate"); e != nil {
			add("job/"+j.Name, e.Message)
		}
	}
	if d := s.coordinator; d != nil {
		for _, condition := range d.Status.Conditions {
			if condition.Type == appsv1.DeploymentReplicaFailure &&
				condition.Status == corev1.ConditionTrue {
				add("deployment/"+d.Name, condition.Message)
			}
		}
	}
	if e := s.etcd; e != nil && e.Status.Replicas < pointed(e.Spec.Replicas) {
		if event := s.lastSince(now, "StatefulSet", e.Name, "FailedCreate"); event != nil {
			add("statefulset/"+e.Name, event.Message)
		}
	}
	return problems
}

// ofMounts says why pods that have a node do not start.
func (s *scene) ofMounts(now time.Time) []Problem {
	var problems []Problem
	for i := range s.pods {
		pod := &s.pods[i]
		if pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName == "" || !s.counts(pod) {
			continue
		}
		event := s.lastSince(now, "Pod", pod.Name, "FailedMount", "FailedAttachVolume",
			"FailedCreatePodSandBox")
		if event == nil || strings.Contains(event.Message, "cache: timed out waiting") {
			continue // the node has only not heard of what it mounts; it asks again
		}
		p := notStarted(event.Message)
		p.Object = "pod/" + pod.Name
		problems = append(problems, p)
	}
	return problems
}

// quorumGrace is how long etcd may take to start before its silence is a problem.
const quorumGrace = time.Minute

// quorum says whether the namespace's etcd has the members that it needs.
func (s *scene) quorum() bool {
	return s.etcd != nil && s.etcd.Status.ReadyReplicas > pointed(s.etcd.Spec.Replicas)/2
}

// ofQuorum says that etcd has too few members, if nothing says why.
func (s *scene) ofQuorum(now time.Time) []Problem {
	e := s.etcd
	if e == nil || now.Sub(e.CreationTimestamp.Time) < quorumGrace {
		return nil
	}
	members := pointed(e.Spec.Replicas)
	return []Problem{{Object: "statefulset/" + e.Name, Text: fmt.Sprintf("%d of %d members are "+
		"ready, and %d are needed: nothing is decided meanwhile", e.Status.ReadyReplicas, members,
		members/2+1), Remedy: "see kubectl logs " + etcdName + "-0"}}
}

// leaderGrace is how long coordinators may be not ready before that is a problem.
const leaderGrace = 30 * time.Second

// ofCoordinators says that nobody can lead the job. Pods that are not ready are named only if
// nothing else explains them.
func (s *scene) ofCoordinators(now time.Time, unexplained bool) []Problem {
	d := s.coordinator
	if s.workers == nil || s.workers.DeletionTimestamp != nil ||
		d == nil && slices.Contains(s.unseen, "deployments") {
		return nil
	}
	name := s.job + "-" + Coordinator
	p := Problem{Object: "deployment/" + name}
	switch {
	case d == nil:
		p.Text, p.Fatal = "it is gone, so nobody leads the job", true
		p.Remedy = s.cluster.command("delete", s.job, "--force") + ", and submit the job again: " +
			"it goes on from the newest checkpoint in its --checkpoint-dir"
	case d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		p.Text, p.Fatal = "it has no replicas, so nobody leads the job", true
		p.Remedy = fmt.Sprintf("kubectl -n %s scale deployment %s --replicas 2",
			s.cluster.Namespace, name)
	case unexplained && unavailable(d, now) > leaderGrace:
		p.Text = "none of its pods is ready, so nobody leads the job"
		p.Remedy = "see " + s.command("logs") + " --component " + Coordinator
	default:
		return nil
	}
	return []Problem{p}
}

// unavailable is how long a Deployment has had no pod that is ready; 0: it has one.
func unavailable(d *appsv1.Deployment, now time.Time) time.Duration {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentAvailable && d.Status.ReadyReplicas == 0 &&
			condition.Status == corev1.ConditionFalse {
			return now.Sub(condition.LastTransitionTime.Time)
		}
	}
	return 0
}

// ofNodes names the nodes of the job's pods that do not answer.
func (s *scene) ofNodes() []Problem {
	pods := map[string]int{}
	for i := range s.pods {
		if lost(&s.pods[i]) {
			pods[s.pods[i].Spec.NodeName]++
		}
	}
	var problems []Problem
	for _, node := range slices.Sorted(maps.Keys(pods)) {
		problems = append(problems, Problem{Object: "node/" + node,
			Text: fmt.Sprintf("it does not answer, and has %s of the job",
				count(pods[node], "pod")),
			Remedy: "the job goes on without them; if the node is gone for good, kubectl delete " +
				"node " + node + " has them replaced"})
	}
	return problems
}

// lost says whether a pod's node does not answer: the control plane says that the pod is not ready,
// while its containers are by what the node has said last.
func lost(pod *corev1.Pod) bool {
	unready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && c.Reason == ""
	})
	return unready && pod.Status.Phase == corev1.PodRunning &&
		len(pod.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return !c.Ready
		})
}

// last is the newest event of an object with one of these reasons.
func (s *scene) last(kind, name string, reasons ...string) *corev1.Event {
	var newest *corev1.Event
	for i := range s.events {
		e := &s.events[i]
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name &&
			slices.Contains(reasons, e.Reason) &&
			(newest == nil || when(newest).Before(when(e))) {
			newest = e
		}
	}
	return newest
}

// lastSince is last, if it is not too old to speak of now.
func (s *scene) lastSince(now time.Time, kind, name string, reasons ...string) *corev1.Event {
	if e := s.last(kind, name, reasons...); e != nil && now.Sub(when(e)) < eventsFrom {
		return e
	}
	return nil
}

// when is an event's newest time; which field has it depends on who reported it.
func when(e *corev1.Event) time.Time {
	newest := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.FirstTimestamp.Time, e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(newest) {
			newest = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(newest) {
		newest = e.Series.LastObservedTime.Time
	}
	return newest
}

// pointed is what a pointer points to; the zero value if it is nil.
func pointed[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
