package k8s

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	gpus     = corev1.ResourceName("nvidia.com/gpu")
	gpuTaint = "nvidia.com/gpu=present:NoSchedule"
)

// TestGPU: the pods of a GPU job ask for a GPU each, on nodes that have some, and are scheduled
// there. No GPU is needed: a node is made to claim four, and the image is one that is not there.
func TestGPU(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "gpu")
	node := c.nodes(t)[0]
	n.claimGPUs(node)
	j := &job{namespace: n, name: "gpus"}
	out, err := j.tell("submit", "--workers", "3", "--gpus-per-worker", "1", "--image",
		"localhost/rondo-cuda:none", "--etcd-storage", "ephemeral", "--cpus-per-worker", "250m",
		"--memory-per-worker", "256Mi", "--checkpoint-dir", "none", "--wait=false")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var pods []corev1.Pod
	until(t, stepTimeout, "three scheduled workers", func() bool {
		pods = slices.DeleteFunc(j.pods(j.selector("worker")), func(p corev1.Pod) bool {
			return p.Spec.NodeName == ""
		})
		return len(pods) == 3
	})
	for _, pod := range pods {
		spec := pod.Spec
		if spec.NodeName != node || spec.NodeSelector["nvidia.com/gpu.present"] != "true" {
			t.Errorf("%s is on %s by selector %v", pod.Name, spec.NodeName, spec.NodeSelector)
		}
		asked := spec.Containers[0].Resources
		if l, r := asked.Limits[gpus], asked.Requests[gpus]; l.Value() != 1 || r.Value() != 1 {
			t.Errorf("%s asks for %v", pod.Name, asked)
		}
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == string(gpus) && t.Operator == corev1.TolerationOpExists
		}) {
			t.Errorf("%s tolerates %v", pod.Name, spec.Tolerations)
		}
		env := map[string]bool{}
		for _, variable := range spec.Containers[0].Env {
			env[variable.Name] = true
		}
		for _, name := range []string{"ETCD", "JOB", "RUN", "NODE", "RONDO_TERMINATION_LOG"} {
			if !env[name] {
				t.Errorf("%s has no %s in its environment", pod.Name, name)
			}
		}
	}
	specs := n.do("get", "configmap", "-l", "rondo.dev/job=gpus", "-o", "yaml")
	for _, want := range []string{"device: cuda", "workers: 3"} {
		if !strings.Contains(specs, want) {
			t.Errorf("the job does not say %q:\n%s", want, specs)
		}
	}
	if strings.Contains(specs, "ring_order: spread") {
		t.Error("the workers of a host are not neighbours in the ring")
	}
}

// claimGPUs makes a node claim four GPUs, until the test's end, as the vendor's own pods do: a
// resource, a label and a taint. The node's other labels and taints stay.
func (n *namespace) claimGPUs(node string) {
	n.t.Helper()
	resource := func(operation string) {
		if _, err := n.client.CoreV1().Nodes().Patch(context.Background(), node,
			types.JSONPatchType, []byte(operation), metav1.PatchOptions{}, "status"); err != nil {
			n.t.Fatal(err)
		}
	}
	found, err := n.client.CoreV1().Nodes().Get(n.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	if _, has := found.Status.Capacity[gpus]; has {
		n.t.Skipf("node %s has GPUs already", node)
	}
	resource(`[{"op":"add","path":"/status/capacity/nvidia.com~1gpu","value":"4"}]`)
	n.t.Cleanup(func() {
		resource(`[{"op":"remove","path":"/status/capacity/nvidia.com~1gpu"}]`)
	})
	n.do("label", "node", node, "nvidia.com/gpu.present=true")
	n.t.Cleanup(func() { n.do("label", "node", node, "nvidia.com/gpu.present-") })
	n.do("taint", "node", node, gpuTaint)
	n.t.Cleanup(func() { n.do("taint", "node", node, gpuTaint+"-") })
	until(n.t, nodeTimeout, "the node's GPUs to be given away", func() bool {
		found, err := n.client.CoreV1().Nodes().Get(context.Background(), node,
			metav1.GetOptions{})
		if err != nil {
			return false
		}
		free := found.Status.Allocatable[gpus]
		return free.Value() == 4
	})
}
