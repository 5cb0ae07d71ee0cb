package integration

import (
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// filling is the task fill.
func filling(t *testing.T) exampleTask {
	t.Helper()
	corpus := write(t, "bars.txt", bars(150))
	return exampleTask{"fill", corpus, []string{"accuracy"}, 0.99,
		[]string{"--tokenizer", "word", "--bptt", "8", "--sampling", "random", "--blanks", "0.2"},
		[]string{"--task", "fill", "--corpus", corpus, "--tokenizer", "word",
			"--validation-fraction", "0.2"}}
}

// bars returns bars of eight notes, up or down the scale. A missing note follows from both sides,
// but not from one where a bar ends.
func bars(n int) string {
	rng := rand.New(rand.NewPCG(9, 10))
	up := strings.Fields("do re mi fa so la ti high")
	down := slices.Clone(up)
	slices.Reverse(down)
	var text []string
	for range n {
		text = append(text, [][]string{up, down}[rng.IntN(2)]...)
	}
	return strings.Join(text, " ") + "\n"
}

// TestFillUse: what training says of a network is what rondo eval says of its checkpoint, and rondo
// fill fills blanks.
func TestFillUse(t *testing.T) {
	t.Parallel()
	k, dir := filling(t), t.TempDir()
	events := train(t, k.flags("--checkpoint-dir", dir, "--steps", "400", "--hidden", "24",
		"--layers", "1", "--dropout", "0", "--dropout-input", "0", "--bptt", "16",
		"--validation-fraction", "0", "--eval-corpus", k.corpus, "--eval-every", "200",
		"--checkpoint-every", "200")...)
	evals := named(events, "eval")
	last, done := evals[len(evals)-1], events[len(events)-1]
	if v := last.number("accuracy"); !(v >= k.reached && v <= 1) || done.name() != "done" ||
		done.number("accuracy") != v {
		t.Errorf("accuracy %v in the last evaluation; last event: %v", v, done)
	}
	newest := filepath.Join(dir, "step-00000400")
	code, stdout, stderr := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus, "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	near(t, []event{e}, []event{last}, "accuracy", "loss", "perplexity", "tokens")
	if code, stdout, _ := run(t, "eval", "--checkpoint", newest, "--corpus", k.corpus); code != 0 ||
		!hasAll(stdout, []string{"accuracy ", "perplexity ", "targets "}) {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	code, stdout, stderr = feed(t, "do re mi _ so la ti high\n\nhigh ti la so  _ mi\nfa so\n",
		"fill", "--checkpoint", newest)
	if code != 0 || stdout != "do re mi fa so la ti high\n\nhigh ti la so  fa mi\nfa so\n" {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	long := "la" + strings.Repeat(" so", 512)
	code, stdout, stderr = feed(t, "do re [] fa so [] ti high\n"+long, "fill", "--checkpoint",
		newest, "--mark", "[]", "--json")
	oneLine(t, code, 2, stderr, "standard input, line 2", "513 tokens")
	if !strings.HasPrefix(stdout, `{"text":"do re [] fa so [] ti high","filled":"do re mi fa so `+
		`la ti high","tokens":["mi","la"],"probabilities":[`) {
		t.Errorf("before the wrong line: %s", stdout)
	}
	code, _, stderr = feed(t, "re", "fill", "--checkpoint", newest, "--mark", "")
	oneLine(t, code, 2, stderr, "--mark")
	code, _, stderr = feed(t, "re", "tag", "--checkpoint", newest)
	oneLine(t, code, 2, stderr, "--task fill", "--task tag", newest)
	code, _, stderr = run(t, append([]string{"train"}, k.flags("--checkpoint-dir", dir, "--blanks",
		"0.5")...)...)
	oneLine(t, code, 2, stderr, dir, "--blanks")
}

// TestBothWays: a bidirectional model of the next token is refused with the reason. --i-know trains
// it: it learns to copy what it sees, and writes nothing of use. A causal model does not.
func TestBothWays(t *testing.T) {
	t.Parallel()
	k, dir := filling(t), t.TempDir()
	flags := []string{"--corpus", write(t, "noise.txt", randomLetters(4000)), "--normalize",
		"letters", "--bidirectional", "--hidden", "24", "--layers", "1", "--dropout", "0",
		"--batch", "16", "--bptt", "16", "--steps", "300", "--lr", "0.02",
		"--validation-fraction", "0.2", "--eval-every", "300", "--checkpoint-dir", dir}
	code, _, stderr := run(t, append([]string{"train"}, flags...)...)
	oneLine(t, code, 2, stderr, "--bidirectional", "next token", "--task fill", "--i-know")
	code, _, stderr = run(t, append([]string{"train", "--i-know", "--recompute", "2"}, flags...)...)
	oneLine(t, code, 2, stderr, "--bidirectional", "--recompute")
	code, _, stderr = run(t, append([]string{"train", "--i-know"}, k.flags()...)...)
	oneLine(t, code, 2, stderr, "--i-know", "--task lm", "fill")
	events := train(t, append([]string{"--i-know"}, flags...)...)
	evals := named(events, "eval")
	last := evals[len(evals)-1]
	if p := last.number("perplexity"); !(p < 1.3) { // 6 if nothing predicts the letters
		t.Errorf("perplexity %v", p)
	}
	if s := named(events, "sample"); len(s) == 0 || s[0].text("text") == "" {
		t.Errorf("samples %v", s)
	}
	code, stdout, stderr := run(t, "generate", "--checkpoint", dir, "--prefix", "abc", "--tokens",
		"40", "--greedy")
	if code != 0 || len(stdout) < 44 || !strings.HasPrefix(stdout, "abc") {
		t.Errorf("exit code %d: %q %s", code, stdout, stderr)
	}
	steps := named(train(t, append([]string{"--i-know"}, append(flags, "--steps", "310")...)...),
		"step")
	if len(steps) == 0 || steps[0].number("step") != 301 {
		t.Errorf("after a resume: %v", steps)
	}
}

// randomLetters returns letters that nothing predicts.
func randomLetters(n int) string {
	rng := rand.New(rand.NewPCG(11, 12))
	text := make([]byte, n)
	for i := range text {
		text[i] = byte('a' + rng.IntN(6))
	}
	return string(text)
}
