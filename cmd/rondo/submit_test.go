package main

import (
	"strings"
	"testing"
)

// Commands for Kubernetes on a machine that knows no cluster.
func TestNoCluster(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	code, out, complaint := rondo(t, "submit", "--dry-run", "-n", "music", "--job", "song",
		"--checkpoint-dir", "none")
	if code != 0 || !strings.Contains(out, "name: song-worker\n  namespace: music\n") ||
		!strings.HasPrefix(complaint, "note: without --checkpoint-dir") {
		t.Errorf("--dry-run: exit code %d, %d bytes, %q", code, len(out), complaint)
	}
	for line, want := range map[string]string{
		"submit":                              "1 rondo submit: no Kubernetes cluster is",
		"submit --dry-run":                    "2 rondo submit: --checkpoint-dir is needed",
		"resume":                              "1 rondo resume: no Kubernetes cluster is",
		"delete":                              "1 rondo delete: no Kubernetes cluster is",
		"submit --dry-run=server":             "1 rondo submit: no Kubernetes cluster is",
		"submit --dry-run=often":              "2 rondo submit: --dry-run \"often\" is not one of",
		"submit --kubeconfig=x":               "2 rondo submit: --kubeconfig: stat x",
		"submit --dry-run --context=x":        "2 rondo submit: --context x: the kubeconfig has no",
		"submit --dry-run --device=cuda":      "2 rondo submit: --device cuda needs",
		"submit --dry-run --checkpoint-dir=x": "2 rondo submit: --checkpoint-dir x is lost",
		"submit --dry-run -n Bad":             "2 rondo submit: --namespace \"Bad\" cannot name",
		"scale 3":                             "1 rondo scale: no Kubernetes cluster is",
		"resume --job=Song":                   "2 rondo resume: --job \"Song\" is no name",
		"delete --job=Song":                   "2 rondo delete: --job \"Song\" is no name",
	} {
		code, out, complaint := rondo(t, strings.Fields(line)...)
		if got := string(rune('0'+code)) + " " + complaint; !strings.HasPrefix(got, want) ||
			strings.Count(complaint, "\n") != 1 || out != "" {
			t.Errorf("%s: %q, %q", line, got, out)
		}
	}
}
