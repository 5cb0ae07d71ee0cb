package kube

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// owners returns the names of an object's owners.
func (s *apiServer) owners(t *testing.T, named string) []string {
	t.Helper()
	var names []string
	for _, o := range s.object(t, named).GetOwnerReferences() {
		names = append(names, strings.ToLower(o.Kind)+"/"+o.Name)
	}
	return names
}

// all returns the namespace's objects as resource/name.
func (s *apiServer) all() map[string]*unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]*unstructured.Unstructured{}
	for path, object := range s.objects {
		if _, named, in := strings.Cut(path, "/namespaces/music/"); in {
			found[named] = &unstructured.Unstructured{Object: object}
		}
	}
	return found
}

// collect deletes what has owners of which none exists, as a cluster does.
func (s *apiServer) collect() {
	for again := true; again; {
		again = false
		uids := map[string]bool{}
		for _, object := range s.all() {
			uids[string(object.GetUID())] = true
		}
		for named, object := range s.all() {
			owners := object.GetOwnerReferences()
			if len(owners) == 0 || slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool {
				return uids[string(o.UID)]
			}) {
				continue
			}
			s.remove(named)
			again = true
		}
	}
}

// remove deletes an object alone, as kubectl does in the background.
func (s *apiServer) remove(named string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.objects {
		if strings.HasSuffix(path, "/namespaces/music/"+named) {
			delete(s.objects, path)
		}
	}
}

// TestOneDeletionRemovesAll: whoever deletes the Job removes all that runs, whoever deletes the
// record everything, and etcd goes with the last job. The record stays for status and resume.
func TestOneDeletionRemovesAll(t *testing.T) {
	for _, tls := range []string{"--insecure", "--insecure=false"} {
		s := serveAPI(t)
		_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models", tls)
		check(t, err)
		s.startEtcd()
		_, err = s.submit(t, "--job=other", "--checkpoint-dir=pvc://models", tls)
		check(t, err)
		if got := s.owners(t, "statefulsets/rondo-etcd"); !slices.Equal(got,
			[]string{"job/song-worker", "job/other-worker"}) {
			t.Errorf("etcd is owned by %q", got)
		}
		if got := s.owners(t, "jobs/song-worker"); !slices.Equal(got,
			[]string{"configmap/song-record"}) {
			t.Errorf("the Job is owned by %q", got)
		}
		s.remove("jobs/song-worker")
		s.collect()
		for named, object := range s.all() {
			if object.GetLabels()[labelJob] == "song" && named != "configmaps/song-record" {
				t.Errorf("%s: %s is left without the Job", tls, named)
			}
		}
		s.object(t, "statefulsets/rondo-etcd") // it serves the other job
		s.remove("configmaps/other-record")
		s.remove("configmaps/song-record")
		s.remove("pods/rondo-etcd-0") // its StatefulSet owns it
		s.collect()
		if left := s.all(); len(left) > 0 {
			t.Errorf("%s: %d objects are left: %v", tls, len(left), left)
		}
	}
}

// TestResumeKeepsEtcd: the shared objects outlive the Job that a resumption replaces.
func TestResumeKeepsEtcd(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--steps=100")
	check(t, err)
	s.startEtcd()
	s.end(t, "Complete", map[string]string{"phase": "ended", "step": "50"})
	before := s.object(t, "services/rondo-etcd").GetUID()
	check(t, s.resume(t, "--steps=200"))
	s.collect()
	if after := s.object(t, "services/rondo-etcd"); after.GetUID() != before {
		t.Error("etcd was made anew")
	}
	s.object(t, "secrets/song-rondo-worker-tls")
	if got := s.owners(t, "services/rondo-etcd"); !slices.Equal(got, []string{"job/song-worker"}) {
		t.Errorf("etcd is owned by %q", got)
	}
}

// TestSharedGoesMeanwhile: a submission fails if the namespace's etcd goes with its last job after
// the submission has found it.
func TestSharedGoesMeanwhile(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--insecure")
	check(t, err)
	s.startEtcd()
	s.refuse = func(request string) *apierrors.StatusError {
		if request == "PATCH jobs/other-worker" {
			delete(s.objects, "/apis/apps/v1/namespaces/music/statefulsets/rondo-etcd")
		}
		return nil
	}
	_, err = s.submit(t, "--job=other", "--checkpoint-dir=pvc://models", "--insecure")
	wants(t, err, "rondo-etcd was deleted while it was applied")
}
