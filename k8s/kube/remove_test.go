package kube

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestDelete(t *testing.T) {
	s := serveAPI(t)
	remove := func(how Delete) error {
		how.Timeout, how.Say = time.Minute, func(string) {}
		return s.Delete(t.Context(), "song", how)
	}
	wants(t, remove(Delete{}), "namespace music has no object of job song")
	for _, job := range []string{"song", "other"} {
		_, err := s.submit(t, "--job="+job, "--etcd=127.0.0.1:1", "--insecure")
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

// Workers that train would wait for a coordinator, which goes with them: they get a short time, and
// everything is deleted at once.
func TestDeleteOfAJobThatTrains(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song")
	check(t, err)
	s.end(t, "", map[string]string{"step": "7"})
	s.held = "/jobs/song-worker"
	s.changes()
	_ = s.Delete(t.Context(), "song", Delete{Force: true, Timeout: time.Second,
		Say: func(string) {}})
	changes := s.changes()
	for _, want := range []string{"DELETE pods/", "DELETE deployments/song-coordinator",
		"DELETE jobs/song-worker"} {
		if !slices.Contains(changes, want) {
			t.Errorf("while the workers end: %q without %s", changes, want)
		}
	}
}

// An object that lingers does not keep the others from being deleted meanwhile.
func TestDeleteIsAllAtOnce(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--etcd=127.0.0.1:1", "--insecure")
	check(t, err)
	s.held = "/deployments/song-coordinator"
	wants(t, s.Delete(t.Context(), "song", Delete{Timeout: 2 * time.Second,
		Say: func(string) {}}), "deployment/song-coordinator still waits")
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.objects {
		if strings.Contains(path, "/song-") && !strings.HasSuffix(path, s.held) {
			t.Errorf("%s is left", path)
		}
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
	if changes := s.changes(); !slices.Contains(changes, claim) ||
		!slices.Contains(changes, "DELETE pods/") {
		t.Errorf("a deleted etcd's claim stays, or its members take their time: %q", changes)
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
	listed, err := s.Statuses(t.Context(), false)
	check(t, err)
	if len(listed) != 1 || listed[0].Phase != phaseDeleting {
		t.Errorf("it is listed as %+v", listed)
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
	err = s.Delete(t.Context(), "song", Delete{Timeout: 3 * time.Second,
		Say: func(string) {}})
	wants(t, err, "job song is not gone after 3s")
	wants(t, err, "job/song-worker still waits for its pods to end: of one whose node is lost")
}
