package k8s

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// replacementVariable asks for the measurement, which proves nothing of Rondo: it is why the
// workers are an Indexed Job.
const replacementVariable = "RONDO_K8S_MEASURE"

const (
	idleImage          = "localhost/rondo-idle:test"
	replacementTimeout = 4 * time.Minute
)

// TestReplacement measures how long each kind of controller takes until its three pods run again
// after one was deleted, one's container was killed (three times), and a node lost its power.
func TestReplacement(t *testing.T) {
	if os.Getenv(replacementVariable) == "" {
		t.Skip(replacementVariable + " is not set")
	}
	c := connect(t)
	cut := c.cut(t)
	c.image(t, idleImage, func(t *testing.T, archive string) {
		pack(t, archive, idleImage, program(t, "testdata/idle", ".", "idle"))
	})
	n := c.namespace(t, "replacement")
	kinds := []string{"job", "eager", "jobset", "statefulset", "deployment"}
	n.apply(manifest(t, kinds))
	n.awaitServing(kinds)

	var table sync.Map
	var all sync.WaitGroup
	for _, kind := range kinds {
		all.Go(func() {
			took := func(what string, d time.Duration) {
				table.Store(kind+" "+what, d)
				t.Logf("%-12s %-22s %5.1f s", kind, what, d.Seconds())
			}
			took("deleted", n.replaced(kind, 0, func(pod *corev1.Pod) {
				n.do("delete", "pod", pod.Name, "--wait=false")
			}))
			for i := range 3 {
				took(fmt.Sprintf("killed, time %d", i+1), n.replaced(kind, 1,
					func(pod *corev1.Pod) { n.kill(pod, "main") }))
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}

	victim := n.pods("kind=job")[0].Spec.NodeName
	n.awaitServing(kinds)
	cut("off", victim)
	start := time.Now()
	for _, kind := range kinds {
		all.Go(func() {
			for time.Since(start) < replacementTimeout/2 {
				if n.serving(kind, victim) == 3 {
					t.Logf("%-12s %-22s %5.1f s", kind, "node's power cut",
						time.Since(start).Seconds())
					return
				}
				time.Sleep(pollInterval)
			}
			t.Logf("%-12s %-22s never (%v)", kind, "node's power cut", replacementTimeout/2)
		})
	}
	all.Wait()
	cut("on", victim)
	c.awaitNode(t, victim)
}

// manifest renders the kinds' objects.
func manifest(t *testing.T, kinds []string) string {
	t.Helper()
	parsed, err := template.ParseGlob(filepath.Join("testdata", "replacement*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, kind := range kinds {
		var pod strings.Builder
		if err := parsed.ExecuteTemplate(&pod, "replacement-pod.yaml", kind); err != nil {
			t.Fatal(err)
		}
		depth := 4
		if kind == "jobset" {
			depth = 10
		}
		indent := "\n" + strings.Repeat(" ", depth)
		err := parsed.ExecuteTemplate(&out, "replacement-"+kind+".yaml",
			indent+strings.ReplaceAll(strings.TrimSpace(pod.String()), "\n", indent))
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n---\n")
	}
	return out.String()
}

// serving counts the pods of a kind that serve, but for those of a node that is lost.
func (n *namespace) serving(kind, lost string) int {
	count := 0
	for _, pod := range n.pods("kind=" + kind) {
		if serving(&pod) && pod.Spec.NodeName != lost {
			count++
		}
	}
	return count
}

func (n *namespace) awaitServing(kinds []string) {
	n.t.Helper()
	until(n.t, replacementTimeout, "three pods of each kind", func() bool {
		return !slices.ContainsFunc(kinds, func(kind string) bool {
			return n.serving(kind, "") != 3
		})
	})
}

// life is one life of a pod's container.
type life struct {
	pod      types.UID
	restarts int32
}

func lives(pods []corev1.Pod) map[life]bool {
	all := map[life]bool{}
	for _, pod := range pods {
		if serving(&pod) {
			all[life{pod.UID, pod.Status.ContainerStatuses[0].RestartCount}] = true
		}
	}
	return all
}

// replaced disturbs a pod of a kind, and returns how long it takes until three serve again, one of
// them in a new life.
func (n *namespace) replaced(kind string, which int, disturb func(*corev1.Pod)) time.Duration {
	n.t.Helper()
	pods := slices.DeleteFunc(n.pods("kind="+kind), func(p corev1.Pod) bool { return !serving(&p) })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	before := lives(pods)
	disturb(&pods[which])
	return until(n.t, replacementTimeout, kind+" replaced", func() bool {
		now := lives(n.pods("kind=" + kind))
		for one := range before {
			if now[one] {
				continue
			}
			return len(now) == 3
		}
		return false
	})
}
