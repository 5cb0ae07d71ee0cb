package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
)

// answering is the task answer with stories.
func answering(t *testing.T) exampleTask {
	t.Helper()
	return exampleTask{"answer", write(t, "stories.txt", stories(23)), []string{"accuracy"}, 0.9,
		[]string{"--tying", "layer-wise", "--hops", "2", "--memory-rows", "6"}, nil}
}

// copying is the task turing with short sequences.
func copying(t *testing.T) exampleTask {
	t.Helper()
	return exampleTask{"turing", "builtin:repeat-copy:1-3x1-3",
		[]string{"bits_per_bit", "wrong_bits", "right_sequences"}, 0, []string{"--memory-rows",
			"10", "--memory-width", "6", "--heads", "2"}, nil}
}

// stories returns stories in the format of the bAbI tasks, with five questions each.
func stories(n int) string {
	rng := rand.New(rand.NewPCG(15, 16))
	people, places := []string{"Ada", "Bob", "Eve"}, []string{"hall", "garden", "kitchen", "attic"}
	text := ""
	for range n {
		where, line := map[string]string{}, 1
		for range 5 {
			who, place := people[rng.IntN(3)], places[rng.IntN(4)]
			where[who] = place
			text += fmt.Sprintf("%d %s went to the %s.\n", line, who, place)
			text += fmt.Sprintf("%d Where is %s? \t%s\t%d\n", line+1, who, place, line)
			line += 2
		}
	}
	return text
}

// TestAnswers: a memory network learns its stories, rondo eval says the same of them as training
// did, and rondo answer answers questions about another.
func TestAnswers(t *testing.T) {
	k, dir := answering(t), t.TempDir()
	events := train(t, k.flags("--checkpoint-dir", dir, "--steps", "200", "--tying", "adjacent",
		"--validation-fraction", "0", "--eval-corpus", k.corpus, "--eval-every", "100",
		"--checkpoint-every", "100", "--memory-rows", "20")...)
	evals := named(events, "eval")
	last := evals[len(evals)-1]
	if v := last.number("accuracy"); !(v >= k.reached && v <= 1) {
		t.Errorf("accuracy %v", v)
	}
	newest := filepath.Join(dir, "step-00000200")
	code, stdout, stderr := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus, "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	near(t, []event{e}, []event{last}, "accuracy", "loss", "tokens")
	story := "Ada went to the attic.\nBob went to the hall.\nWhere is Bob?\n\n" +
		"1 Ada went to the kitchen\n2 Where is Ada?\tkitchen\t1\n"
	code, stdout, stderr = feed(t, story, "answer", "--checkpoint", newest)
	rows := strings.Split(stdout, "\n")
	if code != 0 || len(rows) != 3 || !strings.HasPrefix(rows[0], "hall\t0.") ||
		!strings.HasSuffix(rows[0], "\tWhere is Bob?") || !strings.HasPrefix(rows[1], "kitchen\t") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = feed(t, story, "answer", "--checkpoint", newest, "--json")
	if code != 0 || !strings.HasPrefix(stdout, `{"question":"Where is Bob?","answer":"hall",`) ||
		strings.Count(stdout, `{"sentence":"`) != 4 { // two hops each
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	code, _, stderr = feed(t, "Ada went.\n?\n", "answer", "--checkpoint", newest)
	oneLine(t, code, 2, stderr, "standard input, line 2", "no word")
	code, _, stderr = run(t, "answer", "--checkpoint", t.TempDir())
	oneLine(t, code, 2, stderr, "no checkpoint")
}

// TestTuringUse: rondo eval measures a neural Turing machine on its problem at any lengths, and
// says of the same sequences what training did.
func TestTuringUse(t *testing.T) {
	k, dir := copying(t), t.TempDir()
	last := named(train(t, k.flags("--checkpoint-dir", dir)...), "eval")[1]
	newest := filepath.Join(dir, "step-00000020")
	code, stdout, stderr := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus, "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	near(t, []event{e}, []event{last}, append(k.metrics, "loss", "tokens")...)
	code, stdout, stderr = run(t, "eval", "--checkpoint", newest, "--corpus",
		"builtin:repeat-copy:5x4")
	if code != 0 || !hasAll(stdout, append(k.metrics, fmt.Sprint(512*9*(5*4+1)))) {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	for corpus, words := range map[string][]string{
		"builtin:copy:5":          {"9 inputs", "give the problem that it learns"},
		"builtin:repeat-copy:5":   {"LENGTHSxREPEATS"},
		"builtin:repeat-copy:0x1": {`"0"`, "1-20"},
		"builtin:opticks":         {"reads generated sequences", "builtin:copy:1-20"},
	} {
		code, _, stderr = run(t, "eval", "--checkpoint", newest, "--corpus", corpus)
		oneLine(t, code, 2, stderr, append(words, corpus)...)
	}
	code, _, stderr = run(t, "train", "--task", "turing", "--device", "cuda")
	oneLine(t, code, 2, stderr, "--task turing computes on the CPU")
}
