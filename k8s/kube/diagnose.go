package kube

import (
	"cmp"
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

// A Problem keeps a job from going on. Text is the object's own message; Remedy is added if one is
// known.
type Problem struct {
	Object string    `json:"object"`           // kind/name
	Text   string    `json:"text"`             // one line
	Remedy string    `json:"remedy,omitempty"` // empty: none is known
	Fatal  bool      `json:"fatal"`            // waiting does not help
	Since  time.Time `json:"since,omitzero"`   // when it was reported; zero: not known
}

func (p Problem) String() string { return join(p.Object+": "+p.Text, p.Remedy) }

// Times for which a state is normal.
const (
	eventsFrom  = 15 * time.Minute // older events do not count
	startGrace  = 10 * time.Second // for a pod to start, before its events are problems
	leaderGrace = 30 * time.Second // for coordinators to be ready
	quorumGrace = time.Minute      // for etcd to start
)

// hopelessAfter is the number of failures before the first step after which waiting does not help.
const hopelessAfter = 3

// etcdName is the StatefulSet of the etcd that the jobs of a namespace share.
const etcdName = "rondo-etcd"

// Diagnose returns the problems of a job, from the state of its objects and of its etcd: first
// those that waiting does not cure, each group in order of time. An empty list means that no
// problem is known.
func (c *Cluster) Diagnose(ctx context.Context, job string) ([]Problem, error) {
	s, err := c.scene(ctx, job)
	if err != nil {
		return nil, err
	}
	return s.problems(time.Now()), nil
}

// usesOwnEtcd reports whether pods use the namespace's own etcd.
func usesOwnEtcd(pods *corev1.PodTemplateSpec) bool {
	for _, container := range pods.Spec.Containers {
		for _, env := range container.Env {
			if env.Name == "ETCD" {
				return strings.HasPrefix(env.Value, etcdName+"-")
			}
		}
	}
	return true
}

// problems returns the scene's problems. It depends on the scene and now alone.
func (s *scene) problems(now time.Time) []Problem {
	if s.leaving {
		return []Problem{{Object: "job/" + s.job, Fatal: true, Text: "its namespace is being " +
			"deleted, which a Job with a pod that has failed holds up for ever",
			Remedy: s.command("delete")}}
	}
	if failed := s.ofJob(); len(failed) > 0 {
		return failed // its pods' problems are the cause or the consequence
	}
	if s.workers != nil && (&Job{Workers: s.workers}).Ended() {
		return nil // remaining or missing objects do not matter any more
	}
	claims := s.ofClaims(now)
	all := slices.Concat(s.ofNodes(), claims)
	for i := range s.pods {
		pod := &s.pods[i]
		if s.counts(pod) && (pod.Spec.NodeName != "" || !waits(pod, claims)) {
			all = append(all, s.ofPod(pod, now)...)
		}
	}
	all = append(all, s.ofCreation(now)...)
	if s.quorum() {
		for i := range all { // one missing member does not stop etcd
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
			Text: "you may not read its " + strings.Join(s.unseen, " and ") + ", which can show " +
				"what is wrong", Remedy: "ask an administrator for the right to list them"})
	}
	return gathered(all)
}

// command returns a command line about the job.
func (s *scene) command(verb string) string { return s.cluster.command(verb, s.job) }

// gathered merges problems with the same text into one. Fatal problems come first; each group is in
// order of time.
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
	slices.SortStableFunc(kept, func(a, b Problem) int {
		switch {
		case a.Fatal && !b.Fatal:
			return -1
		case b.Fatal && !a.Fatal:
			return 1
		}
		return a.Since.Compare(b.Since)
	})
	return kept
}

// ofJob returns why a Job has failed, in the words of the process that ended it if they are known.
func (s *scene) ofJob() []Problem {
	if s.workers == nil {
		return nil
	}
	condition := (&Job{Workers: s.workers}).condition(batchv1.JobFailed)
	if condition == nil {
		return nil
	}
	p := Problem{Object: "job/" + s.workers.Name, Fatal: true,
		Since:  condition.LastTransitionTime.Time,
		Text:   fmt.Sprintf("failed: %s (%s)", condition.Message, condition.Reason),
		Remedy: "see " + s.command("logs")}
	for i := range s.pods {
		pod := &s.pods[i]
		if end := terminated(pod); end != nil && end.ExitCode == exitJob &&
			strings.Contains(condition.Message, pod.Name) {
			p.Text, p.Remedy = "failed: "+said(end), s.again()
		}
	}
	return []Problem{p}
}

// again returns how to run the job again after a bad end.
func (s *scene) again() string {
	return "correct what it names and submit again, or " + s.command("resume") +
		" goes on from the newest checkpoint"
}

// counts reports whether a pod's state matters now: it belongs to the newest run, and no other pod
// has replaced it.
func (s *scene) counts(pod *corev1.Pod) bool {
	run := pod.Annotations[annotationRun]
	if s.coordinator != nil && run != "" &&
		run != s.coordinator.Spec.Template.Annotations[annotationRun] {
		return false
	}
	return !s.replaced(pod)
}

// replaced reports whether another pod has taken over the index of a worker's failed pod.
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

// hopeless reports whether a worker has failed hopelessAfter times and the job has not done a step.
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
			end != nil && end.ExitCode != 0 && end.ExitCode != exitLeft {
			failures++
		}
	}
	return failures >= hopelessAfter
}

// ofClaims returns the claims of the pods' volumes that are not bound, and why.
func (s *scene) ofClaims(now time.Time) []Problem {
	found := map[string]*corev1.PersistentVolumeClaim{}
	for i := range s.claims {
		found[s.claims[i].Name] = &s.claims[i]
	}
	var problems []Problem
	for _, name := range s.claimed() {
		p := Problem{Object: "persistentvolumeclaim/" + name, Fatal: true}
		switch claim := found[name]; {
		case claim == nil && slices.Contains(s.unseen, seenClaims),
			claim != nil && claim.Status.Phase == corev1.ClaimBound:
			continue
		case claim == nil && strings.HasPrefix(name, "data-"+etcdName+"-"):
			continue // its StatefulSet makes it
		case claim == nil:
			p.Text = "there is no such claim"
			p.Remedy = "make it (kubectl apply a PersistentVolumeClaim), or name another in pvc://"
		case claim.Status.Phase == corev1.ClaimLost:
			p.Text, p.Remedy = "its volume is lost", "delete the claim and make a new one"
		default:
			event := s.last(now, "PersistentVolumeClaim", name)
			if event == nil {
				continue
			}
			p = problemOf(event)
			p.Remedy = "see kubectl get storageclass, and kubectl describe persistentvolumeclaim " +
				name
			if strings.HasPrefix(name, "data-"+etcdName+"-") {
				p.Remedy = "submit again with --etcd-storage CLASS:SIZE (see kubectl get " +
					"storageclass), or --etcd-storage ephemeral"
			}
			p.Fatal = event.Reason == failedBinding
		}
		problems = append(problems, p)
	}
	return problems
}

// waits reports whether a pod without a node mounts a claim that has a problem. Then the claim is
// the reason.
func waits(pod *corev1.Pod, claims []Problem) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && slices.ContainsFunc(claims, func(p Problem) bool {
			return p.Object == "persistentvolumeclaim/"+v.PersistentVolumeClaim.ClaimName
		})
	})
}

// claimed returns the names of the claims that pods mount.
func (s *scene) claimed() []string {
	names := map[string]bool{}
	for i := range s.pods {
		for _, v := range s.pods[i].Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				names[v.PersistentVolumeClaim.ClaimName] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// ofCreation returns why wanted pods are not created.
func (s *scene) ofCreation(now time.Time) []Problem {
	var problems []Problem
	add := func(object, message string, since time.Time) {
		if _, after, found := strings.Cut(message, "Error creating: "); found {
			message = after
		}
		remedy, waiting := remedyOf(message)
		problems = append(problems, Problem{Object: object, Text: "its pods are refused: " +
			oneLine(message), Remedy: remedy, Fatal: !waiting, Since: since})
	}
	byEvent := func(kind, name string) {
		if e := s.last(now, kind, name); e != nil && e.Reason == "FailedCreate" {
			add(strings.ToLower(kind)+"/"+name, e.Message, when(e))
		}
	}
	if j := s.workers; j != nil && !pointed(j.Spec.Suspend) &&
		j.Status.Active < pointed(j.Spec.Parallelism) {
		byEvent("Job", j.Name)
	}
	if set := s.etcd; set != nil && set.Status.Replicas < pointed(set.Spec.Replicas) {
		byEvent("StatefulSet", set.Name)
	}
	if c := s.leading(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue); c != nil {
		add("deployment/"+s.coordinator.Name, c.Message, c.LastTransitionTime.Time)
	}
	return problems
}

// leading returns the condition of the coordinators' Deployment with that status, or nil.
func (s *scene) leading(
	kind appsv1.DeploymentConditionType, status corev1.ConditionStatus,
) *appsv1.DeploymentCondition {
	if s.coordinator == nil {
		return nil
	}
	for i, c := range s.coordinator.Status.Conditions {
		if c.Type == kind && c.Status == status {
			return &s.coordinator.Status.Conditions[i]
		}
	}
	return nil
}

// quorum reports whether most members of the namespace's etcd are ready.
func (s *scene) quorum() bool {
	return s.etcd != nil && s.etcd.Status.ReadyReplicas > pointed(s.etcd.Spec.Replicas)/2
}

// ofQuorum reports a missing quorum of etcd. It is called if no other problem explains it.
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

// ofCoordinators reports that no coordinator can lead the job. Pods that are not ready count only
// if no other problem explains them.
func (s *scene) ofCoordinators(now time.Time, unexplained bool) []Problem {
	d := s.coordinator
	if s.workers == nil || s.workers.DeletionTimestamp != nil ||
		d == nil && slices.Contains(s.unseen, "deployments") {
		return nil
	}
	name := s.job + "-" + Coordinator
	p := Problem{Object: "deployment/" + name}
	unready := s.leading(appsv1.DeploymentAvailable, corev1.ConditionFalse)
	switch {
	case d == nil:
		p.Text, p.Fatal = "it is gone, so nobody leads the job", true
		p.Remedy = s.cluster.command("delete", s.job, "--force") + ", and submit the job again: " +
			"it goes on from the newest checkpoint in its --checkpoint-dir"
	case d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		p.Text, p.Fatal = "it has no replicas, so nobody leads the job", true
		p.Remedy = fmt.Sprintf("kubectl -n %s scale deployment %s --replicas 2",
			s.cluster.Namespace, name)
	case unexplained && unready != nil && d.Status.ReadyReplicas == 0 &&
		now.Sub(unready.LastTransitionTime.Time) > leaderGrace:
		p.Text = "none of its pods is ready, so nobody leads the job"
		p.Remedy = "see " + s.command("logs") + " --component " + Coordinator
	default:
		return nil
	}
	return []Problem{p}
}

// ofNodes returns the nodes of the job's pods that do not answer.
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

// lost reports whether a pod's node does not answer. Then the control plane marks the pod as not
// ready, but the containers keep the ready state that the node reported last.
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

// failedBinding is the reason of a claim that no volume fits and that no storage class serves. Its
// event has the type Normal.
const failedBinding = "FailedBinding"

// last returns the newest warning about an object, or nil. Warnings older than eventsFrom do not
// count.
func (s *scene) last(now time.Time, kind, name string) *corev1.Event {
	var newest *corev1.Event
	for i := range s.events {
		e := &s.events[i]
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name &&
			(e.Type != corev1.EventTypeNormal || e.Reason == failedBinding) &&
			now.Sub(when(e)) < eventsFrom && (newest == nil || when(newest).Before(when(e))) {
			newest = e
		}
	}
	return newest
}

// problemOf returns an event as a problem.
func problemOf(e *corev1.Event) Problem {
	return Problem{Object: strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name,
		Text: e.Reason + ": " + oneLine(e.Message), Since: when(e)}
}

// when returns an event's newest time. The field that has it depends on the reporter.
func when(e *corev1.Event) time.Time {
	newest := slices.MaxFunc([]time.Time{e.CreationTimestamp.Time, e.FirstTimestamp.Time,
		e.LastTimestamp.Time, e.EventTime.Time}, time.Time.Compare)
	if e.Series != nil && e.Series.LastObservedTime.After(newest) {
		newest = e.Series.LastObservedTime.Time
	}
	return newest
}

// maxTextShown is the number of bytes of a message that are shown.
const maxTextShown = 400

// oneLine returns a message on one line. It cuts the middle of a long one: some messages begin with
// the fault, and those that wrap others end with it.
func oneLine(message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if len(message) <= maxTextShown {
		return message
	}
	return strings.ToValidUTF8(message[:maxTextShown/4]+" … "+
		message[len(message)-maxTextShown*3/4:], "")
}

// count returns "1 object" or "2 objects".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// pointed returns *p, or the zero value if p is nil.
func pointed[T any](p *T) T { return *cmp.Or(p, new(T)) }
