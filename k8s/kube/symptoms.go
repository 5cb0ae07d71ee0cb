package kube

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// How Kubernetes' own words for what is wrong with pods and volumes are read. The words are those
// of the scheduler, the kubelet, the volume controllers and the container runtimes.

var (
	noPull = regexp.MustCompile(`(?i)unauthorized|denied|forbidden|` +
		`authorization failed|\b40[13]\b`)
	noImage = regexp.MustCompile(`(?i)not ?found|manifest unknown|name unknown|no such host`)
	noClaim = regexp.MustCompile(`persistentvolumeclaim "([^"]+)" not found`)
	noClass = regexp.MustCompile(`storageclass\.storage\.k8s\.io "([^"]+)" not found`)

	noObject = regexp.MustCompile(`(?i)(secret|configmap) "([^"]+)" not found`)
	noKey    = regexp.MustCompile(`(?i)couldn't find key (\S+) in (\w+) (\S+)|` +
		`references non-existent \w+ key: (\S+)`)
)

// exitOOM is how a process ends that the kernel kills: 128 + SIGKILL.
const exitOOM = 137

// terminated is how the job's own container of a pod ended; nil if it has not.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if end := pod.Status.ContainerStatuses[i].State.Terminated; end != nil {
			return end
		}
	}
	return nil
}

// said is the last thing that a process said, or how it ended if it said nothing.
func said(end *corev1.ContainerStateTerminated) string {
	text := strings.Join(strings.Fields(end.Message), " ")
	switch {
	case end.Reason == "OOMKilled":
		return "it took more memory than it may have"
	case text == "":
		return fmt.Sprintf("exit code %d without a word", end.ExitCode)
	}
	return fmt.Sprintf("%s (exit code %d)", text, end.ExitCode)
}

// ofContainer says what is wrong with a container; nil if nothing is.
func (s *scene) ofContainer(c *corev1.ContainerStatus) *Problem {
	if end := c.State.Terminated; end != nil {
		return s.ofEnd(end)
	}
	waiting := c.State.Waiting
	if waiting == nil {
		return nil
	}
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
		"ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		p := unpulled(c.Image, waiting.Reason, waiting.Message)
		return &p
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
		"StartError":
		p := notStarted(waiting.Message)
		return &p
	case "CrashLoopBackOff":
		if end := c.LastTerminationState.Terminated; end != nil {
			p := s.ofEnd(end)
			if p == nil {
				return nil
			}
			p.Text = fmt.Sprintf("%s fails again and again: %s", c.Name, said(end))
			return p
		}
	}
	return nil
}

// ofEnd says what is wrong with how a process ended; nil for an end that was asked for.
func (s *scene) ofEnd(end *corev1.ContainerStateTerminated) *Problem {
	switch {
	case end.ExitCode == 0, end.ExitCode == 4:
		return nil
	case end.Reason == "OOMKilled":
		return &Problem{Text: said(end), Remedy: "submit it with a larger --memory-per-worker, " +
			"or a smaller --batch"}
	case end.Reason == "StartError", end.Reason == "ContainerCannotRun":
		p := notStarted(end.Message)
		return &p
	case end.ExitCode == 3:
		return &Problem{Text: said(end), Remedy: s.again(), Fatal: true}
	case end.ExitCode == exitOOM:
		return &Problem{Text: "it was killed (exit code 137)", Remedy: "if this happens again, " +
			"give a larger --memory-per-worker"}
	}
	return &Problem{Text: said(end), Remedy: "it is tried again; see " + s.command("logs")}
}

// unpulled reads why an image is not there.
func unpulled(image, reason, message string) Problem {
	p := Problem{Text: fmt.Sprintf("image %s cannot be pulled: %s", image, shortly(message)),
		Remedy: "is the registry reachable from the nodes?"}
	switch {
	case reason == "InvalidImageName":
		p.Text = fmt.Sprintf("%q is no name of an image", image)
		p.Remedy, p.Fatal = "give --image [REGISTRY/]NAME[:TAG]", true
	case reason == "ErrImageNeverPull":
		p.Text = fmt.Sprintf("image %s is not on the node, and may not be pulled", image)
		p.Remedy = "load it on every node, or give another --image-pull-policy"
		p.Fatal = true
	case noPull.MatchString(message):
		p.Text = fmt.Sprintf("the registry does not let the cluster pull image %s, or has none "+
			"of that name", image)
		p.Remedy = "is the name right (--image)? If it is private: --image-pull-secret"
		p.Fatal = true
	case noImage.MatchString(message):
		p.Text = fmt.Sprintf("there is no image %s", image)
		p.Remedy = "push it, load it on the nodes, or give another --image"
		p.Fatal = true
	case reason == "ImagePullBackOff": // it was tried more than once
		p.Remedy = "is the name right (--image), and the registry reachable from the nodes? " +
			"Otherwise load it on every node"
		p.Fatal = true
	}
	return p
}

// shortly takes the last part of a message that wraps others.
func shortly(message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if at := strings.LastIndex(message, "desc = "); at >= 0 {
		message = message[at+len("desc = "):]
	}
	if len(message) > maxValueShown {
		parts := strings.Split(message, ": ")
		message = strings.Join(parts[max(0, len(parts)-2):], ": ")
	}
	return message
}

// unschedulable reads why no node takes a pod.
func unschedulable(message string) Problem {
	message, _, _ = strings.Cut(message, " preemption:")
	p := Problem{Text: "no node takes it: " + strings.TrimSuffix(message, ".")}
	less := "ask for less (%s), or have nodes added"
	switch {
	case noClaim.MatchString(message):
		name := noClaim.FindStringSubmatch(message)[1]
		p.Text = fmt.Sprintf("there is no claim %s", name)
		p.Remedy = "make it (kubectl apply a PersistentVolumeClaim), or name another in pvc://"
		p.Fatal = true
	case strings.Contains(message, "unbound immediate PersistentVolumeClaims"):
		p.Text = "it waits for a volume that is not there yet"
	case strings.Contains(message, "volume node affinity conflict"):
		p.Remedy = "its volume belongs to a node that is full or gone: free it, or use a volume " +
			"that all nodes reach (ReadWriteMany)"
	case strings.Contains(message, "Insufficient nvidia.com/gpu"):
		p.Remedy = "no node has a free GPU: fewer --workers, or GPU nodes with NVIDIA's device " +
			"plugin"
	case strings.Contains(message, "Insufficient cpu"):
		p.Remedy = fmt.Sprintf(less, "--cpus-per-worker, --workers")
	case strings.Contains(message, "Insufficient memory"):
		p.Remedy = fmt.Sprintf(less, "--memory-per-worker, --workers")
	case strings.Contains(message, "Too many pods"):
		p.Remedy = fmt.Sprintf(less, "--workers")
	case strings.Contains(message, "untolerated taint"):
		p.Remedy = "if its pods may run on those nodes, give --toleration"
	case strings.Contains(message, "didn't match Pod's node affinity/selector"):
		p.Remedy = "no node has the labels that are asked for (--node-selector): see kubectl get " +
			"nodes --show-labels"
		if strings.Contains(message, "nvidia") {
			p.Remedy = "no node has a GPU"
		}
	case strings.Contains(message, "node(s) were unschedulable"):
		p.Remedy = "nodes are cordoned: kubectl uncordon those that may be used"
	case strings.Contains(message, "no nodes available"):
		p.Remedy = "the cluster has no node: add some"
	}
	return p
}

// etcdVolume is what to do without volumes for etcd.
const etcdVolume = "submit again with --etcd-storage CLASS:SIZE (see kubectl get " +
	"storageclass), or --etcd-storage ephemeral"

// unbound reads why a claim has no volume.
func unbound(message string, etcd bool) Problem {
	p := Problem{Text: "it gets no volume: " + shortly(message)}
	switch {
	case noClass.MatchString(message):
		p.Text = fmt.Sprintf("there is no storage class %s", noClass.FindStringSubmatch(message)[1])
		p.Remedy, p.Fatal = "name one of kubectl get storageclass", true
	case strings.Contains(message, "no storage class is set"):
		p.Text = "it gets no volume: it names no storage class, the cluster has no default one, " +
			"and no volume fits"
		p.Remedy = "make it anew with a storageClassName (see kubectl get storageclass), or make " +
			"a PersistentVolume"
		p.Fatal = true
	case strings.Contains(message, "exceeded quota"):
		what, remedy := refusal(message)
		return Problem{Text: what, Remedy: remedy}
	default:
		p.Remedy = "see kubectl describe persistentvolumeclaim"
	}
	if etcd {
		p.Remedy = etcdVolume
	}
	return p
}

// notStarted reads why a pod that has a node does not start there.
func notStarted(message string) Problem {
	p := Problem{Text: "it cannot start: " + shortly(message)}
	switch {
	case noObject.MatchString(message):
		m := noObject.FindStringSubmatch(message)
		kind := strings.ToLower(m[1])
		p.Text = fmt.Sprintf("there is no %s %s", kind, m[2])
		p.Remedy = fmt.Sprintf("make it: kubectl create %s", kind)
		if m[2] == "rondo-tls" || m[2] == "rondo-etcd-tls" {
			p.Remedy = "cert-manager has not made it: see kubectl describe certificate " + m[2]
			return p // it may be at it
		}
		p.Fatal = true
	case noKey.MatchString(message):
		m := noKey.FindStringSubmatch(message)
		p.Text = fmt.Sprintf("key %s is not in what is mounted (%s)", m[1]+m[4], shortly(message))
		p.Remedy, p.Fatal = "name a key that is there: configmap://NAME/KEY", true
	case strings.Contains(message, "Multi-Attach error"):
		p.Text = "its volume is attached to another node, and can be on one alone"
		p.Remedy = "use a volume that all nodes reach (ReadWriteMany), or s3://"
	case strings.Contains(message, "runAsNonRoot"):
		p.Text = "the image would run as root, which its pods may not"
		p.Remedy, p.Fatal = "give Rondo's own image (--image)", true
	case strings.Contains(message, "no such file or directory") &&
		strings.Contains(message, "exec"):
		p.Text = "the image has no such program: " + shortly(message)
		p.Remedy, p.Fatal = "give Rondo's own image (--image)", true
	}
	return p
}
