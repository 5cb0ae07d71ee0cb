package kube

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestDelete(t *testing.T) {
	s := serveAPI(t)
	remove := func(how Delete) error {
		how.Timeout, how.Say = time.Minute, func(string) {}
		return s.Delete(t.Context(), "song", how)
	}
	wants(t, remove(Delete{}), "namespace music has nothing of a job song")
	for _, job := range []string{"song", "other"} {
		_, err := s.submit(t, "--job="+job, "--etcd=127.0.0.1:1")
		check(t, err)
	}
	s.end(t, "", map[string]string{"step": "7"})
	s.changes()
	wants(t, remove(Delete{}), "job song has not ended: rondo stop --job song")
	if changes := s.changes(); len(changes) > 0 {
		t.Errorf("it was changed: %q", changes)
	}
	check(t, remove(Delete{Force: true, WithEtcd: true}))
	s.mu.Lock()
	defer s.mu.Unlock()
	others := 0
	for path := range s.objects {
		if strings.Contains(path, "/song-") {
			t.Errorf("%s is left", path)
		}
		if strings.Contains(path, "/other-") {
			others++
		}
	}
	if others != 16 {
		t.Errorf("%d objects of the other job are left", others)
	}
}

// The coordinators end before etcd forgets the job: one that still ran would submit it anew.
func TestDeleteEndsCoordinatorsFirst(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song")
	check(t, err)
	s.refuse = func(request string) *apierrors.StatusError {
		if request == "DELETE deployments/song-coordinator" {
			return apierrors.NewInternalError(errors.New("broken"))
		}
		return nil
	}
	var heard told
	err = s.Delete(t.Context(), "song", Delete{Timeout: time.Minute, Say: heard.say})
	wants(t, err, "deleting deployment/song-coordinator")
	if got := heard.String(); got != "job/song-worker deleted" {
		t.Errorf("it says %q", got)
	}
}

// The data of an etcd go only with that etcd, and that goes only if submit has made it.
func TestDeleteLeavesAnEtcdOfOthers(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song")
	check(t, err)
	s.mu.Lock()
	s.put("/api/v1/namespaces/music/persistentvolumeclaims/data-rondo-etcd-0",
		map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
			"metadata": map[string]any{"name": "data-rondo-etcd-0",
				"labels": map[string]any{labelName: "rondo", labelComponent: Etcd}},
			"status": map[string]any{"phase": "Bound"}})
	s.mu.Unlock()
	set := s.object(t, "statefulsets/rondo-etcd")
	labels := set.GetLabels()
	set.SetLabels(map[string]string{labelName: "rondo", labelComponent: Etcd})
	const claim = "DELETE persistentvolumeclaims/data-rondo-etcd-0"
	var heard told
	how := Delete{WithEtcd: true, Timeout: time.Minute, Say: heard.say}
	check(t, s.Delete(t.Context(), "song", how))
	if slices.Contains(s.changes(), claim) ||
		!strings.Contains(heard.String(), "statefulset/rondo-etcd and its volumes stay") {
		t.Errorf("it says %q", heard.String())
	}
	set.SetLabels(labels)
	check(t, s.Delete(t.Context(), "song", how))
	if !slices.Contains(s.changes(), claim) {
		t.Error("the claim of an etcd that was deleted stays")
	}
}

// A namespace that is being deleted waits for its Jobs: there is nothing to save any more.
func TestDeleteFreesANamespace(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song")
	check(t, err)
	s.end(t, "", map[string]string{"step": "7"})
	s.mu.Lock()
	now := metav1.Now()
	namespace := unstructured.Unstructured{Object: s.objects["/api/v1/namespaces/music"]}
	namespace.SetDeletionTimestamp(&now)
	s.mu.Unlock()
	problems, err := s.Diagnose(t.Context(), "song")
	check(t, err)
	if len(problems) != 1 || problems[0].Remedy != "rondo delete --job song -n music" {
		t.Errorf("%v", problems)
	}
	var heard told
	check(t, s.Delete(t.Context(), "song", Delete{Timeout: time.Minute, Say: heard.say}))
	if !slices.Contains(s.changes(), "DELETE jobs/song-worker") ||
		strings.Contains(heard.String(), "note:") {
		t.Errorf("it says %q", heard.String())
	}
}

// What outlasts its deletion is named when the command's own time is up, with what may hold it.
func TestDeleteThatTakesTooLong(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song")
	check(t, err)
	s.held = "/jobs/song-worker"
	err = s.Delete(t.Context(), "song", Delete{Timeout: 200 * time.Millisecond,
		Say: func(string) {}})
	wants(t, err, "job song is not gone after 200ms")
	wants(t, err, "job/song-worker still waits for its pods to end: of one whose node is lost")
}
