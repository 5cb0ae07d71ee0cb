package integration

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// translation is the task translate.
func translation(t *testing.T) exampleTask {
	t.Helper()
	return exampleTask{"translate", write(t, "numbers.tsv", numbers(115)), []string{"bleu"}, 90,
		[]string{"--attention", "luong", "--lr", "0.05", "--teacher-forcing", "0.7",
			"--teacher-forcing-steps", "5"}, nil}
}

// digits are words and their translations.
var digits = map[string]string{"one": "un", "two": "deux", "three": "trois", "four": "quatre"}

// numbers returns pairs of lines, translated word by word.
func numbers(lines int) string {
	rng := rand.New(rand.NewPCG(5, 6))
	words, text := slices.Sorted(maps.Keys(digits)), ""
	for range lines {
		var source, target []string
		for range 1 + rng.IntN(4) {
			word := words[rng.IntN(len(words))]
			source, target = append(source, word), append(target, digits[word])
		}
		text += strings.Join(source, " ") + "\t" + strings.Join(target, " ") + "\n"
	}
	return text
}

// TestTranslatedUse: what training says of a network is what rondo eval says of its checkpoint, and
// rondo translate translates lines as its data do, with every width of beam.
func TestTranslatedUse(t *testing.T) {
	k, dir := translation(t), t.TempDir()
	events := train(t, k.flags("--checkpoint-dir", dir, "--steps", "300", "--hidden", "24",
		"--max-examples", "112", // fewer than it is measured on
		"--layers", "1", "--dropout", "0", "--dropout-input", "0", "--lr", "0.01",
		"--validation-fraction", "0", "--eval-corpus", k.corpus, "--eval-every", "150",
		"--checkpoint-every", "150")...)
	evals := named(events, "eval")
	last, done := evals[len(evals)-1], events[len(events)-1]
	if bleu := last.number("bleu"); !(bleu >= k.reached && bleu <= 100.01) ||
		done.number("bleu") != bleu || done.name() != "done" {
		t.Errorf("BLEU %v in the last evaluation; last event: %v", bleu, done)
	}
	newest := filepath.Join(dir, "step-00000300")
	var wide event
	for _, beam := range []string{"1", "3"} {
		code, stdout, stderr := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus,
			"--beam", beam, "--json")
		if err := json.Unmarshal([]byte(stdout), &wide); code != 0 || err != nil {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr)
		}
		near(t, []event{wide}, []event{last}, "loss", "tokens")
		if beam == "1" {
			near(t, []event{wide}, []event{last}, "bleu")
		}
		if book := wide.number("book_bleu"); !(book >= k.reached && book <= 100.01) {
			t.Errorf("beam %s: book_bleu %v", beam, book)
		}
		if words := wide.number("sacrebleu"); words != wide.number("bleu") { // the same words
			t.Errorf("beam %s: sacrebleu %v, and bleu %v", beam, words, wide.number("bleu"))
		}
	}
	if code, stdout, _ := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus); code != 0 ||
		!hasAll(stdout, []string{"bleu ", "sacrebleu ", "book_bleu ", "loss ", "targets "}) {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	translates(t, newest)
}

// translates holds rondo translate to some texts.
func translates(t *testing.T, checkpoint string) {
	t.Helper()
	for _, beam := range []string{"1", "4"} {
		code, stdout, stderr := feed(t, "two\r\n\nfour one three\n \none", "translate",
			"--checkpoint", checkpoint, "--beam", beam)
		if code != 0 || stdout != "deux\n\nquatre un trois\n\nun\n" {
			t.Errorf("beam %s: exit code %d:\n%s%s", beam, code, stdout, stderr)
		}
	}
	code, stdout, stderr := feed(t, "four one\none"+strings.Repeat(" two", 512), "translate",
		"--checkpoint", checkpoint, "--json")
	oneLine(t, code, 2, stderr, "standard input, line 2", "513 tokens", "--max-length")
	if !strings.HasPrefix(stdout,
		`{"text":"four one","translation":"quatre un","log_probability":-0.`) {
		t.Errorf("before the wrong line: %s", stdout)
	}
	for _, wrong := range [][]string{{"--beam", "0"}, {"--beam", "65"},
		{"--length-penalty", "-1"}} {
		code, _, stderr = feed(t, "one", append([]string{"translate", "--checkpoint", checkpoint},
			wrong...)...)
		oneLine(t, code, 2, stderr, wrong...)
	}
	code, _, stderr = feed(t, "one", "classify", "--checkpoint", checkpoint)
	oneLine(t, code, 2, stderr, "--task translate", "--task classify", checkpoint)
}

// TestTranslatedWrongInput: bad data are one line that names the file and the line.
func TestTranslatedWrongInput(t *testing.T) {
	k, dir := translation(t), t.TempDir()
	train(t, k.flags("--steps", "2", "--eval-every", "0", "--checkpoint-dir", dir)...)
	saved := filepath.Join(dir, "step-00000002")
	alone := write(t, "alone.tsv", "one\tun\ntwo\n")
	empty := write(t, "empty.tsv", "one\tun\n \tdeux\n")
	silent := write(t, "silent.tsv", "one\tun\ntwo\t \n")
	long := write(t, "long.tsv", "one\tun\none two\tun deux trois\n")
	corpus := []string{"train", "--task", "translate", "--corpus"}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"one column":   {append(corpus, alone), []string{alone, "line 2", "2 columns", "found 1"}},
		"empty source": {append(corpus, empty), []string{empty, "line 2", "no token"}},
		"empty target": {append(corpus, silent), []string{silent, "line 2", "no token"}},
		"long target": {append(corpus, long, "--max-length", "2"),
			[]string{long, "line 2", "--max-length 2"}},
		"eval": {[]string{"eval", "--checkpoint", saved, "--corpus", alone},
			[]string{alone, "line 2", "found 1"}},
		"file of another task": {append(corpus, write(t, "a.conll", "a O\n")),
			[]string{"a.conll", ".tsv"}},
		"folder of another network": {append([]string{"train"}, k.flags("--checkpoint-dir", dir,
			"--attention", "none")...), []string{dir, "--attention luong instead of none"}},
		"attention": {append(corpus, k.corpus, "--attention", "dot"),
			[]string{"--attention", "dot", "luong"}},
		"context": {append(corpus, k.corpus, "--decoder-context", "sum"),
			[]string{"--decoder-context", "sum", "concat"}},
		"flag of another task": {[]string{"train", "--task", "tag", "--corpus",
			"x.conll", "--attention", "luong"}, []string{"--attention", "--task translate", "tag"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run(t, c.args...)
			oneLine(t, code, 2, stderr, c.want...)
		})
	}
}
