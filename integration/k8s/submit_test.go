package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pangram is a text that a small model learns by heart in seconds.
const pangram = "the quick brown fox jumps over the lazy dog. "

// TestSubmit: a job of four workers trains, saves to a bucket in the cluster, completes, and its
// model writes.
func TestSubmit(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "submit")
	bucket := n.s3("")
	corpus := filepath.Join(t.TempDir(), "fox.txt")
	if err := os.WriteFile(corpus, []byte(strings.Repeat(pangram, 300)), 0o600); err != nil {
		t.Fatal(err)
	}
	j := n.submit("fox", []string{"--corpus", corpus, "--hidden", "48", "--batch", "8", "--bptt",
		"16", "--layers", "1", "--optimizer", "adam", "--lr", "0.02", "--lr-schedule", "constant",
		"--validation-fraction", "0", "--steps", "400", "--sample-tokens", "0"},
		"--workers", "4", "--checkpoint-dir", bucket("fox"), "--checkpoint-every", "100")
	t.Logf("rondo submit: %s", seconds(time.Since(j.submitted)))
	j.awaitStep(submitTimeout, 1)
	t.Logf("from submit to the first step: %s", seconds(time.Since(j.submitted)))
	nodes := map[string]bool{}
	for _, pod := range j.pods(j.selector("worker")) {
		nodes[pod.Spec.NodeName] = true
	}
	if want := min(4, len(c.nodes(t))); len(nodes) < min(3, want) {
		t.Errorf("four workers run on %d of %d nodes", len(nodes), len(c.nodes(t)))
	}
	j.awaitEnd()
	t.Logf("from submit to the Job's completion: %s", seconds(time.Since(j.submitted)))
	j.checkAccount(400)
	out := j.inCluster("generate", "generate", "--checkpoint", bucket("fox"), "--prefix",
		"the quick ", "--tokens", "40", "--greedy")
	which, text, _ := strings.Cut(out, "\n") // a pod's log has both outputs
	if !strings.HasPrefix(which, "using step 400") || !strings.HasPrefix(text, pangram) {
		t.Errorf("the model writes %q", out)
	}
	out, err := j.tell("delete")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	until(t, commandTimeout, "no object of the job", func() bool {
		out, err := n.try("", "get", "job,deployment,configmap,role,networkpolicy", "-l",
			"rondo.dev/job=fox", "-o", "name")
		return err == nil && strings.TrimSpace(out) == ""
	})
}

// kubeJob is the job's Job.
func (j *job) kubeJob() *batchv1.Job {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	found, err := j.client.BatchV1().Jobs(j.namespace.name).Get(ctx, j.name+"-worker",
		metav1.GetOptions{})
	if err != nil {
		j.t.Fatal(err)
	}
	return found
}

// ended reports whether the Job has succeeded, or returns why it has failed.
func (j *job) ended() (complete bool, failed string) {
	j.t.Helper()
	for _, condition := range j.kubeJob().Status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case batchv1.JobComplete, batchv1.JobSuccessCriteriaMet:
			complete = true
		case batchv1.JobFailed, batchv1.JobFailureTarget:
			failed = condition.Reason + ": " + condition.Message
		}
	}
	return complete, failed
}

// checkAccount: an ended job has its end in its annotations, in its workers' termination messages
// and in `rondo status`.
func (j *job) checkAccount(steps int) {
	j.t.Helper()
	until(j.t, time.Minute, "the last progress in the Job's annotations", func() bool {
		return j.kubeJob().Annotations["rondo.dev/phase"] == "ended"
	})
	notes := j.kubeJob().Annotations
	if notes["rondo.dev/step"] != fmt.Sprint(steps) ||
		notes["rondo.dev/checkpoint-step"] != fmt.Sprint(steps) {
		j.t.Errorf("annotations: %v", notes)
	}
	said := 0
	for _, pod := range j.pods(j.selector("worker")) {
		for _, status := range pod.Status.ContainerStatuses {
			if end := status.State.Terminated; end != nil && end.ExitCode == 0 {
				if want := fmt.Sprintf("done after step %d", steps); !strings.Contains(end.Message,
					want) {
					j.t.Errorf("%s says %q, not %q", pod.Name, end.Message, want)
				}
				said++
			}
		}
	}
	if said == 0 {
		j.t.Error("no worker has exited with code 0")
	}
	out, err := j.tell("status")
	if err != nil || !strings.Contains(out, fmt.Sprint(steps)) {
		j.t.Errorf("rondo status: %v\n%s", err, out)
	}
}

// inCluster runs `rondo ARGS` in a pod with the bucket's credentials, and returns its output.
func (n *namespace) inCluster(name string, args ...string) string {
	n.t.Helper()
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = fmt.Sprintf("%q", arg)
	}
	n.apply(fmt.Sprintf(commandPod, name, n.ours(n.t), strings.Join(quoted, ", ")))
	var phase corev1.PodPhase
	until(n.t, commandTimeout, "pod "+name+" done", func() bool {
		pod, err := n.client.CoreV1().Pods(n.name).Get(context.Background(), name,
			metav1.GetOptions{})
		if err == nil {
			phase = pod.Status.Phase
		}
		return phase == corev1.PodSucceeded || phase == corev1.PodFailed
	})
	out := n.do("logs", name)
	if phase != corev1.PodSucceeded {
		n.t.Fatalf("rondo %s: %s", strings.Join(args, " "), out)
	}
	return out
}

const commandPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext:
    runAsNonRoot: true
    seccompProfile: {type: RuntimeDefault}
  containers:
  - name: rondo
    image: %s
    imagePullPolicy: IfNotPresent
    command: [/rondo]
    args: [%s]
    envFrom: [{secretRef: {name: rondo-s3, optional: true}}]
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts: [{name: tmp, mountPath: /tmp}]
  volumes: [{name: tmp, emptyDir: {}}]
`
