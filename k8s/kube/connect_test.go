package kube

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/internal/app"
	"rondo/internal/port"
)

// kubeconfig writes a file with one context per name, whose server has that host name.
func kubeconfig(t *testing.T, file string, current string, names ...string) string {
	t.Helper()
	var clusters, contexts strings.Builder
	for _, n := range names {
		fmt.Fprintf(&clusters, "- {name: %s, cluster: {server: \"https://%s:6443\"}}\n", n, n)
		fmt.Fprintf(&contexts, "- {name: %s, context: {cluster: %s, namespace: of-%s}}\n", n, n, n)
	}
	path := filepath.Join(t.TempDir(), file)
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: %q\nclusters:\n%scontexts:"+
		"\n%s", current, clusters.String(), contexts.String())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// connect runs a command line with the flags of a cluster.
func connect(t *testing.T, args ...string) (*Cluster, error) {
	t.Helper()
	c := &cobra.Command{}
	open := AddFlags(c)
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return open()
}

func TestConnect(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	one, two := kubeconfig(t, "one", "a", "a", "b"), kubeconfig(t, "two", "", "c")
	t.Setenv("KUBECONFIG", one+string(filepath.ListSeparator)+two)
	for name, c := range map[string]struct {
		args                     []string
		host, namespace, context string
		back                     string // the flags that lead other commands there, too
	}{
		"current": {nil, "https://a:6443", "of-a", "a", ""},
		"the second file": {[]string{"--context", "c"}, "https://c:6443", "of-c", "c",
			" --context c"},
		"a namespace": {[]string{"-n", "x"}, "https://a:6443", "x", "a", " -n x"},
		"a file": {[]string{"--kubeconfig", two, "--context=c", "--namespace=y"},
			"https://c:6443", "y", "c", " -n y --kubeconfig " + two + " --context c"},
	} {
		k, err := connect(t, c.args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if k.Config.Host != c.host || k.Namespace != c.namespace || k.Context != c.context {
			t.Errorf("%s: %s, %s, %s", name, k.Config.Host, k.Namespace, k.Context)
		}
		got := k.command("resume", "song", "--workers 3")
		if want := "rondo resume --job song" + c.back + " --workers 3"; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if got := k.in(k.Namespace).command("status", ""); got != "rondo status"+c.back {
			t.Errorf("%s: %s", name, got)
		}
		if got := k.in("z").command("status", ""); !strings.Contains(got, " -n z") {
			t.Errorf("in another namespace than %s: %s", name, got)
		}
	}
}

func TestNoConnection(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	one := kubeconfig(t, "one", "gone", "a")
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env, want string
		usage     bool
		args      []string
	}{
		"nothing": {"", "no kubeconfig (KUBECONFIG", false, nil},
		"no such file": {"", "--kubeconfig: stat /nowhere", true,
			[]string{"--kubeconfig=/nowhere"}},
		"no such context": {one, "--context z: the kubeconfig has no such", true,
			[]string{"--context=z"}},
		"current is gone": {one, "give --context NAME", false, nil},
		"broken":          {broken, "the kubeconfig cannot be used", false, nil},
	} {
		t.Setenv("KUBECONFIG", c.env)
		_, err := connect(t, c.args...)
		var usage *app.UsageError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err,
			&usage) != c.usage {
			t.Errorf("%s: %v, usage %v", name, err, errors.As(err, &usage))
		}
	}
}

// What a person reads when the server is not there, or is somebody else's.
func TestUnreachable(t *testing.T) {
	list := func(host string) error {
		t.Helper()
		one := kubeconfig(t, "one", "a", "a")
		k, err := connect(t, "--kubeconfig", one)
		if err != nil {
			t.Fatal(err)
		}
		k.Config.Host = host
		if k, err = newCluster(k.Config, "x", "a"); err != nil {
			t.Fatal(err)
		}
		_, err = k.Client.CoreV1().Pods("x").List(t.Context(), metav1.ListOptions{})
		return Explain(err, "listing pods")
	}
	nobody := port.ForTest(t).Address()
	strange := httptest.NewUnstartedServer(http.NotFoundHandler())
	strange.Config.ErrorLog = log.New(io.Discard, "", 0)
	strange.StartTLS()
	defer strange.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for host, want := range map[string]string{
		"https://" + nobody:         ": connection refused: is it the right cluster",
		"https://nowhere.invalid:1": "lookup nowhere.invalid",
		strange.URL:                 "shows a certificate that the kubeconfig does not trust",
		strings.Replace(plain.URL, "http", "https", 1): "server gave HTTP response to HTTPS client",
		plain.URL: "the cluster has no such resource",
	} {
		err := list(host)
		if err == nil || !strings.HasPrefix(err.Error(), "listing pods: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", host, err)
		}
	}
}
