package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// goneTimeout is for the cluster to remove what a deleted object owns.
const goneTimeout = 2 * time.Minute

// alone are the flags of a job with one coordinator and one member of etcd.
const alone = "--ha=false"

// left are the namespace's objects that rondo has made, by kind/name.
func (n *namespace) left() []string {
	n.t.Helper()
	out, err := n.try("", "get", "job,pod,deployment,statefulset,service,secret,configmap,role,"+
		"rolebinding,serviceaccount,networkpolicy,poddisruptionbudget,persistentvolumeclaim",
		"-l", "app.kubernetes.io/name=rondo", "-o", "name")
	if err != nil {
		n.t.Logf("what is left: %v", err)
		return []string{"unknown"}
	}
	return strings.Fields(out)
}

// awaitLeft waits until nothing of rondo is left in the namespace but these objects.
func (n *namespace) awaitLeft(after string, want ...string) {
	n.t.Helper()
	var left []string
	took := until(n.t, goneTimeout, "what is left after "+after, func() bool {
		left = n.left()
		return strings.Join(left, " ") == strings.Join(want, " ")
	})
	n.t.Logf("%s: %d objects are left after %s", after, len(want), seconds(took))
}

// TestLife: a small job has one coordinator and one member of etcd. Some time after its end only
// its record is left, which status reads and resume goes on from; kubectl's deletion of the Job
// removes all that runs, and that of the record everything.
func TestLife(t *testing.T) {
	c := connect(t)
	c.cut(t) // the volume is made by it
	n := c.namespace(t, "life")
	n.ledgers()
	j := n.submit("song", small("--steps", "60"), "--workers", "2", alone, "--checkpoint-dir",
		"pvc://"+ledgerClaim+"/song", "--checkpoint-every", "20", "--ttl-after-finished", "5s")
	t.Logf("rondo submit: %s", seconds(time.Since(j.submitted)))
	if pods := n.pods("app.kubernetes.io/component in (coordinator, etcd)"); len(pods) > 2 {
		t.Errorf("%d pods beside two workers", len(pods))
	}
	n.awaitLeft("--ttl-after-finished 5s", "configmap/song-record")
	out, err := j.tell("status")
	for _, words := range []string{"song in namespace", "ended", "60 of 60", "pvc://" + ledgerClaim} {
		if err != nil || !strings.Contains(out, words) {
			t.Errorf("rondo status does not say %q: %v\n%s", words, err, out)
		}
	}
	events := n.do("get", "events", "--field-selector", "involvedObject.name=song-worker", "-o",
		"custom-columns=REASON:.reason,TEXT:.message", "--no-headers")
	for _, reason := range []string{"RingFormed", "CheckpointSaved", "Done"} {
		if !strings.Contains(events, reason) {
			t.Errorf("no event %s:\n%s", reason, events)
		}
	}
	n.checkModel("song", 60)

	if out, err := j.tell("resume", "--steps", "100000", "--inject", paced); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.do("delete", "job", "song-worker", "--wait=false")
	n.awaitLeft("kubectl delete job", "configmap/song-record")
	if out, err := j.tell("resume", "--steps", "100000", "--inject", paced); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.do("delete", "configmap", "song-record", "--wait=false")
	n.awaitLeft("kubectl delete configmap")
}

// checkModel fetches a job's checkpoint from its claim, and has a model write from there.
func (n *namespace) checkModel(job string, step int64) {
	n.t.Helper()
	dir := n.t.TempDir()
	start := time.Now()
	out, err := rondo(n.t, "checkpoint", "pull", "--job", job, "-n", n.name, dir)
	at := filepath.Join(dir, fmt.Sprintf("step-%08d", step))
	if err != nil || !strings.Contains(out, at) {
		n.t.Fatalf("rondo checkpoint pull: %v\n%s", err, out)
	}
	n.t.Logf("rondo checkpoint pull: %s", seconds(time.Since(start)))
	if _, err := os.Stat(filepath.Join(at, "model.safetensors")); err != nil {
		n.t.Error(err)
	}
	flags := []string{"generate", "--prefix", "the ", "--tokens", "30", "--greedy"}
	here, err := rondo(n.t, append(flags, "--checkpoint", at)...)
	if err != nil {
		n.t.Fatal(err)
	}
	there, err := rondo(n.t, append(flags, "--checkpoint", "pvc://"+ledgerClaim+"/"+job,
		"--namespace", n.name)...)
	if err != nil || there != here {
		n.t.Errorf("from the claim the model writes %q (%v), from here %q", there, err, here)
	}
}

// TestNamespaceGoes: a namespace whose job trains and has lost a worker is gone when kubectl
// deletes it.
func TestNamespaceGoes(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "goes")
	j := n.submit("song", small("--steps", "100000"), "--workers", "3", "--inject", paced)
	n.do("delete", "pod", j.pods(j.selector("worker"))[0].Name, "--grace-period=0", "--force")
	j.awaitRing(2)
	start := time.Now()
	n.do("delete", "namespace", n.name, "--wait=false")
	until(t, goneTimeout, "the namespace gone", func() bool {
		_, err := n.client.CoreV1().Namespaces().Get(context.Background(), n.name,
			metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	t.Logf("kubectl delete namespace: %s", seconds(time.Since(start)))
}

// TestUserOfRole: a person with Role rondo-user alone submits a job, tries one with
// --dry-run=server, and deletes it.
func TestUserOfRole(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "user")
	text, err := os.ReadFile("../../k8s/user.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n.apply(strings.Replace(string(text), "namespace: rondo", "namespace: "+n.name, 1))
	n.do("create", "serviceaccount", "person")
	n.do("create", "rolebinding", "person", "--role=rondo-user",
		"--serviceaccount="+n.name+":person")
	as := n.kubeconfigOf("person")
	flags := append([]string{"--job", "song", "--kubeconfig", as, "-n", n.name,
		"--image", n.ours(t), "--etcd-storage", "ephemeral", "--cpus-per-worker", "250m",
		"--checkpoint-dir", "none", "--workers", "2", alone}, small("--steps", "40")...)
	out, err := rondo(t, append([]string{"submit", "--dry-run=server"}, flags...)...)
	if err != nil || !strings.Contains(out, "job/song-worker would be applied") {
		t.Errorf("--dry-run=server: %v\n%s", err, out)
	}
	if left := n.left(); len(left) > 0 {
		t.Errorf("a dry run has made %q", left)
	}
	if out, err := rondo(t, append([]string{"submit"}, flags...)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = rondo(t, "delete", "--job", "song", "--kubeconfig", as, "-n", n.name, "--force")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	n.awaitLeft("rondo delete")
}

// kubeconfigOf returns a kubeconfig with the token of a service account.
func (n *namespace) kubeconfigOf(account string) string {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "kubeconfig")
	config, err := clientcmd.Load([]byte(n.do("config", "view", "--raw", "--minify", "--flatten")))
	if err != nil {
		n.t.Fatal(err)
	}
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{
		account: {Token: strings.TrimSpace(n.do("create", "token", account))},
	}
	config.Contexts[config.CurrentContext].AuthInfo = account
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		n.t.Fatal(err)
	}
	return file
}
