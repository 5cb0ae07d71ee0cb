package kube

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rondo/internal/app"
	"rondo/telemetry"
)

// submit runs `rondo submit` as far as the objects.
func (s *apiServer) submit(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	m, err := submission(t, args...)
	if err != nil {
		return "", err
	}
	var said bytes.Buffer
	err = s.Submit(t.Context(), m, Run{}, &said, &said)
	return said.String(), err
}

// resume runs `rondo resume --job song`.
func (s *apiServer) resume(t *testing.T, args ...string) error {
	t.Helper()
	set := pflag.NewFlagSet("resume", pflag.ContinueOnError)
	flags := AddSubmissionFlags(set)
	check(t, set.Parse(args))
	var said bytes.Buffer
	return s.Resume(t.Context(), "song", flags, Run{}, &said, &said)
}

// end gives the Job a condition, and progress as its observer would write it.
func (s *apiServer) end(t *testing.T, condition string, progress map[string]string) {
	t.Helper()
	job := s.object(t, "jobs/song-worker")
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := job.GetAnnotations()
	for name, value := range progress {
		kept[annotations+name] = value
	}
	job.SetAnnotations(kept)
	if condition != "" {
		job.Object["status"] = map[string]any{"conditions": []any{
			map[string]any{"type": condition, "status": "True"}}}
	}
}

func wants(t *testing.T, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%q is not what it says: %v", words, err)
	}
}

func TestSubmitAppliesInOrder(t *testing.T) {
	s := serveAPI(t)
	out, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models")
	check(t, err)
	changes := s.changes()
	position := func(change string) int {
		at := slices.Index(changes, change)
		if at < 0 {
			t.Fatalf("%s is not in %q", change, changes)
		}
		return at
	}
	for _, pair := range [][2]string{
		{"PATCH serviceaccounts/rondo-etcd", "PATCH statefulsets/rondo-etcd"},
		{"PATCH statefulsets/rondo-etcd", "PATCH jobs/song-worker"},
		{"PATCH serviceaccounts/song-worker", "PATCH jobs/song-worker"},
		{"PATCH networkpolicies/song-default-deny", "PATCH deployments/song-coordinator"},
		{"PATCH deployments/song-coordinator", "PATCH jobs/song-worker"},
	} {
		if position(pair[0]) > position(pair[1]) {
			t.Errorf("%s comes after %s", pair[0], pair[1])
		}
	}
	if !strings.Contains(out, "next: rondo status --job song -n music\n") {
		t.Errorf("it says %q", out)
	}

	t.Run("another job uses the same etcd", func(t *testing.T) {
		s.startEtcd()
		out, err := s.submit(t, "--job=other", "--checkpoint-dir=pvc://models")
		check(t, err)
		for _, change := range s.changes() {
			if strings.HasSuffix(change, "/rondo-etcd") {
				t.Errorf("etcd is changed: %s", change)
			}
		}
		if !strings.Contains(out, "statefulset/rondo-etcd exists and is used as it is") {
			t.Errorf("it says %q", out)
		}
	})
	put := func(resource, name, kind, created, phase string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put("/api/v1/namespaces/music/"+resource+"/"+name, map[string]any{"apiVersion": "v1",
			"kind": kind, "metadata": map[string]any{"name": name, "creationTimestamp": created,
				"labels": map[string]any{labelName: "rondo", labelComponent: Etcd}},
			"status": map[string]any{"phase": phase}})
	}
	t.Run("replaced pods have used their volume", func(t *testing.T) {
		put("persistentvolumeclaims", "data-rondo-etcd-0", "PersistentVolumeClaim",
			"2026-01-01T00:00:00Z", "Bound")
		put("pods", "rondo-etcd-0", "Pod", "2026-01-02T00:00:00Z", "Pending")
		_, err := s.submit(t, "--job=fourth", "--etcd-storage=ephemeral")
		check(t, err)
		if changes := s.changes(); slices.Contains(changes, "DELETE statefulsets/rondo-etcd") {
			t.Errorf("%q", changes)
		}
	})
	t.Run("one that has never started is replaced", func(t *testing.T) {
		put("pods", "rondo-etcd-0", "Pod", "2026-01-01T00:00:01Z", "Pending")
		_, err := s.submit(t, "--job=third", "--etcd-storage=ephemeral")
		check(t, err)
		changes := s.changes()
		if !slices.Contains(changes, "DELETE statefulsets/rondo-etcd") ||
			!slices.Contains(changes, "PATCH statefulsets/rondo-etcd") {
			t.Errorf("%q", changes)
		}
		set := s.object(t, "statefulsets/rondo-etcd")
		if _, has, _ := unstructured.NestedSlice(set.Object, "spec",
			"volumeClaimTemplates"); has {
			t.Error("it still wants volumes")
		}
	})
}

func TestSubmitOverAnOldRun(t *testing.T) {
	s := serveAPI(t)
	again := func() error {
		t.Helper()
		_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models")
		return err
	}
	check(t, again())
	first := s.object(t, "jobs/song-worker").GetUID()

	check(t, again()) // it has not begun
	if s.object(t, "jobs/song-worker").GetUID() == first {
		t.Error("a job that has not begun was not replaced")
	}
	s.end(t, "", map[string]string{"step": "7", "phase": "running"})
	s.changes()
	wants(t, again(), "job song is running (step 7)")
	if changes := s.changes(); slices.ContainsFunc(changes, func(change string) bool {
		return strings.Contains(change, "song")
	}) {
		t.Errorf("a job that runs was changed: %q", changes)
	}
	s.end(t, "Complete", map[string]string{"phase": "ended"})
	check(t, again())
	changes := s.changes()
	for _, want := range []string{"DELETE jobs/song-worker", "DELETE " +
		"deployments/song-coordinator"} {
		if !slices.Contains(changes, want) {
			t.Errorf("%s is not in %q", want, changes)
		}
	}
}

func TestSubmitSaysWhatIsRefused(t *testing.T) {
	s := serveAPI(t)
	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x",
		errors.New("exceeded quota: small, requested: configmaps=1, used: configmaps=1, limited: "+
			"configmaps=1"))
	s.refuse = func(request string) *apierrors.StatusError {
		if strings.Contains(request, "configmaps/") {
			return quota
		}
		return nil
	}
	_, err := s.submit(t, "--job=song")
	wants(t, err, "applying configmap/song-record")
	wants(t, err, "exceeded quota: small")
	s.refuse = nil

	s.changes()
	_, err = s.submit(t, "--job=song", "--monitoring")
	wants(t, err, "the cluster has no kind ServiceMonitor (monitoring.coreos.com): install the")
	if changes := s.changes(); len(changes) > 0 {
		t.Errorf("something was applied although a kind is missing: %q", changes)
	}
	s.denied = "roles"
	_, err = s.submit(t, "--job=song")
	wants(t, err, "you may not create roles.rbac.authorization.k8s.io in namespace music")
	if changes := s.changes(); len(changes) > 0 {
		t.Errorf("something was applied although another thing is not allowed: %q", changes)
	}
	s.denied = ""
	s.Namespace = "nowhere"
	_, err = s.submit(t, "--job=song")
	wants(t, err, "there is no namespace nowhere; kubectl create namespace nowhere")
	m, err := submission(t, "--job=song")
	check(t, err)
	var said bytes.Buffer
	if err := s.Submit(t.Context(), m, Run{CreateNamespace: true}, &said, &said); err != nil {
		t.Errorf("%v; %q", err, s.changes())
	}
	made := unstructured.Unstructured{Object: s.objects["/api/v1/namespaces/nowhere"]}
	if made.GetLabels()["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Errorf("it has labels %v", made.GetLabels())
	}
}

func TestServerDryRunKeepsNothing(t *testing.T) {
	s := serveAPI(t)
	m, err := submission(t, "--job=song")
	check(t, err)
	var said bytes.Buffer
	check(t, s.Submit(t.Context(), m, Run{ServerDryRun: true, Wait: true}, &said, &said))
	if !strings.Contains(said.String(), "job/song-worker would be applied (server dry run)") {
		t.Errorf("it says %q", said.String())
	}
	for _, change := range s.changes() {
		if !strings.HasSuffix(change, " dryRun=All") {
			t.Errorf("not a dry run: %s", change)
		}
	}
	_, err = s.submit(t, "--job=song")
	check(t, err)
	said.Reset()
	check(t, s.Submit(t.Context(), m, Run{ServerDryRun: true}, &said, &said))
	if !strings.Contains(said.String(), "job/song-worker would be applied (server dry run)") {
		t.Errorf("of a job that would be replaced it says %q", said.String())
	}
	s.Namespace = "nowhere"
	said.Reset()
	check(t, s.Submit(t.Context(), m, Run{ServerDryRun: true, CreateNamespace: true}, &said, &said))
	if !strings.Contains(said.String(), "namespace/nowhere would be created") {
		t.Errorf("it says %q", said.String())
	}
}

func TestResume(t *testing.T) {
	s := serveAPI(t)
	wants(t, s.resume(t), "there is no job song in namespace music to resume")
	_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--steps=100",
		"--workers=3", "--labels=team=music", "--resume=never")
	check(t, err)
	wants(t, s.resume(t), "job song is running")
	s.end(t, "Complete", map[string]string{"phase": "ended", "step": "100", "total-steps": "100"})
	var wrong *app.UsageError
	if err := s.resume(t); !errors.As(err, &wrong) {
		t.Errorf("not a usage error: %v", err)
	} else {
		wants(t, err, "has done all its 100 steps: give --steps")
	}
	before := s.kept(t)
	check(t, s.resume(t, "--steps=200", "--image=new:1"))
	after := s.kept(t)
	for key, want := range map[string]string{"steps": "200", "workers": "3", "resume": "auto",
		"checkpoint_dir": "pvc://models"} {
		if after.Spec[key] != want {
			t.Errorf("%s is %q after resuming", key, after.Spec[key])
		}
	}
	if after.Image != "new:1" || after.Labels["team"] != "music" || after.Run <= before.Run {
		t.Errorf("resumed as %+v", after)
	}
}

// TestResumeAfterEarlyStop: more patience is needed, or another text to evaluate on.
func TestResumeAfterEarlyStop(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--steps=100",
		"--early-stop=2")
	check(t, err)
	end := func() {
		s.end(t, "Complete", map[string]string{"phase": "ended", "step": "40",
			"total-steps": "100", "reason": fmt.Sprintf(telemetry.EarlyStopped, 2)})
	}
	end()
	for _, flags := range [][]string{nil, {"--steps=200"}, {"--early-stop=1"}} {
		var wrong *app.UsageError
		if err := s.resume(t, flags...); !errors.As(err, &wrong) {
			t.Errorf("%v: %v", flags, err)
		} else {
			wants(t, err, "give --early-stop 0 or more than 2 to go on")
		}
	}
	check(t, s.resume(t, "--early-stop=3"))
	end()
	check(t, s.resume(t, "--early-stop=0"))
}

func TestResumeASuspendedJob(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--steps=100")
	check(t, err)
	job := s.object(t, "jobs/song-worker")
	s.mu.Lock()
	job.Object["spec"].(map[string]any)["suspend"] = true
	s.mu.Unlock()
	wants(t, s.resume(t, "--steps=200"), "goes on as it was: leave out --steps")
	check(t, s.resume(t))
	if on, _, _ := unstructured.NestedBool(job.Object, "spec", "suspend"); on {
		t.Error("it is still suspended")
	}
	s.mu.Lock()
	job.Object["spec"].(map[string]any)["suspend"] = true
	job.SetLabels(map[string]string{labelJob: "song", labelQueue: "team"})
	s.mu.Unlock()
	wants(t, s.resume(t), "waits for Kueue to admit it to queue team")
	s.end(t, "Failed", nil)
	wants(t, s.resume(t), "has no --checkpoint-dir")
}
