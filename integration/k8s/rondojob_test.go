package k8s

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// definedKind is the name of the definition of RondoJobs.
const definedKind = "rondojobs.rondo.dev"

// described is a RondoJob, its operator in the same namespace.
type described struct {
	*namespace
	name string
}

// operator installs an operator in the namespace, and the definition until the test's end.
func (n *namespace) operator() {
	n.t.Helper()
	manifest, err := rondo(n.t, "operator", "--manifest", "--image", n.ours(n.t), "-n", n.name)
	if err == nil {
		_, err = n.try(manifest, "apply", "--server-side", "-f", "-")
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if _, err := n.try("", "delete", "crd", definedKind, "--timeout=1m"); err != nil {
			n.t.Error(err)
		}
	})
	n.do("wait", "--for=condition=Established", "crd/"+definedKind, "--timeout=1m")
	n.do("rollout", "status", "deployment/rondo-operator", "--timeout=2m")
}

// describe applies a RondoJob that computes little.
func (n *namespace) describe(name string, workers int, flags ...string) *described {
	n.t.Helper()
	keys := map[string]any{}
	all := small(flags...)
	for i := 0; i < len(all); i += 2 {
		var value any = all[i+1]
		if number := json.Number(all[i+1]); json.Valid([]byte(all[i+1])) {
			value = number
		}
		keys[strings.ReplaceAll(strings.TrimPrefix(all[i], "--"), "-", "_")] = value
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "rondo.dev/v1alpha1", "kind": "RondoJob",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"replicas": workers, "job": keys, "etcdStorage": "ephemeral",
			"cpusPerWorker": "250m", "annotations": map[string]any{"example.com/team": "music"},
			"podTemplate": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
				"name": "worker", "env": []any{map[string]any{"name": "SONG", "value": name}}}}}}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.apply(string(text))
	return &described{n, name}
}

// describedState is the part of a RondoJob's status that tests read.
type describedState struct {
	Phase      string  `json:"phase"`
	Step       int64   `json:"step"`
	Loss       float64 `json:"loss"`
	World      int     `json:"world"`
	Run        string  `json:"run"`
	Conditions []struct{ Type, Status, Reason, Message string }
}

// reason returns the reason of a condition.
func (s *describedState) reason(condition string) string {
	for _, c := range s.Conditions {
		if c.Type == condition {
			return c.Reason
		}
	}
	return ""
}

// await waits until the status is so.
func (d *described) await(what string, holds func(s *describedState) bool) time.Duration {
	d.t.Helper()
	var last string
	return until(d.t, submitTimeout, what, func() bool {
		out, err := d.try("", "get", "rondojob", d.name, "-o", "jsonpath={.status}")
		var s describedState
		if err == nil && out != "" {
			err = json.Unmarshal([]byte(out), &s)
		}
		if out != last {
			last = out
			d.t.Logf("%s: step %d of phase %s, %d in the ring, %s", what, s.Step, s.Phase, s.World,
				s.reason("Applied"))
		}
		return err == nil && out != "" && holds(&s)
	})
}

// leftovers are the objects of Rondo's jobs in the namespace, and their pods and claims.
func (n *namespace) leftovers(kinds string) string {
	out, err := n.try("", "get", kinds, "-l", "app.kubernetes.io/name=rondo", "-o", "name",
		"--ignore-not-found")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(out)
}

// TestRondoJob: a RondoJob is applied, trains, is scaled, refuses a change while it runs, and is
// deleted by kubectl alone, which leaves nothing of it behind, etcd included.
func TestRondoJob(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "custom")
	n.operator()
	start := time.Now()
	d := n.describe("song", 2, "--steps", "100000", "--checkpoint-dir", "none", "--inject", paced)
	d.await("the first step", func(s *describedState) bool {
		return s.Phase == "running" && s.Step > 0 && s.Loss > 0 && s.World == 2
	})
	t.Logf("kubectl apply to the first step in the status: %s", seconds(time.Since(start)))
	n.do("wait", "--for=condition=Running", "rondojob/song", "--timeout=1m")
	header, row, _ := strings.Cut(n.do("get", "rondojobs"), "\n")
	if !strings.HasPrefix(strings.Join(strings.Fields(header), " "),
		"NAME PHASE STEP LOSS WORLD AGE") || !strings.HasPrefix(row, "song") {
		t.Errorf("kubectl get rondojobs:\n%s\n%s", header, row)
	}
	pods := n.pods("rondo.dev/job=song,app.kubernetes.io/component=worker")
	for i := range pods {
		given := func(e corev1.EnvVar) bool { return e.Name == "SONG" }
		if pods[i].Annotations["example.com/team"] != "music" ||
			!slices.ContainsFunc(pods[i].Spec.Containers[0].Env, given) {
			t.Errorf("pod %s lacks the annotation or the variable", pods[i].Name)
		}
	}

	start = time.Now()
	n.do("scale", "rondojob/song", "--replicas", "3")
	d.await("three workers", func(s *describedState) bool { return s.World == 3 })
	t.Logf("kubectl scale from 2 to 3, until the status shows three in the ring: %s",
		seconds(time.Since(start)))

	n.do("patch", "rondojob", "song", "--type", "merge", "-p", `{"spec":{"job":{"lr":0.2}}}`)
	d.await("the refusal of a change", func(s *describedState) bool {
		return s.reason("Applied") == "Immutable" && s.Phase == "running"
	})
	if _, err := n.try("", "patch", "rondojob", "song", "--type", "merge", "-p",
		`{"spec":{"job":{"hidden":"many"}}}`); err == nil {
		t.Error("the API server takes a hidden size of \"many\"")
	}

	// The kinds are asked for before, because that takes seconds.
	kinds := strings.Join(strings.Fields(n.do("api-resources", "--namespaced", "--verbs=list",
		"-o", "name")), ",")
	start = time.Now()
	n.do("delete", "rondojob/song")
	until(t, namespaceTimeout, "nothing of the job left", func() bool {
		return n.leftovers(kinds) == ""
	})
	t.Logf("kubectl delete, until nothing is left: %s", seconds(time.Since(start)))
}

// TestRondoJobEnds: a RondoJob's end is in its status; a change then begins the next run, which
// needs no number.
func TestRondoJobEnds(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "custom-end")
	bucket := n.s3("")
	n.operator()
	d := n.describe("verse", 2, "--steps", "40", "--checkpoint-dir", bucket("verse"))
	var first string
	d.await("the end", func(s *describedState) bool {
		first = s.Run
		return s.Phase == "ended" && s.Step == 40
	})
	n.do("wait", "--for=condition=Complete", "rondojob/verse", "--timeout=1m")
	n.do("patch", "rondojob", "verse", "--type", "merge", "-p", `{"spec":{"job":{"steps":80}}}`)
	d.await("the end of the next run", func(s *describedState) bool {
		return s.Run != first && s.Phase == "ended" && s.Step == 80
	})
}
