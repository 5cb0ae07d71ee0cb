package kube

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"rondo/k8s/kube/kubetest"
)

// recordWith is the record of job book with this submission.
func recordWith(submission string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "book-record", Namespace: "here",
		Labels: map[string]string{labelName: "rondo", labelComponent: Record,
			labelJob: "book"},
		Annotations: map[string]string{annotationSubmission: submission, annotationRun: "3"}}}
}

const bookSubmission = `{"image": "mine/rondo:7", "image-pull-policy": "Never", "run": 3,
	"image-pull-secret": "pull", "toleration": ["gpu:NoSchedule"],
	"spec": {"job": "book", "checkpoint_dir": "pvc://models/book"}}`

// pullFrom returns a pulling whose pods are at once in this state. It keeps the pods that are made.
func pullFrom(how Pull, status corev1.PodStatus, objects ...runtime.Object) (
	*pulling, *[]*corev1.Pod) {
	client := kubetest.New(objects...)
	made := &[]*corev1.Pod{}
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object,
		error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.Status = status
		*made = append(*made, pod)
		return false, nil, nil
	})
	how.Timeout = time.Minute
	return &pulling{Cluster: &Cluster{Client: client, Namespace: "here"}, how: how}, made
}

// TestPull: a pod with the job's image mounts the claim, sends the checkpoint, and is deleted.
func TestPull(t *testing.T) {
	for what, c := range map[string]struct {
		how     Pull
		command string
	}{
		"by the job": {Pull{Job: "book", Step: 40}, "/mnt/pvc/models/book --step=40"},
		"by the claim": {Pull{From: "pvc://models/book/step-1", Best: true},
			"/mnt/pvc/models/book/step-1 --best"},
	} {
		p, pods := pullFrom(c.how, corev1.PodStatus{Phase: corev1.PodRunning},
			recordWith(bookSubmission))
		p.stream = func(_ context.Context, pod string, command []string, out, _ io.Writer) error {
			if got := strings.Join(command, " "); got != "/rondo checkpoint send "+c.command ||
				pod != (*pods)[0].Name {
				t.Errorf("%s: %s in pod %s", what, got, pod)
			}
			_, err := io.WriteString(out, "the model")
			return err
		}
		check(t, p.run(t.Context(), func(r io.Reader) error {
			text, err := io.ReadAll(r)
			if string(text) != "the model" {
				t.Errorf("%s: received %q", what, text)
			}
			return err
		}))
		spec := (*pods)[0].Spec
		if c := spec.Containers[0]; c.Image != "mine/rondo:7" || c.ImagePullPolicy != "Never" ||
			!c.VolumeMounts[0].ReadOnly || c.VolumeMounts[0].MountPath != "/mnt/pvc/models" ||
			spec.Volumes[0].PersistentVolumeClaim.ClaimName != "models" ||
			spec.ImagePullSecrets[0].Name != "pull" || len(spec.Tolerations) != 1 ||
			spec.Tolerations[0].Key != "gpu" {
			t.Errorf("%s: the pod is %+v", what, spec)
		}
		left, err := p.Client.CoreV1().Pods("here").List(t.Context(), metav1.ListOptions{})
		if check(t, err); len(left.Items) > 0 {
			t.Errorf("%s: the pod is left", what)
		}
	}
}

// TestPullThatFails tells why, in a person's words, and leaves no pod.
func TestPullThatFails(t *testing.T) {
	running := corev1.PodStatus{Phase: corev1.PodRunning}
	gone := errors.New("command terminated with exit code 1")
	for want, c := range map[string]struct {
		how    Pull
		status corev1.PodStatus
		wrong  string
	}{
		"no checkpoint in pvc://models/book": {Pull{Job: "book"}, running,
			"rondo: no checkpoint in /mnt/pvc/models/book\n"},
		"fetching the checkpoint from pod rondo-pull-": {Pull{Job: "book"}, running, ""},
		"has ended: exit code 127": {Pull{Job: "book"}, corev1.PodStatus{Phase: corev1.PodFailed,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "pull", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 127}}}}}, ""},
		"nothing is known of job air":      {Pull{Job: "air"}, running, ""},
		"s3://x is not pvc://":             {Pull{From: "s3://x"}, running, ""},
		"job mute has no --checkpoint-dir": {Pull{Job: "mute"}, running, ""},
	} {
		mute := recordWith(`{"run": 1, "spec": {"job": "mute", "checkpoint_dir": "none"}}`)
		mute.Name, mute.Labels[labelJob] = "mute-record", "mute"
		p, _ := pullFrom(c.how, c.status, recordWith(bookSubmission), mute)
		p.stream = func(_ context.Context, _ string, _ []string, _, wrong io.Writer) error {
			_, err := io.WriteString(wrong, c.wrong)
			return errors.Join(gone, err)
		}
		wants(t, p.run(t.Context(), func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		}), want)
		left, err := p.Client.CoreV1().Pods("here").List(t.Context(), metav1.ListOptions{})
		if check(t, err); len(left.Items) > 0 {
			t.Errorf("%s: the pod is left", want)
		}
	}
}

// TestPullStopsAtError: if the checkpoint cannot be written here, the pod sends no more of it.
func TestPullStopsAtError(t *testing.T) {
	p, _ := pullFrom(Pull{Job: "book"}, corev1.PodStatus{Phase: corev1.PodRunning},
		recordWith(bookSubmission))
	p.stream = func(ctx context.Context, _ string, _ []string, _, _ io.Writer) error {
		<-ctx.Done() // a real stream drains what the pod sends
		return ctx.Err()
	}
	full := errors.New("the disk is full")
	if err := p.run(t.Context(), func(io.Reader) error { return full }); !errors.Is(err, full) {
		t.Error(err)
	}
}

// TestRecord: a job of which only the record is left is listed with its end, if the end is of the
// newest run.
func TestRecord(t *testing.T) {
	record := recordWith(bookSubmission)
	record.Annotations[annotations+"phase"], record.Annotations[annotations+"step"] = "ended", "40"
	record.Annotations[annotationEnded] = "2" // of the run before
	c := clusterOf(record)
	jobs, err := c.Jobs(t.Context(), false)
	if check(t, err); len(jobs) > 0 {
		t.Errorf("a run that has no end is listed: %+v", jobs[0].Workers)
	}
	record.Annotations[annotationEnded] = "3"
	c = clusterOf(record)
	s, err := c.Status(t.Context(), "book")
	check(t, err)
	if s.Phase != "ended" || s.Step != 40 || s.Wanted == 0 || len(s.Detail.Problems) > 0 {
		t.Errorf("the status is %+v, %+v", s, s.Detail)
	}
	wants(t, c.Stop(t.Context(), "book", Stop{}), "has ended")
}

// TestKeepEnd: the observer writes the end of the job into the record, and nothing of an earlier
// run stays there.
func TestKeepEnd(t *testing.T) {
	record, job := recordWith(bookSubmission), someJob(2, nil)
	job.Spec.Template.Annotations = map[string]string{annotationRun: "3"}
	record.Annotations[annotations+"checkpoint"] = "of the run before"
	c := clusterOf(record, job)
	j := c.WorkerJob(job.Name).WithRecord(record.Name)
	p := Progress{Phase: "running", Step: 39}
	check(t, j.Annotate(t.Context(), p, time.Now()))
	kept := func() map[string]string {
		now, err := c.Client.CoreV1().ConfigMaps("here").Get(t.Context(), record.Name,
			metav1.GetOptions{})
		check(t, err)
		return now.Annotations
	}
	if kept()[annotations+"step"] != "" {
		t.Error("a step of a job that runs is in the record")
	}
	p.Phase, p.Step = "ended", 40
	check(t, j.Annotate(t.Context(), p, time.Now()))
	got := kept()
	if _, stale := got[annotations+"checkpoint"]; stale || got[annotations+"step"] != "40" ||
		got[annotationEnded] != "3" || got[annotations+"phase"] != "ended" {
		t.Errorf("the record has %v", got)
	}
}

// TestLeave: the Job is ended with its namespace, and left alone otherwise.
func TestLeave(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
		if leaving {
			now := metav1.Now()
			namespace.DeletionTimestamp, namespace.Finalizers = &now, []string{"kubernetes"}
		}
		c, job := clusterOf(namespace, someJob(2, nil)), someJob(2, nil)
		check(t, c.WorkerJob(job.Name).Leave(t.Context()))
		now, err := c.Client.BatchV1().Jobs("here").Get(t.Context(), job.Name, metav1.GetOptions{})
		check(t, err)
		if ended := now.Spec.ActiveDeadlineSeconds != nil; ended != leaving {
			t.Errorf("its namespace is deleted: %v; the Job is ended: %v", leaving, ended)
		}
	}
}

// TestTell: an event names the Job by its identity, as `kubectl describe job` wants it.
func TestTell(t *testing.T) {
	job := someJob(2, nil)
	job.UID = "an-identity"
	c := clusterOf(job)
	j := c.WorkerJob(job.Name)
	check(t, j.Annotate(t.Context(), Progress{Phase: "running"}, time.Now()))
	check(t, j.Tell(t.Context(), Event{Warning: true, Reason: "WorkerLost",
		Text: strings.Repeat("long ", 1000)}, time.Now()))
	events, err := c.Client.CoreV1().Events("here").List(t.Context(), metav1.ListOptions{})
	check(t, err)
	if len(events.Items) != 1 {
		t.Fatalf("%d events", len(events.Items))
	}
	for range 2 { // by two observers
		check(t, j.Tell(t.Context(), Event{Reason: "Done", Once: "end-7"}, time.Now()))
	}
	e := events.Items[0]
	if e.InvolvedObject.UID != "an-identity" || e.InvolvedObject.Kind != "Job" ||
		e.Type != "Warning" || e.Reason != "WorkerLost" || len(e.Message) > maxEventText {
		t.Errorf("the event is %+v", e)
	}
}

// TestPassThrough: what a person asks of Kubernetes reaches the workers' pods, and what would break
// the job is refused.
func TestPassThrough(t *testing.T) {
	file := t.TempDir() + "/pod.yaml"
	overwrite(t, file, `
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
  - name: worker
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: keys, key: key}}}]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
`)
	_, object := render(t, "--pod-template="+file+" --env=A=1,2 --env=B=x=y --priority-class=high "+
		"--annotations=team.example/owner=me")
	text := string(encode(t, object("job/rondo-worker")))
	for _, want := range []string{`"nodeSelectorTerms"`, `"name":"scratch"`, `"secretKeyRef"`,
		`"mountPath":"/tmp"`, `{"name":"A","value":"1,2"}`, `{"name":"B","value":"x=y"}`,
		`"priorityClassName":"high"`, `"team.example/owner":"me"`, `"name":"ETCD"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the workers have no %s:\n%s", want, text)
		}
	}
	if text := string(encode(t, object("deployment/rondo-coordinator"))); strings.Contains(text,
		"scratch") || !strings.Contains(text, `"priorityClassName":"high"`) {
		t.Errorf("the coordinators are\n%s", text)
	}
	for wrong, content := range map[string]string{
		"is no part of a pod template": "spec: {affinty: {}}",
		"Rondo sets itself":            "metadata: {annotations: {rondo.dev/run: '7'}}",
		"at most 65536":                "# " + strings.Repeat("x", maxTemplate),
	} {
		overwrite(t, file, content)
		_, err := submission(t, "--pod-template="+file)
		wants(t, err, wrong)
	}
	for wrong, flag := range map[string]string{
		"is not NAME=VALUE":        "--env=1A=2",
		"is no name of an object":  "--priority-class=High Up",
		"no name of an annotation": "--annotations=a b=c",
		"choose another name":      "--annotations=rondo.dev/step=7",
	} {
		_, err := submission(t, flag)
		wants(t, err, wrong)
	}
	s, err := submission(t, "--env=ETCD=elsewhere:2379", "--checkpoint-dir=none")
	check(t, err)
	_, err = Render(t.Context(), s, "music")
	wants(t, err, "Rondo sets this variable itself")
}

// TestOutside: people see the paths that they have given.
func TestOutside(t *testing.T) {
	volumes := &mounts{}
	inside, err := volumes.place("--checkpoint-dir", "pvc://models/book", true)
	check(t, err)
	if got := Outside("saved to " + inside); got != "saved to pvc://models/book" {
		t.Error(got)
	}
	if !slices.ContainsFunc(volumes.mounts, func(m corev1.VolumeMount) bool {
		return strings.HasPrefix(inside, m.MountPath+"/")
	}) {
		t.Errorf("%s is not mounted", inside)
	}
}

func overwrite(t *testing.T, file, content string) {
	t.Helper()
	check(t, os.WriteFile(file, []byte(content), 0o600))
}

func encode(t *testing.T, object map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	check(t, err)
	return text
}
