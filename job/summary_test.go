package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"rondo/checkpoint"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// manifest is a checkpoint of step 30 of a job.
func manifest(
	t *testing.T, spec *rondov1.JobSpec, training string, metrics checkpoint.Metrics,
) *checkpoint.Checkpoint {
	t.Helper()
	text, err := SpecText(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &checkpoint.Checkpoint{Path: filepath.Join("runs", "a", "step-00000030")}
	c.Step, c.Epoch, c.Job, c.Spec, c.Metrics = 30, 2, "song", text, metrics
	c.Training = json.RawMessage(training)
	c.Vocabulary = []string{"<unk>", "a", "b", "c"}
	return c
}

func songSpec() *rondov1.JobSpec {
	spec := jobspec.Default()
	spec.Job, spec.Corpus, spec.Cell, spec.Hidden, spec.Layers = "song", "/texts/a b", "gru", 8, 2
	spec.Batch, spec.Bptt, spec.Steps, spec.Epochs, spec.Accumulate = 4, 5, 30, 0, 2
	spec.ValidationFraction, spec.Inject, spec.TieWeights, spec.Embed = 0.1, "kill rank=0", true, 8
	spec.Resume, spec.CheckpointDir = "never", "/data/runs/a"
	return spec
}

func TestSummary(t *testing.T) {
	c := manifest(t, songSpec(), `{"step":30,"validation":{"best":1.25,"best_step":20,"step":20,`+
		`"loss":1.25}}`, checkpoint.Metrics{"loss": 1.5, "epoch_loss": 1.6, "train_tokens": 600,
		"validation_tokens": 60, "total_steps": 30, "seconds": 12.5})
	s, err := Summarize(c, "runs/a")
	if err != nil {
		t.Fatal(err)
	}
	// The tied embedding, its output bias, two layers of three gates with two biases each.
	if want := 4*8 + 4 + 2*3*(8*8+8*8+8+8); s.Parameters != want {
		t.Errorf("%d parameters, want %d", s.Parameters, want)
	}
	if s.TokensSeen != 30*4*5*2 || *s.Epochs != 2 || *s.Seconds != 12.5 || !s.Done() ||
		*s.ValidationTokens != 60 || *s.EpochLoss != 1.6 || s.Evaluated != EvaluatedBefore {
		t.Errorf("%+v", s)
	}
	want := songSpec()
	want.Inject, want.Resume, want.CheckpointDir = "", "auto", ""
	if got := parsed(t, s.Repeat); !proto.Equal(got, want) {
		t.Errorf("repeat: %v, which is the job %v", s.Repeat, got)
	}
	want.Steps, want.CheckpointDir = 60, "runs/a"
	if got := parsed(t, s.GoOn); !proto.Equal(got, want) {
		t.Errorf("go on: %v, which is the job %v", s.GoOn, got)
	}
	if s, err = Summarize(c, filepath.Join("runs", "a", "step-00000030")); err != nil {
		t.Fatal(err)
	}
	want.Resume = "30"
	if got := parsed(t, s.GoOn); !proto.Equal(got, want) {
		t.Errorf("go on from one step: %v", s.GoOn)
	}
	if want := "rondo generate --checkpoint " + c.Path; strings.Join(s.Use, " ") != want {
		t.Errorf("use: %v", s.Use)
	}
}

// parsed is the job that a command line trains.
func parsed(t *testing.T, command []string) *rondov1.JobSpec {
	t.Helper()
	set := pflag.NewFlagSet("train", pflag.ContinueOnError)
	flags := jobspec.AddFlags(set)
	if err := set.Parse(command[2:]); err != nil {
		t.Fatal(err)
	}
	spec, err := flags.Spec()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestGoOnAfterEarlyStop: a job that --early-stop has ended goes on only with more patience, or
// with another text to evaluate on.
func TestGoOnAfterEarlyStop(t *testing.T) {
	folder := t.TempDir()
	text := filepath.Join(folder, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("a little song. ", 90)), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := songSpec()
	spec.Corpus, spec.EarlyStop, spec.Tokenizer, spec.Steps = text, 2, "char", 40
	data, err := OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	of := func(text int64) *checkpoint.Checkpoint {
		return manifest(t, spec, fmt.Sprintf(`{"step":30,"validation":{"step":30,"loss":2,`+
			`"best":1.25,"best_step":20,"waiting":2,"text":%d}}`, text), nil)
	}
	own := data.EvalData()
	for _, c := range []struct {
		limit, text, steps int64
		refused            bool
	}{
		{2, own, 40, true}, {1, own, 40, true}, {2, 0, 40, true}, {3, own, 40, false},
		{0, own, 40, false}, {2, own + 2, 40, false}, {2, own, 30, false},
	} {
		now := proto.CloneOf(spec)
		now.EarlyStop, now.Steps = c.limit, c.steps
		err := CheckEarlyStop(now, data, of(c.text))
		var usage *app.UsageError
		if c.refused != errors.As(err, &usage) || !c.refused && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if want := fmt.Sprintf("ended by --early-stop %d: give --early-stop 0 or more than 2 to "+
			"go on", c.limit); c.refused && !strings.HasSuffix(fmt.Sprint(err), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s, err := Summarize(of(own), "runs/a")
	if err != nil {
		t.Fatal(err)
	}
	if got := parsed(t, s.GoOn); got.EarlyStop != 0 || got.Steps != 40 ||
		strings.Count(strings.Join(s.GoOn, " "), "--early-stop") != 1 {
		t.Errorf("go on: %v", s.GoOn)
	}
}

// TestSummaryOfAnOldManifest: what it lacks is unknown, and nothing is made up.
func TestSummaryOfAnOldManifest(t *testing.T) {
	for training, want := range map[string]Evaluated{`{"step":30}`: EvaluatedUnknown,
		`{"validation":{"best_step":0}}`: EvaluatedNever, "": EvaluatedUnknown} {
		c := manifest(t, songSpec(), training, checkpoint.Metrics{"loss": 1.5})
		c.Spec = without(t, c.Spec, "task", "link", "accumulate")
		s, err := Summarize(c, "runs/a")
		if err != nil {
			t.Fatal(err)
		}
		if s.TrainTokens != nil || s.Epochs != nil || s.Seconds != nil || s.Best != nil ||
			s.TotalSteps != nil || s.Done() || !s.Evaluates || s.Evaluated != want {
			t.Errorf("%+v", s)
		}
		if got := parsed(t, s.GoOn); s.Task != "lm" || got.Link != "auto" || got.Steps != 30 {
			t.Errorf("task %q, go on: %v", s.Task, s.GoOn)
		}
	}
}

// TestShowNamesTheBestOfTheFolder: the same that generate takes, whichever is the newest.
func TestShowNamesTheBestOfTheFolder(t *testing.T) {
	folder := t.TempDir()
	store := saveUntrained(t, folder, songSpec(), []string{"<unk>", "a", "b"})
	defer func() { _ = store.Close() }()
	spec, err := SpecText(songSpec())
	if err != nil {
		t.Fatal(err)
	}
	save := func(step int64, metrics checkpoint.Metrics) (path string) {
		t.Helper()
		path, err := store.Save(t.Context(), checkpoint.Snapshot{Step: step, Spec: spec,
			Vocabulary: []string{"<unk>", "a", "b"}, Metrics: metrics,
			Training: json.RawMessage(`{"validation":{"step":2,"loss":1.9}}`)})
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	show := func(location string) *Summary {
		t.Helper()
		s, err := Show(t.Context(), location)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := show(folder); s.Best != nil || s.ValidationLoss != nil {
		t.Errorf("nothing was evaluated: %+v", s)
	}
	path := save(2, checkpoint.Metrics{checkpoint.ValidationLoss: 1.5})
	save(3, checkpoint.Metrics{checkpoint.ValidationLoss: 1.75})
	s := show(folder)
	if s.Steps != 3 || *s.ValidationLoss != 1.75 || *s.Best != (Best{2, 1.5}) ||
		s.Evaluated != EvaluatedHere {
		t.Errorf("%+v", s)
	}
	if want := "rondo generate --checkpoint " + folder; strings.Join(s.Use, " ") != want {
		t.Errorf("use: %v", s.Use)
	}
	if s := show(path); s.Steps != 2 || s.Best != nil || *s.ValidationLoss != 1.5 {
		t.Errorf("one step's folder: %+v", s)
	}
	save(4, nil)
	if s := show(folder); s.ValidationLoss != nil || s.Evaluated != EvaluatedBefore {
		t.Errorf("%+v", s)
	}
}

// threeSegments is Data of three segments an epoch.
type threeSegments struct{ Data }

func (threeSegments) SegmentsPerEpoch() int64 { return 3 }

// TestOtherRates: a resume of another length is told where the learning rates depend on that.
func TestOtherRates(t *testing.T) {
	for _, c := range []struct {
		schedule string
		steps    int64
		metrics  checkpoint.Metrics
		told     bool
	}{
		{"cosine", 60, checkpoint.Metrics{"total_steps": 30}, true},
		{"linear", 60, checkpoint.Metrics{"total_steps": 30}, true},
		{"cosine", 30, checkpoint.Metrics{"total_steps": 30}, false},
		{"cosine", 60, nil, false}, // of an older version
		{"constant", 60, checkpoint.Metrics{"total_steps": 30}, false},
		{"plateau", 60, checkpoint.Metrics{"total_steps": 30}, false},
		{"step", 60, checkpoint.Metrics{"total_steps": 30}, false},
	} {
		spec := songSpec()
		spec.LrSchedule, spec.Steps = c.schedule, c.steps
		text := OtherRates(spec, threeSegments{}, manifest(t, spec, "{}", c.metrics))
		if told := strings.Contains(text, "which were 30 at the checkpoint of step 30 and are 60 "+
			"now"); told != c.told || !c.told && text != "" {
			t.Errorf("%s, %d steps: %q", c.schedule, c.steps, text)
		}
	}
}
