package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Commands for Kubernetes on a machine that knows no cluster.
func TestNoCluster(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	code, out, complaint := rondo(t, "submit", "--dry-run", "-n", "music", "--job", "song")
	if code != 0 || !strings.Contains(out, "name: song-worker\n  namespace: music\n") ||
		!strings.HasPrefix(complaint, "note: without --checkpoint-dir") {
		t.Errorf("--dry-run: exit code %d, %d bytes, %q", code, len(out), complaint)
	}
	for line, want := range map[string]string{
		"submit":                              "1 rondo submit: no Kubernetes cluster is known",
		"resume":                              "1 rondo resume: no Kubernetes cluster is known",
		"delete":                              "1 rondo delete: no Kubernetes cluster is known",
		"submit --dry-run=server":             "1 rondo submit: no Kubernetes cluster is known",
		"submit --dry-run=often":              "2 rondo submit: --dry-run \"often\" is not one of",
		"submit --kubeconfig=x":               "2 rondo submit: --kubeconfig: stat x",
		"submit --dry-run --context=x":        "2 rondo submit: --context x: the kubeconfig has no",
		"submit --dry-run --device=cuda":      "2 rondo submit: --device cuda needs",
		"submit --dry-run --checkpoint-dir=x": "2 rondo submit: --checkpoint-dir x is lost",
		"submit --dry-run -n Bad":             "2 rondo submit: --namespace \"Bad\" is no name",
		"scale 3":                             "1 rondo scale: no Kubernetes cluster is known",
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

// TestHelpHasTwoGroups: what a newcomer needs is not among the job's many; resume shows no defaults
// that it does not use.
func TestHelpHasTwoGroups(t *testing.T) {
	for _, command := range []*cobra.Command{submitCommand(), resumeJobCommand()} {
		cluster, job, _ := strings.Cut(command.UsageString(), "The job, as for rondo train:\n")
		for _, flag := range []string{"--image ", "--namespace ", "--wait "} {
			if !strings.Contains(cluster, flag) || strings.Contains(job, flag) {
				t.Errorf("%s: %s is not of Kubernetes", command.Name(), flag)
			}
		}
		for _, flag := range []string{"--beta1 ", "--corpus string", "pvc://CLAIM/PATH"} {
			if strings.Contains(cluster, flag) || !strings.Contains(job, flag) {
				t.Errorf("%s: %s is not of the job", command.Name(), flag)
			}
		}
		if resumes := command.Name() == "resume"; strings.Contains(job, "(default ") == resumes {
			t.Errorf("%s: defaults of the job are shown: %v", command.Name(), !resumes)
		}
	}
}
