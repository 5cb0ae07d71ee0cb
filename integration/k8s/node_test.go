package k8s

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// perNode counts the job's serving workers by node.
func (j *job) perNode() map[string]int {
	j.t.Helper()
	until(j.t, stepTimeout, "four workers that serve", func() bool {
		return len(j.serving("worker")) == 4
	})
	counts := map[string]int{}
	for _, pod := range j.serving("worker") {
		counts[pod.Spec.NodeName]++
	}
	return counts
}

// spare returns the nodes that a test may cut: those without pods of the cluster itself.
func (c *cluster) spare(t *testing.T) []string {
	t.Helper()
	pods, err := c.client.CoreV1().Pods("kube-system").List(context.Background(),
		metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string]bool{}
	for _, pod := range pods.Items {
		owner := metav1.GetControllerOf(&pod)
		if owner == nil || owner.Kind != "DaemonSet" {
			needed[pod.Spec.NodeName] = true
		}
	}
	var free []string
	for _, node := range c.nodes(t) {
		if !needed[node] {
			free = append(free, node)
		}
	}
	return free
}

// hosting returns a spare node with this many of the job's workers.
func (j *job) hosting(workers int) string {
	j.t.Helper()
	counts := j.perNode()
	for _, node := range j.spare(j.t) {
		if counts[node] == workers {
			return node
		}
	}
	j.t.Fatalf("no node that can be cut has %d workers: %v", workers, counts)
	return ""
}

// TestNodes: nodes lose their power and their network, and are drained, while a job trains.
func TestNodes(t *testing.T) {
	c := connect(t)
	cut := c.cut(t)
	if n := len(c.spare(t)); n < 2 {
		t.Skipf("%d nodes can be cut, 2 are needed: the others run what the cluster lives on", n)
	}
	n := c.namespace(t, "nodes")
	j := n.try4(790, 250*time.Millisecond)

	victim := j.hosting(1)
	on := c.repaired(t, "on", victim)
	j.struck("power cut of a node with one worker", 3, func() { cut("off", victim) })
	on()
	j.rejoined()

	victim = j.hosting(1)
	plug := c.repaired(t, "plug", victim)
	j.struck("a node with one worker unplugged", 3, func() { cut("unplug", victim) })
	plug()
	j.rejoined()

	victim = j.hosting(1)
	t.Cleanup(func() { n.do("uncordon", victim) })
	j.struck("kubectl drain of a node with one worker", 3, func() {
		n.do("drain", victim, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
			"--pod-selector", "rondo.dev/job="+j.name)
	})
	n.do("uncordon", victim)
	j.rejoined()
	j.end()
	j.verdict()
}

// TestHostOfTwo: a node with two workers loses its power. No lane's state is lost with it, because
// neighbours in the ring are on different nodes.
func TestHostOfTwo(t *testing.T) {
	c := connect(t)
	cut := c.cut(t)
	hosts := c.spare(t)
	if len(hosts) < 2 {
		t.Skipf("%d nodes can be cut, 2 are needed: the others run what the cluster lives on",
			len(hosts))
	}
	n := c.namespace(t, "two")
	for _, node := range hosts[:2] { // two workers on each
		n.do("label", "node", node, "rondo.dev/test=two", "--overwrite")
		t.Cleanup(func() { n.do("label", "node", node, "rondo.dev/test-") })
	}
	j := n.try4(300, 200*time.Millisecond, "--node-selector", "rondo.dev/test=two",
		"--ring-order", "spread")
	victim := j.hosting(2)
	on := c.repaired(t, "on", victim)
	j.struck("power cut of a node with two workers", 2, func() { cut("off", victim) })
	j.end()
	on()
	j.verdict()
}

// repaired returns a function that repairs a node. It runs at the test's end at the latest.
func (c *cluster) repaired(t *testing.T, verb, node string) func() {
	done := false
	repair := func() {
		if done {
			return
		}
		done = true
		start := time.Now()
		c.cut(t)(verb, node)
		c.awaitNode(t, node)
		t.Logf("  %s %s: ready after %s", verb, node, seconds(time.Since(start)))
	}
	t.Cleanup(repair)
	return repair
}
