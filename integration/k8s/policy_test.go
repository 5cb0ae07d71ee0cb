package k8s

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// policyVariable says that the cluster's network enforces NetworkPolicies.
const policyVariable = "RONDO_K8S_POLICIES"

// connects is a script for a node: whether a port of an address accepts a connection.
const connects = `timeout 2 bash -c "exec 3<>/dev/tcp/$0/$1" 2>/dev/null && echo open || echo shut`

// TestPolicies: where NetworkPolicies are enforced a job trains, answers `rondo status`, is scaled
// and deleted as elsewhere, and another node connects to no port of its pods.
func TestPolicies(t *testing.T) {
	c := connect(t)
	if os.Getenv(policyVariable) == "" {
		t.Skip(policyVariable + " is not set: the cluster's network may enforce no " +
			"NetworkPolicy; see integration/k8s/README.md")
	}
	exec := c.cut(t)
	n := c.namespace(t, "policies")
	nodes := c.nodes(t)
	open := func(pod *corev1.Pod, port int) bool { // to a node that is not the pod's
		for _, node := range nodes {
			if node != pod.Spec.NodeName {
				return strings.TrimSpace(exec("exec", node, "bash", "-c", connects,
					pod.Status.PodIP, fmt.Sprint(port))) == "open"
			}
		}
		t.Fatal("one node is not enough")
		return false
	}
	system := &namespace{cluster: c, t: t, name: "kube-system"}
	for _, dns := range system.pods("k8s-app=kube-dns") {
		if serving(&dns) && !open(&dns, 53) {
			t.Fatalf("a node does not reach %s, to which no policy applies", dns.Name)
		}
	}

	j := n.submit("song", small("--steps", "1000000"), "--workers", "3", "--ha")
	trains := func(world int) {
		t.Helper()
		var status struct {
			Ring int
			Step int64
		}
		step := int64(-1)
		took := until(t, submitTimeout, fmt.Sprintf("steps of %d workers", world), func() bool {
			j.decode(&status, "status", "-o", "json")
			if status.Ring == world && step < 0 {
				step = status.Step
			}
			return status.Ring == world && status.Step > step
		})
		t.Logf("%d workers train after %s", world, seconds(took))
	}
	trains(3)
	for component, ports := range map[string][]int{"worker": {7000, 7001},
		"coordinator": {7000, 7001, 8080}, "etcd": {2379, 2380, 2381}} {
		selector := j.selector(component)
		if component == "etcd" {
			selector = "app.kubernetes.io/component=etcd"
		}
		pods := n.pods(selector)
		if len(pods) == 0 {
			t.Errorf("there is no %s", component)
		}
		for _, pod := range pods {
			for _, port := range ports {
				if open(&pod, port) {
					t.Errorf("another node connects to port %d of %s", port, pod.Name)
				}
			}
		}
	}
	if out, err := j.tell("scale", "4"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	trains(4)
	if out, err := j.tell("delete", "--force"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
