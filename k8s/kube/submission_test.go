package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"rondo/internal/app"
	"rondo/job/jobspec"
)

// write makes a file of so many bytes.
func write(t *testing.T, name string, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Whatever cannot work on any cluster is a usage error before any is asked, and says what to do.
func TestRefusedSubmissions(t *testing.T) {
	large := write(t, "war.txt", strings.Repeat("war and peace\n", 70_000))
	for line, want := range map[string]string{
		"--job=Song":                       "small letters",
		"--job=9song":                      "beginning with a letter",
		"--job=" + strings.Repeat("a", 41): "leaves room for 40",
		"--image=a:b:c":                    "is no image",
		"--image-pull-policy=Sometimes":    "not one of Always",
		"--image-pull-secret=A_b":          "no name of an object",
		"--device=cuda":                    "needs --gpus-per-worker 1",
		"--device=cuda:0":                  "--device cuda:0 needs --gpus-per-worker 1",
		"--device=tpu":                     "is not one of auto, cpu, cuda, cuda:N",
		"--precision=fp16":                 "--precision fp16 needs GPUs: give --gpus-per-worker",
		"--gpus-per-worker=2":              "a worker computes on one GPU",
		"--gpus-per-worker=1 --device=cpu": "leave out one of the two",
		"--cpus-per-worker=many":           "is no size above 0",
		"--cpus-per-worker=0":              "is no size above 0",
		"--memory-per-worker=2":            "2Gi is two gibibytes",
		"--etcd=host --tls":                "is not host:port",
		"--etcd=host:1":                    "say by --tls or --insecure",
		"--tls --insecure":                 "leave out one of the two",
		"--s3-cidr=192.0.2.0":              "is no block of addresses",
		"--log-format=xml":                 "is not one of text, json",
		"--grace-period=soon":              "is no time of a second or more",
		"--grace-period=9ms":               "is no time of a second or more",
		"--etcd=host:0 --tls":              "is not host:port",
		"--etcd-storage=much":              "is not ephemeral, a size such as 2Gi, or CLASS:SIZE",
		"--labels=rondo.dev/job=x":         "Rondo sets these labels itself",
		"--labels=a=?":                     "is no label",
		"--node-selector=/=x":              "is no label",
		"--toleration=a=b:Sometimes":       "not one of NoSchedule",
		"--toleration==b":                  "is not KEY[=VALUE][:EFFECT]",
		"--queue=A":                        "no name of an object",
		"--checkpoint-dir=models":          "is lost with the pod that writes it",
		"--checkpoint-dir=/models":         "pvc://CLAIM/PATH",
		"--checkpoint-dir=file:///x":       "pvc://CLAIM/PATH",
		"--checkpoint-dir=pvc://A/x":       "is no name of a claim",
		"--checkpoint-dir=configmap://a/b": "is lost with the pod",
		"--checkpoint-dir=s3:///x":         "is not s3://BUCKET/PATH",
		"--corpus=nowhere.txt": "no such file or directory: give a file of this " +
			"machine",
		"--corpus=.":                       "is not a file",
		"--corpus=" + large:                "too much to travel with the job (at most 900 KiB)",
		"--corpus=configmap://a":           "is not configmap://NAME/KEY",
		"--corpus=https://texts.example/a": "cannot be read by pods: give a volume",
		"--audit-dir=s3://logs/x":          "give a volume, pvc://CLAIM/PATH",
		"--audit-dir=/x":                   "--audit-dir /x: logs are appended to",
		"--corpus=pvc://texts":             "is not pvc://CLAIM/PATH",
		"--corpus=pvc://texts/":            "is not pvc://CLAIM/PATH",
		"--audit-dir=logs":                 "pvc://CLAIM/PATH",
		"--batch=2 --workers=4":            "each worker needs at least one lane",
		"--config=nowhere.yaml":            "--config: open nowhere.yaml",

		"--tls --etcd=e:1 --etcd-storage=1Gi": "leave out one of the two",

		"--gpus-per-worker=1 --device=cuda:1": "a pod sees no GPU but its own",

		"--corpus=s3://a/b?endpoint=c:70000": "the port of endpoint is not 1 to 65535",

		"--checkpoint-every=5 --checkpoint-dir=none": "--checkpoint-dir is none",
	} {
		s, err := submission(t, strings.Fields(line)...)
		if err == nil {
			_, err = Render(t.Context(), s, "music")
		}
		var usage *app.UsageError
		var wrong *jobspec.UsageError
		if err == nil || !strings.Contains(err.Error(), want) ||
			!errors.As(err, &usage) && !errors.As(err, &wrong) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Flags count more than the file, the file more than what Kubernetes makes the better default.
func TestSubmissionLayers(t *testing.T) {
	file := write(t, "job.yaml", "steps: 7\nring-order: adjacent\nlrSchedule: cosine\n"+
		"seed: 18446744073709551615\nhidden: 64\n")
	s, err := submission(t, "--config", file, "--hidden=128", "--cpus-per-worker=1500m")
	check(t, err)
	spec, err := s.job()
	check(t, err)
	if spec.Steps != 7 || spec.Hidden != 128 || spec.RingOrder != "adjacent" ||
		spec.LrSchedule != "cosine" || spec.Seed != 1<<64-1 || spec.Threads != 2 ||
		spec.PauseTimeout.AsDuration().Hours() != 720 {
		t.Errorf("%v", spec)
	}
	for line, want := range map[string]string{
		"":                                  "spread auto 1",
		"--gpus-per-worker=1":               "adjacent cuda 2",
		"--threads=5 --ring-order=adjacent": "adjacent auto 5",
	} {
		s, err := submission(t, strings.Fields(line)...)
		check(t, err)
		spec, err := s.job()
		check(t, err)
		got := strings.Join([]string{spec.RingOrder, spec.Device,
			string(rune('0' + spec.Threads))}, " ")
		if got != want {
			t.Errorf("%q: %s", line, got)
		}
	}
}

// A stored submission keeps all that no flag changes.
func TestSubmissionOverAStoredOne(t *testing.T) {
	stored, err := submission(t, "--job=song", "--image=a:1", "--labels=a=b", "--spot",
		"--corpus=pvc://texts/a", "--cpus-per-worker=3")
	check(t, err)
	stored.Tokens = 99
	set := pflag.NewFlagSet("resume", pflag.ContinueOnError)
	flags := AddSubmissionFlags(set)
	check(t, set.Parse([]string{"--job=song", "--image=a:2", "--spot=false", "--steps=9"}))
	s, err := flags.Submission(stored)
	check(t, err)
	if s.Image != "a:2" || s.Spot || s.Labels["a"] != "b" || s.CPUsPerWorker != "3" ||
		s.Spec["steps"] != "9" || s.Spec["corpus"] != "pvc://texts/a" || s.Tokens != 99 {
		t.Errorf("%+v", s)
	}
	check(t, set.Parse([]string{"--tokenizer=word"}))
	if s, err = flags.Submission(stored); err != nil || s.Tokens != 0 {
		t.Errorf("other tokens, the same vocabulary: %+v, %v", s, err)
	}
}

// What is rendered is what the API's types say, without a field that is unknown or given twice.
func TestManifestsDecodeStrictly(t *testing.T) {
	files, err := filepath.Glob("testdata/submit/*.yaml")
	check(t, err)
	decoder := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).
		UniversalDeserializer()
	decoded := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(t, err)
		for _, document := range strings.Split(string(text), "\n---\n") {
			_, kind, err := decoder.Decode([]byte(document), nil, nil)
			if kind != nil && !clientscheme.Scheme.Recognizes(*kind) {
				continue // custom resources
			}
			if err != nil && !runtime.IsNotRegisteredError(err) {
				t.Errorf("%s: %v", file, err)
				continue
			}
			decoded++
		}
	}
	if decoded < 80 {
		t.Errorf("%d objects decoded", decoded)
	}
}

// The memory of a worker follows its model, and stays when a run is resumed.
func TestMemory(t *testing.T) {
	size := func(args ...string) int64 {
		t.Helper()
		s, err := submission(t, args...)
		check(t, err)
		m, err := Render(t.Context(), s, "music")
		check(t, err)
		memory, _, err := s.size(m.Spec)
		check(t, err)
		return new(resource.MustParse(memory)).Value()
	}
	small, large := size("--hidden=64"), size("--hidden=2048")
	if small < leastMemory || large < 2*small {
		t.Errorf("%d bytes for 64 units, %d for 2048", small, large)
	}
	if words := size("--corpus=pvc://a/b", "--tokenizer=word", "--embed=64"); words < 2*small {
		t.Errorf("%d bytes for an unknown text of words", words)
	}
}

// Beside a GPU a worker has what the manifests give, unless its copies of the model take more.
func TestMemoryBesideGPU(t *testing.T) {
	for line, want := range map[string]string{"--hidden=1024": "",
		"--hidden=8192 --layers=4 --optimizer=adam":                           "Mi",
		"--hidden=8192 --layers=4 --optimizer=adam --memory-per-worker=100Gi": "100Gi"} {
		s, err := submission(t, append(strings.Fields(line), "--gpus-per-worker=1")...)
		check(t, err)
		m, err := Render(t.Context(), s, "music")
		check(t, err)
		size, _, err := s.size(m.Spec)
		check(t, err)
		if !strings.HasSuffix(size, want) || (size == "") != (want == "") {
			t.Errorf("%s: %q of memory, want %q", line, size, want)
		}
	}
}

// A worker has time for the step in flight, and for a checkpoint of its model.
func TestGracePeriod(t *testing.T) {
	for line, want := range map[string]int64{
		"--hidden=64": 60, "--step-timeout=2m30s --regroup-timeout=5m": 170,
		"--grace-period=90s": 90, "--spot": 25, "--spot --grace-period=2m": 120,
		"--hidden=8192 --layers=4 --gpus-per-worker=1": 0,
	} {
		s, err := submission(t, append(strings.Fields(line), "--checkpoint-dir=pvc://models")...)
		check(t, err)
		m, err := Render(t.Context(), s, "music")
		check(t, err)
		got, _, err := unstructured.NestedInt64(m.workers().Object, "spec", "template", "spec",
			"terminationGracePeriodSeconds")
		check(t, err)
		if want == 0 && got < 200 || want > 0 && got != want {
			t.Errorf("%s: %d s to leave, want %d", line, got, want)
		}
	}
}

// The flags of the log reach all of the job's own containers.
func TestLogFlags(t *testing.T) {
	for line, want := range map[string]int{"": 0, "--verbose": 3,
		"--log-format=json --verbose": 6} {
		s, err := submission(t, strings.Fields(line)...)
		check(t, err)
		m, err := Render(t.Context(), s, "music")
		check(t, err)
		text, err := m.YAML()
		check(t, err)
		got := strings.Count(string(text), "- --verbose\n") +
			strings.Count(string(text), "- --log-format=json\n")
		if got != want { // worker, coordinator and observer
			t.Errorf("%s: in %d arguments, want %d", line, got, want)
		}
	}
}

// Volumes of like names are different volumes, at different places.
func TestVolumesDoNotCollide(t *testing.T) {
	s, err := submission(t, "--corpus=configmap://a/b", "--checkpoint-dir=pvc://configmap-a/x",
		"--audit-dir=pvc://a.b/x", "--eval-corpus=pvc://a-b/x")
	check(t, err)
	spec, err := s.job()
	check(t, err)
	m, err := place(spec)
	check(t, err)
	names, places := map[string]bool{}, map[string]bool{}
	for i := range m.volumes {
		names[m.volumes[i].Name], places[m.mounts[i].MountPath] = true, true
		if m.volumes[i].Name != m.mounts[i].Name {
			t.Errorf("%s is mounted as %s", m.volumes[i].Name, m.mounts[i].Name)
		}
	}
	if len(names) != 4 || len(places) != 4 {
		t.Errorf("names %v, places %v", names, places)
	}
}
