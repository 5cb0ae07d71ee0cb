package job

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/label"
	"rondo/train"
)

// fewMoods are 8 texts of 3 labels.
const fewMoods = "good\ta warm day\nbad\tcold\ngood\twarm warm\nodd\ta long day\n" +
	"bad\ta cold day\nodd\tlong\ngood\tso warm\nbad\tso so cold\n"

// inFile writes a file in a new folder.
func inFile(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// classifySpec is a small job on a file.
func classifySpec(t *testing.T, source string, flags ...string) *rondov1.JobSpec {
	t.Helper()
	return parsed(t, append([]string{"rondo", "train", "--task", "classify", "--corpus", source,
		"--hidden", "5", "--layers", "1", "--embed", "4", "--batch", "3", "--device", "cpu"},
		flags...))
}

func openData(t *testing.T, spec *rondov1.JobSpec) Data {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	d, err := OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// What a job with labels learns from and is evaluated on. Words are the default tokens.
func TestLabelledData(t *testing.T) {
	source := inFile(t, "moods.tsv", fewMoods)
	other := inFile(t, "other.tsv", "good\twarm\nbad\tunseen\n")
	whole := openData(t, classifySpec(t, source, "--validation-fraction", "0"))
	if got := whole.Outputs(); !slices.Equal(got, []string{"bad", "good", "odd"}) {
		t.Errorf("outputs %q", got)
	}
	// 8 examples on 3 lanes: in an epoch one lane has none.
	training, evaluation := whole.Sizes()
	if training != 18 || evaluation != 0 || whole.EvalData() != 0 ||
		whole.SegmentsPerEpoch() != 3 {
		t.Errorf("%d and %d tokens, %d segments, evaluation %d", training, evaluation,
			whole.SegmentsPerEpoch(), whole.EvalData())
	}
	var offsets []int64
	for segment := range whole.SegmentsPerEpoch() {
		for lane := range 3 {
			offsets = append(offsets, whole.Offset(segment, lane))
		}
	}
	slices.Sort(offsets)
	if !slices.Equal(offsets, []int64{-1, 0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("an epoch reads %d", offsets)
	}
	if v := whole.Vocabulary().Tokens(); !slices.Contains(v, "warm") {
		t.Errorf("vocabulary %q: words are the default", v)
	}
	split := openData(t, classifySpec(t, source, "--validation-fraction", "0.4"))
	again := openData(t, classifySpec(t, source, "--validation-fraction", "0.4", "--seed", "9"))
	apart := openData(t, classifySpec(t, source, "--eval-corpus", other))
	if _, n := apart.Sizes(); n != 2 || split.EvalData() == 0 ||
		split.EvalData() == apart.EvalData() || split.EvalData() != again.EvalData() {
		t.Errorf("evaluation data %d, %d, %d; %d tokens apart", split.EvalData(), again.EvalData(),
			apart.EvalData(), n)
	}
	if id := apart.EvalData(); int64(float64(id)) != id {
		t.Errorf("a float64 does not hold %d", id)
	}
	few := openData(t, classifySpec(t, source, "--validation-fraction", "0", "--max-examples", "2"))
	if few.SegmentsPerEpoch() != 1 || len(few.Outputs()) != 2 {
		t.Errorf("--max-examples 2: %d segments, outputs %q", few.SegmentsPerEpoch(), few.Outputs())
	}
}

// Flags decide the network, of which the parameters are counted by hand.
func TestLabelledNetwork(t *testing.T) {
	source := inFile(t, "moods.tsv", fewMoods)
	for _, c := range []struct {
		flags string
		want  int // parameters besides the embedding: GRU layers, output
		pool  model.Pool
	}{
		{"--cell gru", 3*5*(4+5+2) + 3*(5+1), model.PoolLast},
		{"--cell gru --bidirectional --pool max", 2*3*5*(4+5+2) + 3*(10+1), model.PoolMax},
		{"--cell gru --bidirectional --layers 2 --pool mean",
			2*3*5*(4+5+2) + 2*3*5*(10+5+2) + 3*(10+1), model.PoolMean},
	} {
		spec := classifySpec(t, source, strings.Fields(c.flags)...)
		d := openData(t, spec)
		n, err := NetworkOf(spec, d.Extent())
		if err != nil {
			t.Fatal(err)
		}
		if got := model.Count(n.Tensors) - 4*d.Vocabulary().Len(); got != c.want {
			t.Errorf("%s: %d parameters, want %d", c.flags, got, c.want)
		}
		config, err := labellerConfig(spec, d.Extent())
		if err != nil || config.Pool != c.pool {
			t.Errorf("%s: %v, pool %v", c.flags, err, config.Pool)
		}
	}
}

// saveLabeller saves a checkpoint of a job's network as it begins.
func saveLabeller(t *testing.T, folder string, d Data, spec *rondov1.JobSpec) {
	t.Helper()
	device, err := OpenDevice(spec, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	made, err := d.NewTask(device, train.Tail, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	store, err := checkpoint.Open(t.Context(), folder,
		checkpoint.Config{Job: "job", Identity: "identity", OpenBucket: bucket.Open})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	text, err := SpecText(spec)
	if err != nil {
		t.Fatal(err)
	}
	n, err := NetworkOf(spec, d.Extent())
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Save(t.Context(), checkpoint.Snapshot{Step: 6, Spec: text,
		Vocabulary: d.Vocabulary().Tokens(), Outputs: d.Outputs(), Training: []byte("{}"),
		Metrics: checkpoint.Metrics{metricEpochSegments: 3, metricTrainTokens: 18},
		Files: []checkpoint.File{{Name: ModelFile,
			Tensors: Tensors(n.Tensors, made.Params())}}})
	if err != nil {
		t.Fatal(err)
	}
}

// A checkpoint has what is needed to use the network and to describe it. The tasks of other
// commands are refused.
func TestLabelledCheckpoint(t *testing.T) {
	spec := classifySpec(t, inFile(t, "moods.tsv", fewMoods), "--bidirectional",
		"--validation-fraction", "0", "--steps", "6")
	d, folder := openData(t, spec), t.TempDir()
	saveLabeller(t, folder, d, spec)
	trained, err := LoadTrained(t.Context(), folder, Use{Device: "cpu"}, task.Classify)
	if err != nil {
		t.Fatal(err)
	}
	defer trained.Close()
	var lines []label.Line
	err = trained.Label(t.Context(), strings.NewReader("a warm unseen day\nso cold"),
		func(l label.Line) error {
			lines = append(lines, l)
			return nil
		})
	if err != nil || len(lines) != 2 || !slices.Contains(d.Outputs(), lines[1].Labels[0]) {
		t.Errorf("%+v, %v", lines, err)
	}
	err = trained.Label(t.Context(), strings.NewReader(strings.Repeat("a ", 600)), nil)
	refused(t, err, "standard input, line 1: it has 600 tokens")
	err = trained.Label(t.Context(), strings.NewReader("a"),
		func(label.Line) error { return errors.ErrUnsupported })
	var usage *app.UsageError
	if !errors.Is(err, errors.ErrUnsupported) || errors.As(err, &usage) {
		t.Errorf("an error of the output: %v", err)
	}
	e, err := trained.Evaluate(t.Context(), spec.Corpus, Search{})
	sum := int64(0)
	for _, row := range e.Confusion {
		for _, n := range row {
			sum += n
		}
	}
	if err != nil || e.Tokens != 8 || sum != 8 || len(e.Metrics) != 2 || e.Step != 6 {
		t.Errorf("%+v, %v", e, err)
	}
	for _, other := range []string{task.LM, task.Tag} {
		_, err := LoadTrained(t.Context(), folder, Use{Device: "cpu"}, other)
		refused(t, err, "was trained with --task classify, and this needs --task "+other)
	}
	s, err := Show(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	if s.Task != "classify" || s.Outputs != 3 || !s.Bidirectional || s.BPTT != 0 ||
		*s.Epochs != 2 || s.TokensSeen != 36 ||
		strings.Join(s.Use, " ") != "rondo classify --checkpoint "+folder {
		t.Errorf("%+v", s)
	}
	tag := classifySpec(t, spec.Corpus, "--checkpoint-dir", folder)
	tag.Task = task.Tag
	_, err = OpenCheckpoints(t.Context(), tag, d, nil)
	refused(t, err, "which has --task classify instead of tag")
}

// Each name that --task takes has an entry.
func TestTasks(t *testing.T) {
	names := slices.Sorted(maps.Keys(tasks()))
	if want := slices.Sorted(slices.Values(task.Names())); !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	_, err := OpenData(t.Context(), &rondov1.JobSpec{Task: "sing"})
	refused(t, err, `--task "sing" is not one of lm, `)
}

// A vocabulary and labels of another network make no data of their own.
func TestOpenExamplesOfATrainedNetwork(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := classifySpec(t, inFile(t, "moods.tsv", fewMoods))
	vocabulary, err := corpus.NewVocabulary([]string{"<unk>", "warm"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenExamples(t.Context(), spec, spec.Corpus, vocabulary, []string{"good", "bad"},
		0)
	refused(t, err, "line 4")
	spec.MaxExamples = 2 // limits what is trained on
	set, err := OpenExamples(t.Context(), spec, spec.Corpus, vocabulary,
		[]string{"odd", "good", "bad"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if set.Len() != 8 || set.Labels()[0] != "odd" {
		t.Errorf("%d examples, labels %q", set.Len(), set.Labels())
	}
}

// Data whose name has another end are refused with the task and the ends that it reads.
func TestDataOfAnotherFormat(t *testing.T) {
	const file = "/nowhere/x.xlsx"
	for name, ends := range map[string]string{task.Classify: ".jsonl, .tsv", task.Tag: ".conll",
		task.Translate: ".tsv, .txt", task.Regress: ".csv, .npy, .parquet",
		task.Reservoir: ".csv, .npy, .parquet",
		task.Describe:  ".csv, .npy, .parquet, .safetensors"} {
		spec := jobspec.Default()
		spec.Task, spec.Corpus, spec.Vectors, spec.Tokenizer = name, file, file, "word"
		by := "--task " + name
		if name == task.Describe {
			by = "--vectors: it"
		}
		want := fmt.Sprintf("%s reads %s, or a .zip with one such file, and %s is none of these: ",
			by, ends, file)
		_, err := tasks()[name].open(t.Context(), spec)
		refused(t, err, want)
	}
}
