package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// Workers that share a machine have at most its cores between them, as long as there are enough
// for one each, however many come or go; and what --threads says is what they get.
func TestThreadsAreShared(t *testing.T) {
	spec, cores := jobspec.Textbook(), runtime.GOMAXPROCS(0)
	spec.Device = "cpu"
	device, err := OpenDevice(spec, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	cores = min(cores, device.(interface{ Threads() int }).Threads()) // one without cgo
	for i := range 6 * cores {
		processes := 1 + i%(3*cores)
		if err := Share(device, spec, processes); err != nil {
			t.Fatal(err)
		}
		n := device.(interface{ Threads() int }).Threads()
		if n < 1 || n*processes > max(cores, processes) {
			t.Errorf("%d workers on %d cores have %d threads each", processes, cores, n)
		}
		if idle := cores - n*processes; idle >= processes {
			t.Errorf("%d workers on %d cores leave %d idle", processes, cores, idle)
		}
	}
	spec.Threads = 5
	if got := Threads(spec, 7); got != 5 {
		t.Errorf("%d threads with --threads 5", got)
	}
}

// A device computes in the precision that the spec says, and its name says so.
func TestDeviceOfAPrecision(t *testing.T) {
	spec := jobspec.Textbook()
	spec.Device = "cpu"
	for precision, bf16 := range map[string]bool{"fp32": false, "bf16": true} {
		spec.Precision = precision
		device, err := OpenDevice(spec, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(device.Name(), "bf16"); got != bf16 {
			t.Errorf("--precision %s: %s", precision, device.Name())
		}
		device.Close()
	}
	spec.Precision = "fp8"
	var usage *app.UsageError
	if _, err := OpenDevice(spec, 1); !errors.As(err, &usage) {
		t.Errorf("--precision fp8: %v", err)
	}
}

// A model that was trained with many threads elsewhere is used with those of this machine, or with
// those that it is told.
func TestLoadTrainedChoosesItsThreads(t *testing.T) {
	ctx, folder := t.Context(), t.TempDir()
	spec := jobspec.Textbook()
	spec.Threads, spec.Hidden, spec.Precision = 64, 8, "bf16"
	store := saveUntrained(t, folder, spec, []string{"<unk>", "a", "b"})
	defer func() { _ = store.Close() }()
	for _, c := range []struct {
		use  Use
		want int
		bf16 bool
	}{
		{Use{Device: "cpu"}, runtime.GOMAXPROCS(0), true},
		{Use{Device: "cpu", Threads: 3, Precision: "fp32"}, 3, false},
	} {
		trained, err := LoadTrained(ctx, folder, c.use, task.LM)
		if err != nil {
			t.Fatal(err)
		}
		device := trained.Device().(*cpu.Device)
		alike, err := cpu.New(cpu.Config{Threads: c.want}) // without cgo it has one thread
		if err != nil {
			t.Fatal(err)
		}
		want := alike.Threads()
		alike.Close()
		if device.Threads() != want || (device.Precision() == compute.BF16) != c.bf16 {
			t.Errorf("%+v: %s, want %d threads", c.use, device.Name(), want)
		}
		trained.Close()
	}
	for _, use := range []Use{{Threads: -1}, {Threads: maxThreads + 1}, {Precision: "fp8"}} {
		var usage *app.UsageError
		if _, err := LoadTrained(ctx, folder, use, task.LM); !errors.As(err, &usage) {
			t.Errorf("%+v: %v", use, err)
		}
	}
}

// TestHostileManifest: a manifest's claims are checked against the flags' bounds and against the
// file of parameters before they cost memory.
func TestHostileManifest(t *testing.T) {
	for want, claim := range map[string]func(*rondov1.JobSpec){
		"has [3 8]":                func(s *rondov1.JobSpec) { s.Hidden = 60000 },
		"rnn.weight_ih_l1":         func(s *rondov1.JobSpec) { s.Layers = 2 },
		"its network has a tensor": func(s *rondov1.JobSpec) { s.Cell = "rnn" },
		"--bptt 0":                 func(s *rondov1.JobSpec) { s.Bptt = 0 },
		"--batch -1":               func(s *rondov1.JobSpec) { s.Batch = -1 },
		"--hidden":                 func(s *rondov1.JobSpec) { s.Hidden = math.MaxInt64 },
		"--precision":              func(s *rondov1.JobSpec) { s.Precision = "fp4" },
	} {
		folder, spec := t.TempDir(), jobspec.Textbook()
		spec.Hidden = 8
		_ = saveUntrained(t, folder, spec, []string{"<unk>", "a", "b"}, claim).Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		trained, err := LoadTrained(t.Context(), folder, Use{Device: "cpu"}, task.LM)
		runtime.ReadMemStats(&after)
		if err == nil {
			trained.Close()
		}
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: %d MiB", want, took>>20)
		}
	}
}

// A manifest without a task is of the language model. A checkpoint of another task is refused in a
// line that names both.
func TestTaskOfACheckpoint(t *testing.T) {
	ctx := t.Context()
	spec := jobspec.Textbook()
	text, err := OpenCorpus(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = text.Close() }()
	vocabulary := text.Vocabulary().Tokens()
	const other = "was trained with --task dream, and this needs --task lm: give another folder"
	const unknown = "was trained with --task dream, which this version does not know: "
	for _, c := range []struct{ task, used, shown, resumed string }{
		{"lm", "", "", "other data with the same vocabulary"}, // saveUntrained knows no text
		{"", "", "", "other data with the same vocabulary"},
		{"dream", other, unknown, "belongs to another job, which has --task dream instead of lm: " +
			"choose another folder, or give that job's flags"},
	} {
		made := jobspec.Textbook()
		made.Task, spec.CheckpointDir = c.task, t.TempDir()
		_ = saveUntrained(t, spec.CheckpointDir, made, vocabulary).Close()
		trained, err := LoadTrained(ctx, spec.CheckpointDir, Use{Device: "cpu"}, task.LM)
		if err == nil {
			trained.Close()
		}
		refused(t, err, c.used)
		_, err = Show(ctx, spec.CheckpointDir)
		refused(t, err, c.shown)
		_, err = OpenCheckpoints(ctx, spec, text, nil)
		refused(t, err, c.resumed)
	}
}

// refused wants a usage error with these words, or none if want is empty.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	var usage *app.UsageError
	if (want != "") != errors.As(err, &usage) || want == "" && err != nil ||
		!strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// without is a manifest's spec as a version wrote it that did not know these fields.
func without(t *testing.T, spec json.RawMessage, names ...string) json.RawMessage {
	t.Helper()
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(spec, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		delete(fields, name)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// saveUntrained saves a checkpoint of a job's model as it begins. Claims change what the manifest
// says of the job, and not the model.
func saveUntrained(t *testing.T, folder string, spec *rondov1.JobSpec, vocabulary []string,
	claims ...func(*rondov1.JobSpec)) *checkpoint.Store {
	t.Helper()
	store, err := checkpoint.Open(t.Context(), folder,
		checkpoint.Config{Job: "job", Identity: "identity", OpenBucket: bucket.Open})
	if err != nil {
		t.Fatal(err)
	}
	config, err := ModelConfig(spec, len(vocabulary))
	if err != nil {
		t.Fatal(err)
	}
	device, err := OpenDevice(jobspec.Textbook(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	m, err := model.New(config, device)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	claimed := proto.CloneOf(spec)
	for _, claim := range claims {
		claim(claimed)
	}
	text, err := SpecText(claimed)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Task == "" {
		text = without(t, text, "task")
	}
	if _, err := store.Save(t.Context(), checkpoint.Snapshot{Step: 1, Spec: text,
		Vocabulary: vocabulary, Training: []byte("{}"), Files: []checkpoint.File{
			{Name: ModelFile, Tensors: Tensors(m.Layout(), m.Params())}}}); err != nil {
		t.Fatal(err)
	}
	return store
}

func TestCrowded(t *testing.T) {
	for _, c := range []struct {
		threads, processes, cores int
		want                      string // a part
	}{{0, 9, 2, ""}, {2, 1, 2, ""}, {1, 2, 2, ""}, {64, 0, 2, ""},
		{3, 1, 2, "--threads 3 is more than the cores that they may use, 2:"},
		{2, 2, 3, "--threads 2 in each of 2 workers here is more than"}} {
		got := Crowded(c.threads, c.processes, c.cores)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
