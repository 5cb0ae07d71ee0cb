// Package k8s runs Rondo on a real Kubernetes cluster. Pods are deleted, containers killed, nodes
// cut from power and network, and the job must lose nothing. README.md lists the needs of the
// tests; without them they are skipped.
package k8s

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Environment variables of the tests.
const (
	loadVariable    = "RONDO_K8S_LOAD" // a command that loads an image archive on every node
	nodeVariable    = "RONDO_K8S_NODE" // a command that cuts nodes from power and network
	kubectlVariable = "KUBECTL"        // instead of kubectl in PATH
)

// Limits of the waits.
const (
	commandTimeout = 3 * time.Minute // one command
	// buildTimeout is for one program or image with a cold build cache on two busy cores.
	buildTimeout = 30 * time.Minute
	nodeTimeout  = 2 * time.Minute // for a node to be ready, or not
	pollInterval = 100 * time.Millisecond
)

// cluster is the cluster under test, as a test sees it.
type cluster struct {
	client  kubernetes.Interface
	kubectl string
	load    []string
	node    []string // empty: nodes cannot be cut
}

// connect returns the cluster, or skips the test if none is given.
func connect(t *testing.T) *cluster {
	t.Helper()
	load := strings.Fields(os.Getenv(loadVariable))
	if len(load) == 0 {
		t.Skip(loadVariable + " is not set: no cluster to test on; see integration/k8s/README.md")
	}
	if _, err := command(); err != nil { // now, so that building it does not count later
		t.Fatal(err)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatalf("KUBECONFIG: %v", err)
	}
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := os.Getenv(kubectlVariable)
	if kubectl == "" {
		kubectl = "kubectl"
	}
	return &cluster{client: client, kubectl: kubectl, load: load,
		node: strings.Fields(os.Getenv(nodeVariable))}
}

// cut returns the command that cuts nodes, or skips the test if none is given.
func (c *cluster) cut(t *testing.T) func(verb, node string, args ...string) string {
	t.Helper()
	if len(c.node) == 0 {
		t.Skip(nodeVariable + " is not set: nodes cannot be cut; see integration/k8s/README.md")
	}
	return func(verb, node string, args ...string) string {
		t.Helper()
		command := append(append(c.node[1:len(c.node):len(c.node)], verb, node), args...)
		out, err := output(t, "", c.node[0], command...)
		if err != nil {
			t.Fatalf("%s: %v", nodeVariable, err)
		}
		return out
	}
}

// output runs a command with its standard input, and returns its standard output. An error includes
// its standard error.
func output(t *testing.T, input, name string, args ...string) (string, error) {
	t.Helper()
	return run(commandTimeout, input, name, args...)
}

func run(limit time.Duration, input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), &failure{
			command: strings.Join(append([]string{filepath.Base(name)}, args...), " "),
			stderr:  strings.TrimSpace(stderr.String()), err: errors.Join(err, ctx.Err())}
	}
	return stdout.String(), nil
}

// failure is a command that failed.
type failure struct {
	command, stderr string
	err             error
}

func (f *failure) Error() string { return f.command + ": " + f.err.Error() + ": " + f.stderr }
func (f *failure) Unwrap() error { return f.err }

// until polls a condition and fails the test if it does not hold in time. It returns how long
// that took.
func until(t *testing.T, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !holds() {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(pollInterval)
	}
	return time.Since(start)
}

// ready reports whether a condition of a node, pod or the like is true.
func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// nodes are the names of the nodes that take pods.
func (c *cluster) nodes(t *testing.T) []string {
	t.Helper()
	list, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		if node := &list.Items[i]; nodeReady(node) && !node.Spec.Unschedulable {
			names = append(names, node.Name)
		}
	}
	return names
}

// awaitNode waits until a node is ready.
func (c *cluster) awaitNode(t *testing.T, name string) {
	t.Helper()
	until(t, nodeTimeout, "node "+name+" ready", func() bool {
		node, err := c.client.CoreV1().Nodes().Get(context.Background(), name,
			metav1.GetOptions{})
		return err == nil && nodeReady(node)
	})
}

// loaded remembers the images that are on the nodes.
var loaded sync.Map

// image loads an image on every node, once a run. Its archive is written by write.
func (c *cluster) image(t *testing.T, name string, write func(t *testing.T, archive string)) {
	t.Helper()
	once, _ := loaded.LoadOrStore(name, &sync.Once{})
	once.(*sync.Once).Do(func() {
		archive := filepath.Join(t.TempDir(), "image.tar")
		write(t, archive)
		if _, err := output(t, "", c.load[0], append(c.load[1:], archive)...); err != nil {
			t.Fatalf("%s: %v", loadVariable, err)
		}
	})
}
