package kube

import (
	"math"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kept is the submission that the cluster keeps of job song.
func (s *apiServer) kept(t *testing.T) *Submission {
	t.Helper()
	last, err := lastSubmission(t.Context(), s.Cluster, "song")
	check(t, err)
	return last
}

// Whichever request of a resumption fails, the job can be resumed again with all its options.
func TestResumeAfterAFailedResume(t *testing.T) {
	begin := func() *apiServer {
		s := serveAPI(t)
		_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models", "--steps=100",
			"--workers=3", "--labels=team=music")
		check(t, err)
		s.end(t, "Complete", map[string]string{"phase": "ended", "step": "50"})
		s.changes()
		return s
	}
	s := begin()
	check(t, s.resume(t, "--steps=200"))
	requests := slices.DeleteFunc(s.changes(), func(request string) bool {
		return !strings.Contains(request, "jobs/") && !strings.Contains(request, "configmaps/") &&
			!strings.Contains(request, "deployments/") // the others are applied among these
	})
	if len(requests) < 6 {
		t.Fatalf("resuming asks for %q", requests)
	}
	for _, failing := range requests {
		s := begin()
		s.refuse = func(request string) *apierrors.StatusError {
			if resource, _, _ := strings.Cut(request, "-spec-"); request == failing ||
				strings.HasPrefix(failing, resource+"-spec-") {
				return apierrors.NewConflict(schema.GroupResource{}, "x", nil)
			}
			return nil
		}
		if err := s.resume(t, "--steps=200"); err == nil {
			t.Errorf("%s: not refused", failing)
		}
		s.refuse = nil
		if err := s.resume(t, "--steps=200"); err != nil && !strings.HasPrefix(failing, "DELETE "+
			"configmaps/") { // by then the new run has begun
			t.Errorf("%s: %v", failing, err)
		}
		after := s.kept(t)
		if after.Labels["team"] != "music" || after.Spec["workers"] != "3" ||
			after.Spec["steps"] != "200" {
			t.Errorf("%s: resumed as %+v", failing, after)
		}
	}
}

// A run's number is above those before it, whatever the clock of who has submitted those.
func TestRunsAfterAClockThatWasFast(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song")
	check(t, err)
	last := s.kept(t)
	last.Run = math.MaxInt64 - 9
	spec := unstructured.Unstructured{}
	s.mu.Lock()
	for path, object := range s.objects {
		if strings.Contains(path, "/configmaps/song-spec-") {
			spec.Object = object
		}
	}
	err = last.keep(&spec)
	s.mu.Unlock()
	check(t, err)
	_, err = s.submit(t, "--job=song")
	check(t, err)
	next := s.kept(t)
	if next.Run != last.Run+1 {
		t.Errorf("run %d comes after run %d", next.Run, last.Run)
	}
}

// The progress of a JobSet is written to its Job: a run that was stopped while it was suspended has
// ended, although the JobSet's own status does not say so.
func TestAJobSetThatWasStoppedHasEnded(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--jobset", "--checkpoint-dir=pvc://models", "--steps=9")
	check(t, err)
	s.mu.Lock()
	set := s.objects["/apis/jobset.x-k8s.io/v1alpha2/namespaces/music/jobsets/song-worker"]
	set["spec"].(map[string]any)["suspend"] = true
	s.put("/apis/batch/v1/namespaces/music/jobs/song-worker-ring-0", map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{
			"name": "song-worker-ring-0", "annotations": map[string]any{
				annotations + "phase": "ended", annotations + "step": "9",
				annotations + "total-steps": "9"}}})
	s.mu.Unlock()
	wants(t, s.resume(t), "has done all its 9 steps")
	check(t, s.resume(t, "--steps=20"))
}
