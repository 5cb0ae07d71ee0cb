package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/internal/app"
	"rondo/k8s/kube"
)

func pointer[T any](value T) *T { return &value }

// now is when the tests look.
func now() time.Time { return time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC) }

// book is a job that trains.
func book() kube.JobStatus {
	return kube.JobStatus{Job: "book", Namespace: "here", Phase: "running",
		Reason: "more workers have appeared; 2 workers go on", Ring: 2, Wanted: 3, Generation: 4,
		Step: 100, TotalSteps: 400, Epoch: 2, Loss: pointer(1.5), Perplexity: pointer(4.4817),
		TokensPerSecond: pointer(21000.0), Checkpoint: "s3://books/book/step-80",
		CheckpointStep: 80, Created: now().Add(-time.Hour),
		Updated: pointer(now().Add(-3 * time.Second))}
}

// bookInDetail is the same, with its pods and a problem.
func bookInDetail() kube.JobStatus {
	s := book()
	s.Detail = &kube.Detail{SecondsLeft: pointer(90.0), Leader: "book-coordinator-a",
		Coordinators: []kube.PodStatus{{Pod: "book-coordinator-a", Ready: true},
			{Pod: "book-coordinator-b"}},
		Etcd: &kube.Ready{Ready: 3, Of: 3},
		Workers: []kube.PodStatus{
			{Index: pointer(0), Rank: pointer(1), Lanes: []int{3, 6}, Pod: "book-worker-0-x",
				Node: "node-a", Phase: "Running", Ready: true, Created: now().Add(-time.Hour),
				Memory: "1Gi"},
			{Index: pointer(1), Rank: pointer(0), Lanes: []int{0, 3}, Pod: "book-worker-1-y",
				Node: "node-b", Phase: "Running", Ready: true, Restarts: 1,
				Created: now().Add(-time.Minute), Memory: "1Gi", LastEnd: "out of memory"},
			{Index: pointer(2), Pod: "book-worker-2-z", Phase: "Pending",
				Created: now().Add(-time.Minute), Memory: "1Gi"}},
		Problems: []kube.Problem{{Object: "pod/book-worker-2-z", Text: "no node has room for it",
			Remedy: "ask for less"}}}
	return s
}

func TestStatusOfOneJob(t *testing.T) {
	var out strings.Builder
	if err := (statusOptions{}).printStatus(&out, bookInDetail(), now()); err != nil {
		t.Fatal(err)
	}
	want := `job book in namespace here: running, 2 of 3 workers in the ring, generation 4
  reason       more workers have appeared; 2 workers go on
  step         100 of 400 (epoch 2), loss 1.500, perplexity 4.48, 21k tokens/s, 90s left
  checkpoint   step 80, s3://books/book/step-80
  age          60m, heard of 3s ago
  coordinators 1 of 2 ready, led by book-coordinator-a
  etcd         3 of 3 members ready

INDEX  RANK  LANES   POD              NODE    PHASE    READY  RESTARTS  AGE  MEMORY  LAST END
0      1     [3, 6)  book-worker-0-x  node-a  Running  yes    0         60m  1Gi     -
1      0     [0, 3)  book-worker-1-y  node-b  Running  yes    1         60s  1Gi     out of memory
2      -     -       book-worker-2-z  -       Pending  no     0         60s  1Gi     -

problems:
  pod/book-worker-2-z: no node has room for it
    remedy: ask for less
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// With -o wide the table has more columns, and whole reasons.
func TestStatusOfAllJobsWide(t *testing.T) {
	waiting := kube.JobStatus{Job: "air", Phase: "pending", Wanted: 4, Queue: "team",
		Reason: strings.Repeat("long ", 20), Created: now().Add(-time.Second)}
	o := statusOptions{format: formatWide}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := o.print(&out, []kube.JobStatus{waiting, book()}, false, now()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"EPOCH  GENERATION  HEARD  QUEUE  CHECKPOINT"},
		{"team", waiting.Reason},
		{"2      4           3s     -      80, s3://books/book/step-80"},
	} {
		for _, words := range want {
			if !strings.Contains(lines[i], strings.TrimSpace(words)) {
				t.Errorf("line %d lacks %q:\n%s", i, words, out.String())
			}
		}
	}
}

// silent is the same job, without a report for a while.
func silent() kube.JobStatus {
	s := book()
	s.Phase, s.Reason, s.Ring, s.TokensPerSecond = "unknown", "last heard 53s ago", 0, nil
	s.Updated = pointer(now().Add(-53 * time.Second))
	return s
}

// TestStatusThatIsUnknown claims nothing of the present.
func TestStatusThatIsUnknown(t *testing.T) {
	var out, list strings.Builder
	if err := (statusOptions{}).printStatus(&out, silent(), now()); err != nil {
		t.Fatal(err)
	}
	want := `job book in namespace here: unknown, last heard 53s ago
  step         100 of 400 (epoch 2), loss 1.500, perplexity 4.48
  checkpoint   step 80, s3://books/book/step-80
  age          60m, heard of 53s ago
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	err := (statusOptions{}).printStatuses(&list, []kube.JobStatus{silent()}, now())
	if err != nil {
		t.Fatal(err)
	}
	want = `JOB   PHASE    WORKERS  STEP     LOSS/PPL    TOKENS/S  AGE  REASON
book  unknown  ?/3      100/400  1.500/4.48  -         60m  last heard 53s ago
`
	if list.String() != want {
		t.Errorf("got\n%s\nwant\n%s", list.String(), want)
	}
}

func TestStatusOfAllJobs(t *testing.T) {
	waiting := kube.JobStatus{Job: "air", Namespace: "there", Phase: "pending", Wanted: 4,
		Reason: strings.Repeat("long ", 20), Created: now().Add(-time.Second)}
	var out strings.Builder
	everywhere := statusOptions{everywhere: true}
	err := everywhere.printStatuses(&out, []kube.JobStatus{waiting, book()}, now())
	if err != nil {
		t.Fatal(err)
	}
	reason := strings.Repeat("long ", 13) + "long…"
	want := `NAMESPACE  JOB   PHASE    WORKERS  STEP     LOSS/PPL    TOKENS/S  AGE  REASON
there      air   pending  0/4      -        -           -         1s   ` + reason + `
here       book  running  2/3      100/400  1.500/4.48  21k       60m  ` + book().Reason + "\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestStatusThatIsWatched: without a terminal, each change is printed once.
func TestStatusThatIsWatched(t *testing.T) {
	var out strings.Builder
	view := newStatusView(&out, statusOptions{})
	next := bookInDetail()
	next.Step, next.Detail.Problems = 200, nil
	for _, s := range []kube.JobStatus{bookInDetail(), bookInDetail(), next} {
		if err := view.show([]kube.JobStatus{s}, true, now()); err != nil {
			t.Fatal(err)
		}
	}
	const line = "04:00:00 job book: "
	want := line + "more workers have appeared; 2 workers go on\n" +
		line + "pod/book-worker-2-z: no node has room for it; ask for less\n" +
		line + "running, 2 of 3 workers in the ring, generation 4, step 100 of 400, loss 1.500, " +
		"perplexity 4.48, 21k tokens/s\n" +
		line + "running, 2 of 3 workers in the ring, generation 4, step 200 of 400, loss 1.500, " +
		"perplexity 4.48, 21k tokens/s\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestStatusOfNoJob: the message names the place, since that may be wrong.
func TestStatusOfNoJob(t *testing.T) {
	for everywhere, want := range map[bool]string{
		false: "namespace typo (context c) has no jobs: rondo submit starts one, --all-namespaces",
		true:  "no namespace has a job: rondo submit starts one",
	} {
		var out strings.Builder
		o := statusOptions{place: "namespace typo (context c)", everywhere: everywhere}
		if err := o.print(&out, nil, false, now()); err != nil ||
			!strings.HasPrefix(out.String(), want) {
			t.Errorf("everywhere %v: %v, %s", everywhere, err, &out)
		}
	}
}

// apiServer is one that holds a Job and nothing else; it returns the flags that lead to it.
func apiServer(t *testing.T, job *batchv1.Job) []string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any = map[string]any{"kind": "List", "apiVersion": "v1", "items": []any{}}
		switch {
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done() // nothing changes
			return
		case strings.HasSuffix(r.URL.Path, "/jobs"):
			answer = batchv1.JobList{Items: []batchv1.Job{*job},
				TypeMeta: metav1.TypeMeta{Kind: "JobList", APIVersion: "batch/v1"}}
		case strings.Contains(r.URL.Path, "/deployments/"),
			strings.Contains(r.URL.Path, "/statefulsets/"):
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- {name: c, cluster: " +
		"{server: \"" + server.URL + "\"}}\ncontexts:\n- {name: c, context: {cluster: c}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--kubeconfig", path, "-n", "here"}
}

// endedJob is a job that trained and has ended, or has not reported since.
func endedJob(kind batchv1.JobConditionType) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "book-worker", Namespace: "here",
		Labels: map[string]string{"app.kubernetes.io/name": "rondo",
			"app.kubernetes.io/component": "worker", "rondo.dev/job": "book"},
		Annotations: map[string]string{"rondo.dev/phase": "running",
			"rondo.dev/updated": "2026-01-02T03:04:05Z"}},
		Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: kind,
			Status: corev1.ConditionTrue, Message: "the reason"}}}}
}

// TestStatusCommand: the end of the job ends the watching, and is its exit code.
func TestStatusCommand(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, c := range []struct {
		args  []string
		ended batchv1.JobConditionType
		code  int
		out   string
		wrong string
	}{
		{[]string{"--watch"}, batchv1.JobComplete, 0, "job book: ended, 0 of 1 workers", ""},
		{[]string{"--watch"}, batchv1.JobFailed, 1, "job book: failed, 0 of 1 workers", ""},
		{nil, batchv1.JobFailed, 1, "job book in namespace here: failed", ""},
		{nil, batchv1.JobComplete, 0, "job book in namespace here: ended", ""},
		{nil, "", 3, "job book in namespace here: unknown, last heard ", ""},
		{[]string{"-A"}, batchv1.JobFailed, 0, "NAMESPACE  JOB   PHASE", ""},
		{[]string{"-o", "json"}, batchv1.JobFailed, 1, `{"job":"book","namespace":"here"`, ""},
		{[]string{"-o", "yaml"}, batchv1.JobFailed, 1, "phase: failed\n", ""},
		{[]string{"-o", "xml"}, batchv1.JobFailed, 2, "",
			`--output "xml" is not json, yaml or wide`},
		{[]string{"-A", "--job", "book"}, batchv1.JobFailed, 2, "", "give --namespace with --job"},
	} {
		var out, wrong strings.Builder
		command := root()
		command.SetOut(&out)
		args := append(append([]string{"status"}, apiServer(t, endedJob(c.ended))...), c.args...)
		code := app.Run(ctx, command, args, &wrong)
		if code != c.code || !strings.Contains(out.String(), c.out) ||
			!strings.Contains(wrong.String(), c.wrong) {
			t.Errorf("%v of a job that is %s: %d\n%s%s", c.args, c.ended, code, &out, &wrong)
		}
	}
}
