package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/task"
)

// An exampleTask is a task whose lanes carry no state from step to step.
type exampleTask struct {
	name, corpus string
	metrics      []string
	reached      float64  // the metrics of a job that trains for long, at least
	network      []string // flags of the task's own
	audit        []string // flags of rondo audit that compare the text; nil: lanes read examples
}

// labelledTasks are the tasks with data that their words decide. The numbers of examples are such
// that each epoch's last batch has lanes without one.
func labelledTasks(t *testing.T) []exampleTask {
	t.Helper()
	return []exampleTask{
		{"classify", write(t, "moods.tsv", moods(115)), []string{"accuracy", "macro_f1"}, 0.9,
			nil, nil},
		{"tag", write(t, "names.conll", names(115)), []string{"accuracy", "f1"}, 0.9, nil, nil},
	}
}

// exampleTasks are all tasks whose lanes carry no state, some of them with other networks too.
func exampleTasks(t *testing.T) []exampleTask {
	t.Helper()
	deep, asks := labelledTasks(t)[0], translation(t)
	deeper, stops, counts := translation(t), describing(t), describing(t)
	deep.network = []string{"--deep-input", "1", "--deep-transition", "1", "--deep-output", "1",
		"--hidden-backward", "8"}
	asks.network = append(asks.network, "--attention", "bahdanau", "--layer-norm",
		"--skip-connections", "--deep-transition", "1", "--teacher-forcing-choice", "sample")
	deeper.network = []string{"--attention", "none", "--deep-input", "1", "--deep-output", "2",
		"--hidden-backward", "8"}
	stops.network = append(stops.network, "--ends", "stop")
	counts.network = append(counts.network, "--ends", "length", "--deep-input", "1",
		"--deep-output", "1")
	clocked, hard := labelledTasks(t)[1], answering(t)
	clocked.network = []string{"--cell", "clockwork", "--periods", "1,2,4", "--skip-through-time",
		"3"}
	// Sums in another order may move a draw across the border of two sentences.
	hard.network = append(hard.network, "--hard-attention", "3", "--reduce", "canonical")
	return append(labelledTasks(t), filling(t), translation(t), describing(t), deep, asks, deeper,
		stops, counts, answering(t), copying(t), clocked, hard, lastRows(t), calculating(t))
}

// filler are words without a label of their own.
var filler = strings.Fields("the a book film was and it in so very")

// fillers returns up to n words.
func fillers(rng *rand.Rand, n int) (words []string) {
	for range rng.IntN(n + 1) {
		words = append(words, filler[rng.IntN(len(filler))])
	}
	return words
}

// moods returns lines of a label and a text that has one word of that mood.
func moods(lines int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	words := map[string][]string{"bad": {"awful", "cold"}, "good": {"lovely", "warm"},
		"mixed": {"odd", "long"}}
	labels := slices.Sorted(maps.Keys(words))
	text := "label\ttext\n"
	for range lines {
		label := labels[rng.IntN(len(labels))]
		row := slices.Concat(fillers(rng, 6), words[label][rng.IntN(2):][:1], fillers(rng, 6))
		text += label + "\t" + strings.Join(row, " ") + "\n"
	}
	return text
}

// names returns sentences with people and places in BIO labels.
func names(sentences int) string {
	rng := rand.New(rand.NewPCG(3, 4))
	spans := []string{"Anna B-PER\n", "Anna B-PER\nBell I-PER\n", "York B-LOC\n",
		"New B-LOC\nYork I-LOC\n"}
	text := ""
	for range sentences {
		for range 1 + rng.IntN(3) {
			for _, word := range append(fillers(rng, 3), "so") {
				text += word + " O\n"
			}
			text += spans[rng.IntN(len(spans))]
		}
		text += "\n"
	}
	return text
}

// flags are those of a small job of the task.
func (k exampleTask) flags(extra ...string) []string {
	layers := []string{"--bidirectional", "--embed", "8", "--layers", "2", "--dropout", "0.2",
		"--dropout-input", "0.1", "--label-smoothing", "0.05"}
	if !slices.Contains(task.Layered(), k.name) || k.name == task.Regress {
		layers = nil
	}
	return slices.Concat([]string{"--task", k.name, "--corpus", k.corpus, "--hidden", "12",
		"--batch", "12", "--steps", "20", "--clip", "0.5", "--clip-scope", "global", "--lr", "0.01",
		"--lr-schedule", "constant", "--validation-fraction", "0.2", "--eval-every", "10",
		"--checkpoint-every", "10", "--checkpoint-keep", "0", "--lease-ttl", "2s",
		"--chunk-timeout", "1s", "--threads", "1"}, layers, k.network, extra)
}

// eachTask runs a test of each task.
func eachTask(t *testing.T, tasks []exampleTask, test func(t *testing.T, k exampleTask)) {
	t.Helper()
	for _, k := range tasks {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// tensors are the hashes of a checkpoint's tensor files.
func tensors(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := hashes(t, dir)
	maps.DeleteFunc(files, func(name, _ string) bool {
		return !strings.HasSuffix(name, ".safetensors")
	})
	if len(files) < 2 {
		t.Fatalf("%s has the tensor files %v", dir, files)
	}
	return files
}

// near compares the losses and the metrics of the events of two jobs.
func near(t *testing.T, got, want []event, members ...string) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	const tolerance = 1e-4 // relative; float32 sums depend on their order
	for i := range want {
		for _, member := range append(members, "step") {
			g, is := got[i][member].(float64)
			w, want := want[i][member].(float64)
			if !is || !want || !(math.Abs(g-w) <= tolerance*math.Abs(w)) {
				t.Errorf("event %d: %s %v, want %v", i, member, got[i], w)
			}
		}
	}
}

// nearKilled is near for a job whose workers are killed. A new ring may repeat the last event. A
// killed rank 0 takes with it the events that it had not sent yet, so some may be missing.
func nearKilled(t *testing.T, killed, undisturbed []event, members ...string) {
	t.Helper()
	step := func(e event) float64 { return e.number("step") }
	once := slices.CompactFunc(killed, func(a, b event) bool { return step(a) == step(b) })
	both := slices.DeleteFunc(slices.Clone(undisturbed), func(e event) bool {
		return !slices.ContainsFunc(once, func(k event) bool { return step(k) == step(e) })
	})
	if len(both) < len(undisturbed)/2 {
		t.Errorf("%d of %d events arrived", len(both), len(undisturbed))
	}
	near(t, once, both, members...)
}

// TestExamplesParity: three workers have the loss curve and the evaluations of one, and with
// --reduce canonical its bytes.
func TestExamplesParity(t *testing.T) {
	eachTask(t, exampleTasks(t), func(t *testing.T, k exampleTask) {
		one := train(t, k.flags("--workers", "1", "--checkpoint-dir", "none",
			"--checkpoint-every", "0")...)
		three := train(t, k.flags("--workers", "3", "--checkpoint-dir", "none",
			"--checkpoint-every", "0")...)
		near(t, named(three, "step"), named(one, "step"), "loss", "gradient_norm")
		near(t, named(three, "eval"), named(one, "eval"), append(k.metrics, "loss",
			"tokens")...)
		if n := len(named(one, "step")); n != 20 {
			t.Errorf("%d steps", n)
		}
		canonical := func(workers string) map[string]string {
			dir := t.TempDir()
			train(t, k.flags("--reduce", "canonical", "--accumulate", "2", "--workers", workers,
				"--checkpoint-dir", dir)...)
			return tensors(t, filepath.Join(dir, "step-00000020"))
		}
		if one, three := canonical("1"), canonical("3"); !maps.Equal(one, three) {
			t.Errorf("--reduce canonical: one worker wrote %v, three wrote %v", one, three)
		}
	})
}

// TestExamplesResume: 20 steps, and 10 steps and 10 more, are the same bytes.
func TestExamplesResume(t *testing.T) {
	eachTask(t, exampleTasks(t), func(t *testing.T, k exampleTask) {
		straight, broken := t.TempDir(), t.TempDir()
		train(t, k.flags("--checkpoint-dir", straight)...)
		train(t, k.flags("--checkpoint-dir", broken, "--steps", "10")...)
		steps := named(train(t, k.flags("--checkpoint-dir", broken)...), "step")
		if len(steps) != 10 || steps[0].number("step") != 11 {
			t.Fatalf("%d steps after the resume, the first %v", len(steps), steps)
		}
		const last = "step-00000020"
		got := tensors(t, filepath.Join(broken, last))
		if want := tensors(t, filepath.Join(straight, last)); !maps.Equal(got, want) {
			t.Errorf("resumed: %v, want %v", got, want)
		}
	})
}

// TestExamplesKill: a worker that is killed at any step costs no example, and changes nothing.
func TestExamplesKill(t *testing.T) {
	eachTask(t, exampleTasks(t), func(t *testing.T, k exampleTask) {
		flags := k.flags("--workers", "3", "--checkpoint-dir", "none", "--checkpoint-every", "0")
		want := train(t, flags...)
		fault := fmt.Sprintf("kill rank=%d step=%d", rand.IntN(3), 2+rand.IntN(18))
		t.Logf("--inject %q", fault)
		logs := t.TempDir()
		got := train(t, append(flags, "--inject", fault, "--audit-dir", logs)...)
		(&trial{t: t}).checkSteps(got)
		nearKilled(t, named(got, "step"), named(want, "step"), "loss")
		nearKilled(t, named(got, "eval"), named(want, "eval"), append(k.metrics, "loss")...)
		if n := len(named(got, "generation")); n < 2 {
			t.Errorf("%d rings", n)
		}
		args, proved := []string{"audit", logs}, "no example twice in an epoch, and all of them "+
			"in 2 whole epochs"
		if strings.HasPrefix(k.corpus, "builtin:") { // an epoch is longer
			proved = strings.Replace(proved, "2", "0", 1)
		}
		if k.audit != nil {
			args, proved = append(args, k.audit...), "each of 12 lanes read exactly once"
		}
		compares := k.name != task.Regress // numbers of rows are no text
		if code, stdout, stderr := run(t, args...); code != 0 ||
			!strings.Contains(stdout, proved) || compares && strings.Contains(stdout,
			"not compared") {
			t.Errorf("rondo audit: exit code %d\n%s%s", code, stdout, stderr)
		}
	})
}

// feed runs rondo with a text as its standard input.
func feed(t *testing.T, text string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "rondo"), args...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdin = environment(t), t.TempDir(), strings.NewReader(text)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// TestLabelledUse: what training says of a network is what rondo eval says of its checkpoint, and
// rondo classify and rondo tag label text as its data do.
func TestLabelledUse(t *testing.T) {
	eachTask(t, labelledTasks(t), func(t *testing.T, k exampleTask) {
		dir := t.TempDir()
		events := train(t, k.flags("--checkpoint-dir", dir, "--steps", "120",
			"--validation-fraction", "0", "--eval-corpus", k.corpus, "--eval-every", "60",
			"--checkpoint-every", "60")...)
		evals := named(events, "eval")
		last, done := evals[len(evals)-1], events[len(events)-1]
		for _, metric := range k.metrics {
			if v := last.number(metric); !(v >= k.reached && v <= 1) ||
				done.number(metric) != v {
				t.Errorf("%s: %v in the last evaluation, %v in done", metric, v, done[metric])
			}
		}
		if done.name() != "done" {
			t.Errorf("last event: %v", done)
		}
		newest := filepath.Join(dir, "step-00000120")
		code, stdout, stderr := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus,
			"--json")
		var e event
		if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr)
		}
		near(t, []event{e}, []event{last}, append(k.metrics, "loss", "tokens")...)
		confusion, _ := e["confusion"].([]any)
		labels, _ := e["labels"].([]any)
		if len(confusion) != len(labels) || len(labels) < 3 {
			t.Errorf("a table of confusion of %v and the labels %v", confusion, labels)
		}
		if code, stdout, _ := run(t, "eval", "--checkpoint", newest, "--corpus",
			k.corpus); code != 0 || !hasAll(stdout, append(k.metrics, "predicted")) {
			t.Errorf("exit code %d: %s", code, stdout)
		}
		if k.name == "classify" {
			classified(t, newest)
		} else {
			tagged(t, newest)
		}
	})
}

// classified holds rondo classify to some texts.
func classified(t *testing.T, checkpoint string) {
	t.Helper()
	code, stdout, stderr := feed(t, "the film was awful\n\nsuch a lovely unseen book",
		"classify", "--checkpoint", checkpoint)
	rows := strings.Split(stdout, "\n")
	if code != 0 || len(rows) != 3 || !strings.HasPrefix(rows[0], "bad\t0.") ||
		!strings.HasSuffix(rows[0], "\tthe film was awful") ||
		!strings.HasPrefix(rows[1], "good\t") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = feed(t, "a long book\nthe "+strings.Repeat("film ", 512),
		"classify", "--checkpoint", checkpoint, "--json")
	oneLine(t, code, 2, stderr, "standard input, line 2", "513 tokens", "--max-length")
	if !strings.HasPrefix(stdout, `{"text":"a long book","labels":["mixed"],"probabilities":[0.`) {
		t.Errorf("before the wrong line: %s", stdout)
	}
	code, _, stderr = feed(t, "x", "tag", "--checkpoint", checkpoint)
	oneLine(t, code, 2, stderr, "--task classify", "--task tag", checkpoint)
	code, _, stderr = run(t, "generate", "--checkpoint", checkpoint)
	oneLine(t, code, 2, stderr, "--task classify", "--task lm")
}

// tagged holds rondo tag to some texts.
func tagged(t *testing.T, checkpoint string) {
	t.Helper()
	code, stdout, stderr := feed(t, "so New York\r\nso Anna was\n", "tag", "--checkpoint",
		checkpoint)
	want := "so\tO\nNew\tB-LOC\nYork\tI-LOC\n\nso\tO\nAnna\tB-PER\nwas\tO\n\n"
	if code != 0 || stdout != want {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, _, stderr = feed(t, "x", "classify", "--checkpoint", checkpoint)
	oneLine(t, code, 2, stderr, "--task tag", "--task classify", checkpoint)
}

// TestLabelledWrongInput: bad data are one line that names the file and the line.
func TestLabelledWrongInput(t *testing.T) {
	tasks := labelledTasks(t)
	classify, tag := tasks[0], tasks[1]
	dir := t.TempDir()
	train(t, classify.flags("--steps", "2", "--eval-every", "0", "--checkpoint-dir", dir)...)
	saved := filepath.Join(dir, "step-00000002")
	unknown := write(t, "unknown.tsv", "good\twarm\nugly\tcold\n")
	unequal := write(t, "unequal.conll", "Anna NNP B-PER\nso O\n")
	three := write(t, "three.tsv", "good\twarm\nbad\tcold\tso\n")
	empty := write(t, "empty.tsv", "good\twarm\nbad\t \n")
	one := write(t, "one.tsv", "good\twarm\ngood\tlovely\n")
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"unknown label": {append([]string{"train"}, classify.flags("--validation-fraction", "0",
			"--eval-corpus", unknown)...),
			[]string{"--eval-corpus", unknown, "line 2", `"ugly"`, `"good"`}},
		"unknown label in eval": {[]string{"eval", "--checkpoint", saved, "--corpus", unknown},
			[]string{unknown, "line 2", `"ugly"`}},
		"long row": {append([]string{"train"}, classify.flags("--max-length", "3")...),
			[]string{classify.corpus, "line ", "--max-length 3"}},
		"unequal columns": {[]string{"train", "--task", "tag", "--corpus", unequal},
			[]string{unequal, "line 2", "3 columns", "found 2"}},
		"three columns": {[]string{"train", "--task", "classify", "--corpus", three},
			[]string{three, "line 2", "2 columns", "found 3"}},
		"empty row": {[]string{"train", "--task", "classify", "--corpus", empty},
			[]string{empty, "line 2", "no token"}},
		"one label": {[]string{"train", "--task", "classify", "--corpus", one},
			[]string{one, `"good"`, "two labels"}},
		"folder of another task": {append([]string{"train"}, tag.flags("--checkpoint-dir",
			dir)...), []string{dir, "--task classify instead of tag"}},
		"file of another task": {[]string{"train", "--task", "tag", "--corpus", classify.corpus},
			[]string{classify.corpus, ".conll"}},
		"text": {[]string{"train", "--task", "classify"}, []string{"builtin:opticks", ".tsv"}},
		"flag of another task": {append([]string{"train"}, tag.flags("--pool", "max")...),
			[]string{"--pool", "--task classify", "tag"}},
		"characters to tag": {append([]string{"train"}, tag.flags("--tokenizer", "char")...),
			[]string{"--tokenizer char", "--tokenizer word"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run(t, c.args...)
			oneLine(t, code, 2, stderr, c.want...)
		})
	}
}
