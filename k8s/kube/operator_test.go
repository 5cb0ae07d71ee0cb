package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
)

// described is a server with a RondoJob named song, and an operator.
type described struct {
	*apiServer
	t  *testing.T
	op *operator
}

func describe(t *testing.T) *described {
	t.Helper()
	d := &described{apiServer: serveAPI(t), t: t}
	all, err := d.objects(false)
	check(t, err)
	d.op = &operator{objects: all, mended: map[types.NamespacedName]time.Time{},
		cfg: OperatorConfig{Image: "registry/rondo:1", Log: slog.New(slog.DiscardHandler),
			Fits: func(*rondov1.JobSpec, int) error { return nil }}}
	d.mu.Lock()
	defer d.mu.Unlock()
	const at = "/apis/rondo.dev/v1alpha1/namespaces/music/rondojobs/song"
	d.put(at, map[string]any{
		"apiVersion": "rondo.dev/v1alpha1", "kind": "RondoJob",
		"metadata": map[string]any{"name": "song", "namespace": "music"},
		"spec": map[string]any{"replicas": int64(2), "etcdStorage": "ephemeral", "insecure": true,
			"job": map[string]any{"checkpoint_dir": "pvc://models/song", "lr": 0.004}},
	})
	(&unstructured.Unstructured{Object: d.apiServer.objects[at]}).SetUID("song-1")
	return d
}

// objects hides the server's map from the Cluster's method of that name.
func (d *described) objects(dryRun bool) (*objects, error) { return d.Cluster.objects(dryRun) }

// reconcile looks at the RondoJob once. It returns the changes that were asked for.
func (d *described) reconcile() []string {
	d.t.Helper()
	d.changes()
	_, err := d.op.reconcile(d.t.Context(), types.NamespacedName{Namespace: "music", Name: "song"})
	check(d.t, err)
	return d.changes()
}

// spec sets a field of the RondoJob's spec.
func (d *described) spec(value any, path ...string) {
	d.t.Helper()
	song := d.object(d.t, "rondojobs/song")
	d.mu.Lock()
	defer d.mu.Unlock()
	path = append([]string{"spec"}, path...)
	check(d.t, unstructured.SetNestedField(song.Object, value, path...))
}

// status reads the RondoJob's status.
func (d *described) status() *rondoJobStatus {
	d.t.Helper()
	r, err := rondoJobIn(d.object(d.t, "rondojobs/song"))
	check(d.t, err)
	return &r.Status
}

// TestOperator: a RondoJob from its beginning through a change of scale, a change that must wait,
// the end, and the next run.
func TestOperator(t *testing.T) {
	d := describe(t)
	changes := d.reconcile()
	record, job := d.object(t, "configmaps/song-record"), d.object(t, "jobs/song-worker")
	if by := metav1.GetControllerOf(record); by == nil || by.UID != "song-1" {
		t.Errorf("the record is owned by %v", record.GetOwnerReferences())
	}
	if owners := job.GetOwnerReferences(); len(owners) != 1 || owners[0].Name != "song-record" {
		t.Errorf("the Job is owned by %v", owners)
	}
	s := d.status()
	if s.Phase != phasePending || !meta.IsStatusConditionTrue(s.Conditions, conditionApplied) {
		t.Errorf("the status is %+v after %q", s, changes)
	}
	first := job.GetAnnotations()[annotationRun]
	if changes := d.reconcile(); slices.ContainsFunc(changes, func(change string) bool {
		return !strings.HasPrefix(change, "PUT rondojobs")
	}) {
		t.Errorf("nothing has happened, and it changes %q", changes)
	}

	d.end(t, "", map[string]string{"phase": "running", "step": "7", "total-steps": "20",
		"loss": "2.5", "world-size": "2", "updated": time.Now().UTC().Format(time.RFC3339)})
	d.reconcile()
	if s = d.status(); s.Phase != "running" || s.Step != 7 || *s.Loss != 2.5 || s.World != 2 ||
		*s.TrainerStatus.ProgressPercentage != 35 ||
		!meta.IsStatusConditionTrue(s.Conditions, conditionRunning) {
		t.Errorf("the status is %+v", s)
	}

	d.spec(int64(6), "replicas")
	d.spec(0.002, "job", "lr")
	if changes = d.reconcile(); !slices.Contains(changes, "PATCH jobs/song-worker") {
		t.Errorf("it is not scaled: %q", changes)
	}
	applied := meta.FindStatusCondition(d.status().Conditions, conditionApplied)
	if applied.Reason != reasonImmutable || !strings.HasPrefix(applied.Message, "job.lr:") {
		t.Errorf("the condition is %+v", applied)
	}

	d.end(t, "Complete", map[string]string{"phase": "ended", "step": "20"})
	d.reconcile()
	job = d.object(t, "jobs/song-worker")
	if next := job.GetAnnotations()[annotationRun]; next <= first {
		t.Errorf("the next run is %s, and the first was %s", next, first)
	}
	if n, _, _ := unstructured.NestedInt64(job.Object, "spec", "parallelism"); n != 6 {
		t.Errorf("the next run has %d workers", n)
	}
}

// TestOperatorLeavesEnded: a run that has ended is not begun again when the cluster has removed its
// Job, whether the record or only the RondoJob knows the end.
func TestOperatorLeavesEnded(t *testing.T) {
	d := describe(t)
	d.reconcile()
	d.end(t, "Complete", map[string]string{"phase": "ended", "step": "20"})
	d.reconcile()
	d.mu.Lock()
	delete(d.apiServer.objects, "/apis/batch/v1/namespaces/music/jobs/song-worker")
	d.mu.Unlock()
	if changes := d.reconcile(); len(changes) > 0 {
		t.Errorf("it changes %q", changes)
	}
	if s := d.status(); s.Phase != "ended" || s.Step != 20 ||
		!meta.IsStatusConditionTrue(s.Conditions, conditionComplete) {
		t.Errorf("the status is %+v", s)
	}
}

// TestOperatorMends: an object that is missing is made anew.
func TestOperatorMends(t *testing.T) {
	d := describe(t)
	d.reconcile()
	d.mu.Lock()
	delete(d.apiServer.objects, "/apis/apps/v1/namespaces/music/deployments/song-coordinator")
	d.mu.Unlock()
	d.op.mend(types.NamespacedName{Namespace: "music", Name: "song"}, time.Time{})
	changes := d.reconcile()
	if !slices.Contains(changes, "PATCH deployments/song-coordinator") ||
		slices.Contains(changes, "PATCH jobs/song-worker") {
		t.Errorf("it changes %q", changes)
	}
}

// TestOperatorTaken: a job that somebody has submitted is left alone.
func TestOperatorTaken(t *testing.T) {
	d := describe(t)
	_, err := d.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--insecure")
	check(t, err)
	changes := d.reconcile()
	applied := meta.FindStatusCondition(d.status().Conditions, conditionApplied)
	if applied.Reason != reasonConflict || len(changes) != 1 {
		t.Errorf("the condition is %+v after %q", applied, changes)
	}
}

// TestDescribedJob: commands that would work against the operator name kubectl's.
func TestDescribedJob(t *testing.T) {
	d := describe(t)
	d.reconcile()
	_, submitted := d.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--insecure")
	var said bytes.Buffer
	for words, err := range map[string]error{
		"kubectl -n music edit rondojob/song": submitted,
		"kubectl -n music scale rondojob/song --replicas 3": d.Scale(t.Context(), "song",
			Scale{Workers: 3, Say: func(line string) { said.WriteString(line) }}),
		"kubectl -n music delete rondojob/song": d.Delete(t.Context(), "song",
			Delete{Timeout: time.Minute, Say: func(line string) { said.WriteString(line) }}),
	} {
		wants(t, err, words)
		var wrong *app.UsageError
		if !errors.As(err, &wrong) {
			t.Errorf("%v is no usage error", err)
		}
	}
}

// TestOperatorManifest: with --all-namespaces the rights are the cluster's.
func TestOperatorManifest(t *testing.T) {
	for everywhere, wanted := range map[bool][]string{
		false: {"kind: Role\n", "kind: RoleBinding\n", "image: registry/rondo:7\n",
			"namespace: lab\n", "name: rondojobs.rondo.dev\n"},
		true: {"kind: ClusterRole\n", "kind: ClusterRoleBinding\n", "- --all-namespaces\n"},
	} {
		text, err := OperatorManifest("registry/rondo:7", "lab", everywhere)
		check(t, err)
		for _, words := range wanted {
			if !strings.Contains(string(text), words) {
				t.Errorf("everywhere %v: no %q in\n%s", everywhere, words, text)
			}
		}
		if strings.Contains(string(text), "kind: Role\n") == everywhere {
			t.Errorf("everywhere %v: the rights are of the other kind", everywhere)
		}
	}
}
