package k8s

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespaceTimeout is for the namespace of an earlier test of the same name to be gone.
const namespaceTimeout = 2 * time.Minute

// namespace is a namespace of one test, in which Pod Security "restricted" is enforced.
type namespace struct {
	*cluster
	t    *testing.T
	name string
}

// namespace makes the test's namespace. What it holds is shown if the test fails, and deleted.
func (c *cluster) namespace(t *testing.T, name string) *namespace {
	t.Helper()
	n := &namespace{cluster: c, t: t, name: "rondo-test-" + name}
	spaces := c.client.CoreV1().Namespaces()
	n.remove()
	until(t, namespaceTimeout, "namespace "+n.name+" of an earlier run gone", func() bool {
		_, err := spaces.Get(t.Context(), n.name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	_, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   n.name,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.dump()
		}
		n.remove()
	})
	until(t, namespaceTimeout, "service account of "+n.name, func() bool {
		_, err := c.client.CoreV1().ServiceAccounts(n.name).Get(t.Context(), "default",
			metav1.GetOptions{})
		return err == nil
	})
	return n
}

// remove deletes the namespace. Its Jobs go first: the finalizer on a failed pod of an index waits
// for a replacement, which a namespace that is being deleted refuses. Its pods go at once: nothing
// in them is worth a grace period.
func (n *namespace) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	now, behind := int64(0), metav1.DeletePropagationBackground
	_, _ = n.try("", "delete", "jobset", "--all", "--wait=false") // a cluster may not know them
	err := errors.Join(
		n.client.BatchV1().Jobs(n.name).DeleteCollection(ctx,
			metav1.DeleteOptions{PropagationPolicy: &behind}, metav1.ListOptions{}),
		n.client.CoreV1().Namespaces().Delete(ctx, n.name, metav1.DeleteOptions{}),
		n.client.CoreV1().Pods(n.name).DeleteCollection(ctx,
			metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	if err != nil && !apierrors.IsNotFound(err) {
		n.t.Errorf("delete namespace %s: %v", n.name, err)
	}
}

// dump logs the namespace's objects and events.
func (n *namespace) dump() {
	for _, args := range [][]string{
		{"get", "pods,jobs,statefulsets,deployments", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp", "--field-selector=type=Warning"},
	} {
		out, err := n.try("", args...)
		n.t.Logf("kubectl %s (%v):\n%s", strings.Join(args, " "), err, out)
	}
	for _, pod := range n.pods("app.kubernetes.io/name=rondo") {
		for _, container := range pod.Spec.Containers {
			out, _ := n.try("", "logs", pod.Name, "-c", container.Name, "--tail=25")
			before, err := n.try("", "logs", pod.Name, "-c", container.Name, "--tail=15", "-p")
			if err == nil {
				out = before + "--- restarted\n" + out
			}
			n.t.Logf("%s %s on %s:\n%s", pod.Name, container.Name, pod.Spec.NodeName, out)
		}
	}
}

// try runs kubectl in the namespace.
func (n *namespace) try(input string, args ...string) (string, error) {
	n.t.Helper()
	return output(n.t, input, n.cluster.kubectl, append([]string{"-n", n.name}, args...)...)
}

// do runs kubectl in the namespace, and fails the test if that fails.
func (n *namespace) do(args ...string) string {
	n.t.Helper()
	out, err := n.try("", args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// apply applies objects in YAML.
func (n *namespace) apply(yaml string) {
	n.t.Helper()
	if _, err := n.try(yaml, "apply", "-f", "-"); err != nil {
		n.t.Fatal(err)
	}
}

// pods are the pods that a label selector takes; an API server that does not answer has none.
func (n *namespace) pods(selector string) []corev1.Pod {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	list, err := n.client.CoreV1().Pods(n.name).List(ctx,
		metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		n.t.Logf("list pods: %v", err)
		return nil
	}
	return list.Items
}

// serving reports whether a pod runs, is ready, and is not being deleted.
func serving(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// kill ends a pod's container with SIGKILL, by the runtime of its node.
func (n *namespace) kill(pod *corev1.Pod, container string) {
	n.t.Helper()
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != container {
			continue
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		n.cut(n.t)("exec", pod.Spec.NodeName, "ctr", "-n", "k8s.io", "task", "kill", "-s",
			"SIGKILL", id)
		return
	}
	n.t.Fatalf("pod %s has no running container %s", pod.Name, container)
}
