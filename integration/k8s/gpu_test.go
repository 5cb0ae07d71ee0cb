package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	gpus           = corev1.ResourceName("nvidia.com/gpu")
	gpuLabel       = "nvidia.com/gpu.present"
	gpuTaint       = "nvidia.com/gpu=present:NoSchedule"
	gpuPluginImage = "localhost/rondo-gpuplugin:test"
)

// onProcessors has workers compute on processors and keep the GPU that they were given.
const onProcessors = `{spec: {containers: [{name: worker, command: [/worker, --device=cpu]}]}}`

// TestGPU: each worker of a GPU job takes one GPU of those that a fake device plugin offers on two
// nodes. With fewer GPUs than workers, those with one train, and status tells of the shortage and
// its remedy. The next worker starts when a GPU is repaired.
func TestGPU(t *testing.T) {
	c := connect(t)
	nodes := c.nodes(t)
	if len(nodes) < 3 {
		t.Skipf("the cluster has %d nodes, 3 are needed", len(nodes))
	}
	two, one := nodes[0], nodes[1]
	g := c.offerGPUs(t, two, one)
	g.plug(two, 2, 0)
	g.plug(one, 0, 1)

	n := c.namespace(t, "gpu")
	j := n.submit("gpus", small("--steps", "100000"), "--workers", "4", "--gpus-per-worker", "1",
		"--memory-per-worker", "256Mi", "--join-timeout", "60s", "--inject", paced, "--wait=false",
		"--pod-template", written(t, onProcessors))
	j.awaitWorkers(map[string]int{two: 2, "": 2})
	j.awaitRing(2)
	j.checkGPUPods()
	t.Logf("4 workers, 2 GPUs: %s", j.awaitLine([]string{"no node takes it", "2 Insufficient " +
		"nvidia.com/gpu"}))
	t.Log(j.awaitLine([]string{"remedy: ", "each worker takes a GPU", "rondo scale"}))

	start := time.Now()
	g.plug(one, 1, 0)
	j.awaitRing(3)
	t.Logf("a repaired GPU: three workers did a step after %s", seconds(time.Since(start)))
	j.awaitWorkers(map[string]int{two: 2, one: 1, "": 1})
	g.checkAllocated(two, "gpu-0", "gpu-1")
	g.checkAllocated(one, "gpu-0")

	if out, err := j.tell("scale", "3"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	j.awaitWorkers(map[string]int{two: 2, one: 1})
	if out, err := j.tell("status"); err != nil || strings.Contains(out, "no node takes it") {
		t.Errorf("rondo status of as many workers as GPUs: %v\n%s", err, out)
	}
}

// TestNoCUDA: a worker with a GPU that its image cannot use says so.
func TestNoCUDA(t *testing.T) {
	c := connect(t)
	node := c.nodes(t)[0]
	g := c.offerGPUs(t, node)
	g.plug(node, 1, 0)
	j := c.namespace(t, "gpu").submit("gpus", small("--steps", "10"), "--workers", "1",
		"--gpus-per-worker", "1", "--memory-per-worker", "256Mi", "--wait=false")
	t.Log(j.awaitLine([]string{"built without CUDA", "rondo:VERSION-cuda"}))
}

// written writes a file of the test and returns its path.
func written(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// awaitWorkers waits until the job's workers are on these nodes, so many on each, and stay there.
// Those on no node are under the empty name.
func (j *job) awaitWorkers(want map[string]int) {
	j.t.Helper()
	counts := map[string]int{}
	defer func() {
		if j.t.Failed() {
			j.t.Logf("workers by node: %v", counts)
		}
	}()
	until(j.t, stepTimeout, fmt.Sprintf("workers by node: %v", want), func() bool {
		clear(counts)
		for _, pod := range j.pods(j.selector("worker")) {
			if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed &&
				pod.Status.Phase != corev1.PodSucceeded {
				counts[pod.Spec.NodeName]++
			}
		}
		return fmt.Sprint(counts) == fmt.Sprint(want)
	})
}

// checkGPUPods checks what the pods of a GPU job ask for, and what the job says.
func (j *job) checkGPUPods() {
	j.t.Helper()
	for _, pod := range j.pods(j.selector("worker")) {
		spec := pod.Spec
		if spec.NodeSelector[gpuLabel] != "true" {
			j.t.Errorf("%s is placed by selector %v", pod.Name, spec.NodeSelector)
		}
		asked := spec.Containers[0].Resources
		if l, r := asked.Limits[gpus], asked.Requests[gpus]; l.Value() != 1 || r.Value() != 1 {
			j.t.Errorf("%s asks for %v", pod.Name, asked)
		}
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == string(gpus) && t.Operator == corev1.TolerationOpExists
		}) {
			j.t.Errorf("%s tolerates %v", pod.Name, spec.Tolerations)
		}
	}
	specs := j.do("get", "configmap", "-l", "rondo.dev/job="+j.name, "-o", "yaml")
	for _, want := range []string{"device: cuda", "workers: 4"} {
		if !strings.Contains(specs, want) {
			j.t.Errorf("the job does not say %q:\n%s", want, specs)
		}
	}
	if strings.Contains(specs, "ring_order: spread") {
		j.t.Error("the workers of a host are not neighbours in the ring")
	}
}

// gpuNodes are nodes that have fake GPUs until the test's end.
type gpuNodes struct {
	*namespace // of the plugins
}

// offerGPUs labels and taints nodes as those with GPUs are. plug gives them some.
func (c *cluster) offerGPUs(t *testing.T, nodes ...string) *gpuNodes {
	t.Helper()
	for _, node := range nodes {
		if c.gpusOf(t, node) > 0 {
			t.Skipf("node %s has GPUs already", node)
		}
	}
	c.image(t, gpuPluginImage, func(t *testing.T, archive string) {
		program := filepath.Join(t.TempDir(), "gpuplugin")
		if _, err := run(buildTimeout, "", "env", "CGO_ENABLED=0", "go", "build", "-o", program,
			"./gpuplugin"); err != nil {
			t.Fatal(err)
		}
		pack(t, archive, gpuPluginImage, program)
	})
	g := &gpuNodes{c.namespace(t, "gpuplugin")}
	g.do("label", "namespace", g.name, "pod-security.kubernetes.io/enforce=privileged",
		"--overwrite") // the plugin mounts a folder of its node
	t.Cleanup(func() {
		g.do("delete", "pod", "--all")
		for _, node := range nodes {
			until(t, nodeTimeout, "no GPU of "+node, func() bool { return c.gpusOf(t, node) == 0 })
		}
	})
	for _, node := range nodes {
		g.do("label", "node", node, gpuLabel+"=true")
		t.Cleanup(func() { g.do("label", "node", node, gpuLabel+"-") })
		g.do("taint", "node", node, gpuTaint)
		t.Cleanup(func() { g.do("taint", "node", node, gpuTaint+"-") })
	}
	return g
}

// plug gives a node so many healthy and broken GPUs, in place of those that it had.
func (g *gpuNodes) plug(node string, healthy, broken int) {
	g.t.Helper()
	g.do("delete", "pod", "plugin-"+node, "--ignore-not-found")
	g.apply(fmt.Sprintf(gpuPluginPod, node, node, gpuPluginImage, healthy, broken))
	g.do("wait", "--for=condition=Ready", "pod/plugin-"+node, "--timeout=60s")
	until(g.t, nodeTimeout, fmt.Sprintf("%d GPUs of %s", healthy, node), func() bool {
		return g.gpusOf(g.t, node) == int64(healthy)
	})
}

// gpusOf returns how many GPUs of a node can be allocated.
func (c *cluster) gpusOf(t *testing.T, node string) int64 {
	t.Helper()
	found, err := c.client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	free := found.Status.Allocatable[gpus]
	return free.Value()
}

// checkAllocated checks which GPUs the kubelet of a node has given to containers, each once.
func (g *gpuNodes) checkAllocated(node string, want ...string) {
	g.t.Helper()
	var ids []string
	for line := range strings.Lines(g.do("logs", "plugin-"+node)) {
		if id, is := strings.CutPrefix(strings.TrimSpace(line), "allocated "); is {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	if !slices.Equal(ids, want) {
		g.t.Errorf("the kubelet of %s allocated %v, want %v", node, ids, want)
	}
}

const gpuPluginPod = `
apiVersion: v1
kind: Pod
metadata: {name: plugin-%s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - name: plugin
    image: %s
    args: [--healthy=%d, --broken=%d]
    securityContext: {runAsUser: 0}
    volumeMounts: [{name: plugins, mountPath: /var/lib/kubelet/device-plugins}]
  volumes: [{name: plugins, hostPath: {path: /var/lib/kubelet/device-plugins}}]
`
