package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSubwords trains a tokenizer and counts its tokens with one, two and three workers, each from
// a text of its own, so that none finds another's tokens. All write the same tokenizer.json and the
// same sums. With the file, a job has the same tokens as the one that made it. eval, generate,
// tokenizer and a resume read what the checkpoint has.
func TestSubwords(t *testing.T) {
	t.Parallel()
	book, err := os.ReadFile("../corpus/opticks.txt")
	if err != nil {
		t.Fatal(err)
	}
	book = book[:30000]
	flags := func(dir, text string, more ...string) []string {
		return append([]string{"--task", "ngram", "--corpus", text, "--eos", "line", "--batch", "6",
			"--bptt", "100", "--order", "2", "--checkpoint-dir", dir, "--lease-ttl", "2s",
			"--chunk-timeout", "1s"}, more...)
	}
	learn := []string{"--tokenizer", "bpe", "--vocabulary-size", "400"}
	whole := func(dir string) string {
		code, stdout, stderr := run(t, "tokenizer", "show", dir, "--whole")
		if code != 0 {
			t.Fatal(stderr)
		}
		return stdout
	}
	newest := func(dir string) map[string]string {
		steps, err := filepath.Glob(filepath.Join(dir, "step-*"))
		if err != nil || len(steps) == 0 {
			t.Fatal("no checkpoint", err)
		}
		return tensors(t, steps[len(steps)-1])
	}
	first := t.TempDir()
	train(t, flags(first, write(t, "1.txt", string(book)), learn...)...)
	for workers := 2; workers <= 3; workers++ {
		dir := t.TempDir()
		train(t, flags(dir, write(t, fmt.Sprintf("%d.txt", workers), string(book)),
			append(learn, "--workers", fmt.Sprint(workers))...)...)
		if whole(dir) != whole(first) || !maps.Equal(newest(dir), newest(first)) {
			t.Errorf("%d workers have another tokenizer or other sums than one", workers)
		}
	}
	file := write(t, "tokenizer.json", whole(first))
	again, text := t.TempDir(), write(t, "4.txt", string(book))
	train(t, flags(again, text, "--tokenizer", file, "--steps", "2")...)
	train(t, flags(again, text, "--tokenizer", file)...)
	if whole(again) != whole(first) || !maps.Equal(newest(again), newest(first)) {
		t.Error("resumed, with the file, the tokenizer or the sums differ")
	}
	code, stdout, stderr := run(t, "eval", "--checkpoint", first, "--corpus", text, "--json")
	var e event
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if token, word := e.number("perplexity"), e.number("perplexity_per_word"); token < 2 ||
		word < token {
		t.Errorf("perplexity %v, per word %v", token, word)
	}
	code, stdout, stderr = run(t, "generate", "--checkpoint", first, "--prefix", "The Rays",
		"--tokens", "20")
	if code != 0 || !strings.HasPrefix(stdout, "The Rays") {
		t.Errorf("exit code %d: %q %s", code, stdout, stderr)
	}
	code, _, stderr = run(t, append([]string{"train"}, flags(t.TempDir(), text, "--tokenizer",
		"none.json")...)...)
	oneLine(t, code, 2, stderr, "none.json does not exist")
	code, _, stderr = run(t, "train", "--task", "tag", "--tokenizer", "bpe")
	oneLine(t, code, 2, stderr, "give word")
}
