package k8s

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// symptomTimeout bounds the time until the cluster notices a fault and `rondo status` shows it.
const symptomTimeout = 90 * time.Second

// complains checks that an error is one line that names the fault and the remedy.
func complains(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one with %q", words)
		return
	}
	f, ok := err.(*failure) //nolint:errorlint // never wrapped
	if !ok {
		t.Fatal(err)
	}
	// The lines before are progress; the last one is the error.
	last := f.stderr[strings.LastIndex(f.stderr, "\n")+1:]
	t.Logf("%s", last)
	if !strings.HasPrefix(last, "rondo submit: ") {
		t.Errorf("the error is not in the last line:\n%s", f.stderr)
	}
	for _, word := range words {
		if !strings.Contains(last, word) {
			t.Errorf("%q does not say %q", last, word)
		}
	}
}

// TestNoCluster: `rondo submit` without a cluster, or with one that does not answer.
func TestNoCluster(t *testing.T) {
	c := connect(t)
	t.Run("unknown", func(t *testing.T) {
		t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
		t.Setenv("HOME", t.TempDir())
		_, err := rondo(t, "submit", "--checkpoint-dir", "none")
		complains(t, err, "kubeconfig", "--kubeconfig")
	})
	t.Run("silent", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "config")
		config := clientConfig("https://127.0.0.1:1", "")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := rondo(t, "submit", "--kubeconfig", file, "--checkpoint-dir", "none")
		complains(t, err, "127.0.0.1:1")
	})
	t.Run("forbidden", func(t *testing.T) {
		n := c.namespace(t, "forbidden")
		_, err := rondo(t, "submit", "-n", n.name, "--kubeconfig", n.stranger(),
			"--checkpoint-dir", "none")
		complains(t, err, "rondo-test-forbidden", "may not")
	})
}

// stranger is the kubeconfig of a service account that may do nothing.
func (n *namespace) stranger() string {
	n.t.Helper()
	token, err := n.client.CoreV1().ServiceAccounts(n.name).CreateToken(n.t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	file := filepath.Join(n.t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(clientConfig(n.server(), token.Status.Token)),
		0o600); err != nil {
		n.t.Fatal(err)
	}
	return file
}

// server is the API server's address.
func (c *cluster) server() string {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return ""
	}
	return config.Host
}

func clientConfig(server, token string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, server, token)
}

// symptoms are jobs that cannot work: the objects before, the submission, and the shown problem.
var symptoms = []struct {
	name  string
	first string // objects
	flags []string
	words []string
}{
	{"image", "", []string{"--image", "localhost/rondo-nowhere:1"},
		[]string{"localhost/rondo-nowhere:1", "--image"}},
	{"claim", "", []string{"--corpus", "pvc://texts/a.txt"}, []string{"texts"}},
	{"unbound", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: texts}, spec: {` +
		`accessModes: [ReadWriteMany], storageClassName: none, resources: {requests: {storage: ` +
		`1Gi}}}}`, []string{"--corpus", "pvc://texts/a.txt"}, []string{"texts", "none"}},
	{"quota", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: little}, spec: {hard: {` +
		`requests.cpu: 1500m}}}`, []string{"--cpus-per-worker", "1"}, []string{"quota", "little"}},
	{"corpus", "", []string{"--corpus", "https://rondo.invalid/text.txt"}, []string{"--corpus"}},
	{"bucket", "", []string{"--corpus",
		"s3://models/none.txt?endpoint=http://s3:9000&use_path_style=true"},
		[]string{"none.txt"}},
}

// TestWrong: `rondo submit` refuses jobs that cannot work, or `rondo status` shows why.
func TestWrong(t *testing.T) {
	c := connect(t)
	image := c.ours(t)
	for _, wrong := range symptoms {
		t.Run(wrong.name, func(t *testing.T) {
			t.Parallel()
			n := c.namespace(t, "wrong-"+wrong.name)
			if wrong.first != "" {
				n.apply(wrong.first)
			}
			if wrong.name == "bucket" {
				n.s3("")
			}
			j := &job{namespace: n, name: "wrong"}
			args := []string{"--etcd-storage", "ephemeral", "--image", image, "--timeout", "40s",
				"--checkpoint-dir", "none"}
			start := time.Now()
			if _, err := j.tell("submit", slices.Concat(args, wrong.flags)...); err != nil {
				complains(t, err, wrong.words...)
				return
			}
			line := j.awaitLine(wrong.words)
			t.Logf("status, %s after submit: %s", seconds(time.Since(start)), line)
		})
	}
}

// awaitLine waits for a line of `rondo status` with all the words.
func (j *job) awaitLine(words []string) (line string) {
	j.t.Helper()
	out := ""
	start := time.Now()
	for time.Since(start) < symptomTimeout {
		out, _ = j.tell("status")
		for line := range strings.Lines(out) {
			missing := slices.ContainsFunc(words, func(word string) bool {
				return !strings.Contains(line, word)
			})
			if !missing {
				return strings.TrimSpace(line)
			}
		}
		time.Sleep(time.Second)
	}
	j.t.Fatalf("no line of the status says %q after %v:\n%s", words, symptomTimeout, out)
	return ""
}
