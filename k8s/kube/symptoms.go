package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Exit codes of a worker. exitKilled is 128 + SIGKILL.
const (
	exitJob    = 3 // the job has failed
	exitLeft   = 4 // asked to leave
	exitKilled = 137
)

// A knownReason is a reason of a waiting container for which a remedy is known.
type knownReason struct {
	remedy string
	fatal  bool // waiting does not help
}

// knownReasons returns the kubelet's reasons that have a remedy.
func knownReasons() map[string]knownReason {
	const ownImage = "give Rondo's own image (--image)"
	const pull = "is the name right (--image), and the registry reachable from the nodes? If it " +
		"is private: --image-pull-secret; otherwise load it on every node"
	return map[string]knownReason{
		"ErrImagePull":     {pull, false},
		"ImagePullBackOff": {pull, true}, // it has failed more than once
		"ErrImageNeverPull": {"load the image on every node, or give another --image or " +
			"--image-pull-policy", true},
		"InvalidImageName":  {"give --image [REGISTRY/]NAME[:TAG]", true},
		"ImageInspectError": {ownImage, false},
		"CreateContainerConfigError": {"make the Secret, ConfigMap or key that it names (kubectl " +
			"create); an image that runs as root: " + ownImage, true},
		"CreateContainerError": {"", false},
		"RunContainerError":    {ownImage, false},
		"StartError":           {ownImage, true},
	}
}

// terminated returns how a pod's container ended; nil: it has not.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if end := pod.Status.ContainerStatuses[i].State.Terminated; end != nil {
			return end
		}
	}
	return nil
}

// said returns why a process has ended: in its own words, if there are some.
func said(end *corev1.ContainerStateTerminated) string {
	words, code := Outside(oneLine(end.Message)), fmt.Sprintf("exit code %d", end.ExitCode)
	switch {
	case end.Reason == "OOMKilled":
		return "out of memory"
	case end.ExitCode == 0:
		return cmp.Or(words, end.Reason)
	case words != "":
		return fmt.Sprintf("%s (%s)", words, code)
	case end.ExitCode > 128:
		return fmt.Sprintf("killed (signal %d)", end.ExitCode-128)
	}
	return code
}

// ofPod returns the problems of a pod.
func (s *scene) ofPod(pod *corev1.Pod, now time.Time) []Problem {
	name := "pod/" + pod.Name
	if gated(&pod.Spec) && s.workers != nil &&
		now.Sub(pod.CreationTimestamp.Time) >= startGrace {
		return []Problem{{Object: name, Since: pod.CreationTimestamp.Time,
			Text: "Kueue has no quota for it yet in queue " + s.workers.Labels[labelQueue],
			Remedy: "it starts when all the workers that the job wants have quota; " +
				s.command("scale") + " with fewer workers withdraws it"}}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable {
			return []Problem{{Object: name, Since: c.LastTransitionTime.Time,
				Text:   "no node takes it: " + oneLine(c.Message),
				Remedy: moreRoom(pod)}}
		}
	}
	if pod.Status.Phase == corev1.PodFailed && len(pod.Status.ContainerStatuses) == 0 {
		return []Problem{{Object: name, Text: pod.Status.Reason + ": " + pod.Status.Message}}
	}
	var problems []Problem
	for i := range pod.Status.ContainerStatuses {
		if p := s.ofContainer(&pod.Status.ContainerStatuses[i]); p != nil {
			p.Object = name
			p.Fatal = p.Fatal || s.hopeless(pod)
			problems = append(problems, *p)
		}
	}
	if len(problems) > 0 || pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName == "" ||
		now.Sub(pod.CreationTimestamp.Time) < startGrace {
		return problems
	}
	if e := s.last(now, "Pod", pod.Name); e != nil {
		return []Problem{problemOf(e)}
	}
	return nil
}

// moreRoom returns what helps a pod that no node takes.
func moreRoom(pod *corev1.Pod) string {
	const remedy = "ask for less (--workers, --cpus-per-worker, --memory-per-worker, " +
		"--node-selector), allow more (--toleration), or have nodes added or uncordoned"
	gpu := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		_, asked := c.Resources.Limits[gpuResource]
		return asked
	})
	if !gpu {
		return remedy
	}
	return "each worker takes a GPU (" + gpuResource + ") of a node with label " + gpuLabel +
		": wait for one, scale the job to the GPUs that there are (rondo scale), or " + remedy
}

// gpuResource and gpuLabel are set on nodes with GPUs by NVIDIA's device plugin and its discovery.
const (
	gpuResource = "nvidia.com/gpu"
	gpuLabel    = "nvidia.com/gpu.present=true"
)

// ofContainer returns the problem of a container, or nil.
func (s *scene) ofContainer(c *corev1.ContainerStatus) *Problem {
	if end := c.State.Terminated; end != nil {
		return s.ofEnd(end)
	}
	waiting := c.State.Waiting
	if waiting == nil {
		return nil
	}
	if end := c.LastTerminationState.Terminated; end != nil &&
		waiting.Reason == "CrashLoopBackOff" {
		p := s.ofEnd(end)
		if p != nil {
			p.Text = fmt.Sprintf("%s fails again and again: %s", c.Name, said(end))
		}
		return p
	}
	known, is := knownReasons()[waiting.Reason]
	if !is {
		return nil
	}
	text := fmt.Sprintf("%s: image %s: %s", waiting.Reason, c.Image, oneLine(waiting.Message))
	return &Problem{Text: strings.TrimSuffix(text, ": "), Remedy: known.remedy,
		Fatal: known.fatal}
}

// ofEnd returns the problem of a process's end; nil if the end was requested.
func (s *scene) ofEnd(end *corev1.ContainerStateTerminated) *Problem {
	p := &Problem{Text: said(end), Since: end.FinishedAt.Time}
	known, is := knownReasons()[end.Reason]
	switch {
	case end.ExitCode == 0, end.ExitCode == exitLeft:
		return nil
	case is:
		p.Text, p.Remedy, p.Fatal = end.Reason+": "+said(end), known.remedy, known.fatal
	case end.Reason == "OOMKilled":
		p.Remedy = "submit it with a larger --memory-per-worker, or a smaller --batch"
	case end.ExitCode == exitJob:
		p.Remedy, p.Fatal = s.again(), true
	case end.ExitCode == exitKilled:
		p.Remedy = "if this happens again, give a larger --memory-per-worker"
	default:
		p.Remedy = "it is tried again; see " + s.command("logs")
	}
	return p
}

// remedyOf returns the remedy for a refusal of the API server, known by the words of whatever
// refused. waiting reports whether waiting can help.
func remedyOf(message string) (remedy string, waiting bool) {
	for _, known := range []struct {
		words, remedy string
		waiting       bool
	}{
		{"exceeded quota", "ask for less (--workers, --cpus-per-worker, --memory-per-worker), " +
			"delete what is not needed, or have the quota raised", true},
		{"failed quota", "have the namespace's LimitRange set defaults for what it names", false},
		{"violates PodSecurity", "use rondo's own manifests unchanged, or a namespace that " +
			"allows this", false},
		{"being terminated", "wait until the namespace is gone, or give another --namespace",
			false},
		{"attempting to grant RBAC", "you may not give the coordinator's role rights that you " +
			"do not have (get, list, watch, patch of jobs.batch): ask an administrator", false},
		{"denied the request", "change what it names, or ask who runs that policy", false},
		{"failed calling webhook", "have that webhook repaired: until then the cluster refuses " +
			"such objects", false},
		{" cannot ", "you may not do that: ask an administrator for the right, or give another " +
			"--namespace or --context", false},
		{"immutable", "it cannot be changed in place: `rondo stop` the job and `rondo delete` it " +
			"first, or give another --job", false},
	} {
		if strings.Contains(message, known.words) {
			return known.remedy, known.waiting
		}
	}
	return "", false
}
