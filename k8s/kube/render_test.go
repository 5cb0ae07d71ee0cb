package kube

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the golden files anew")

// submission reads a command line.
func submission(t *testing.T, args ...string) (*Submission, error) {
	t.Helper()
	set := pflag.NewFlagSet("submit", pflag.ContinueOnError)
	flags := AddSubmissionFlags(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	s, err := flags.Submission(nil)
	if s != nil {
		s.Run = 1234567890
	}
	return s, err
}

func TestManifests(t *testing.T) {
	text := filepath.Join(t.TempDir(), "song.txt")
	if err := os.WriteFile(text, []byte("a rondo is a round\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"plain": {"--job=plain", "--workers=4", "--steps=100", "--insecure"},
		"volumes": {"--job=volumes", "--corpus", text, "--checkpoint-dir=pvc://models/volumes",
			"--insecure", "--audit-dir=pvc://models/audit", "--eval-corpus=configmap://texts/eval.txt",
			"--cpus-per-worker=1500m", "--memory-per-worker=2Gi", "--etcd-storage=fast:4Gi"},
		"s3": {"--job=s3", "--corpus=s3://texts/a.txt?endpoint=http://minio:9000",
			"--checkpoint-dir=s3://models/x?endpoint=http://minio:9000&use_path_style=true",
			"--s3-secret=keys", "--etcd=etcd.infra:2379,etcd2.infra:2380", "--queue=team",
			"--labels=team=music", "--insecure", "--s3-identity", "--s3-cidr=192.0.2.0/24"},
		"gpu": {"--job=gpu", "--gpus-per-worker=1", "--workers=8", "--min-workers=4", "--spot",
			"--image=registry.example:5000/rondo/cuda:7", "--image-pull-secret=pull",
			"--image-pull-policy=Always", "--node-selector=zone=a",
			"--toleration=gpus=mine:NoSchedule",
			"--checkpoint-dir=pvc://models", "--insecure"},
		"queued": {"--job=queued", "--jobset", "--queue=team", "--workers=4", "--min-workers=4",
			"--insecure"},
		"jobset": {"--job=set", "--jobset", "--etcd-storage=ephemeral",
			"--corpus=pvc://texts/a.txt", "--workers=3", "--image=other/rondo@sha256:" +
				"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := submission(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Render(t.Context(), s, "music")
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.YAML()
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "submit", name+".yaml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s differs from what is rendered: see `go test -update` and git diff",
					golden)
			}
		})
	}
}
