package subword

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// traced is what tokenizers makes of a text.
type traced struct {
	IDs  []int32 `json:"ids"`
	Text string  `json:"text"`
}

// fixtures reads the tokenizers in testdata, by name.
func fixtures(t testing.TB) map[string]*Tokenizer {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.tokenizer.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no tokenizers", err)
	}
	all := map[string]*Tokenizer{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".tokenizer.json")
		if all[name], err = Read(text); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return all
}

func spelled(t *Tokenizer, ids []int32) (tokens []string) {
	for _, id := range ids {
		tokens = append(tokens, t.Token(id))
	}
	return tokens
}

// compare holds an encoder to the traces of one text.
func compare(t *testing.T, name string, e *Encoder, text string, want traced) {
	t.Helper()
	got, err := e.Encode([]byte(text), true)
	if err != nil || !slices.Equal(got, want.IDs) {
		t.Errorf("%s: %q is %q, %v; want %q", name, text, spelled(e.of, got), err,
			spelled(e.of, want.IDs))
	}
	if got := e.of.Decode(want.IDs); got != want.Text {
		t.Errorf("%s: %q is decoded as %q; want %q", name, text, got, want.Text)
	}
}

// TestTrace compares with tokenizers, token for token (testdata/trace.py).
func TestTrace(t *testing.T) {
	var trace struct {
		Texts []string            `json:"texts"`
		Cases map[string][]traced `json:"cases"`
	}
	text, err := os.ReadFile("testdata/trace.json")
	if err == nil {
		err = json.Unmarshal(text, &trace)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, tokenizer := range fixtures(t) {
		if len(trace.Cases[name]) != len(trace.Texts) {
			t.Fatalf("%s: %d cases of %d texts", name, len(trace.Cases[name]), len(trace.Texts))
		}
		e := tokenizer.NewEncoder()
		for range 2 { // the second time from the cache
			for i, want := range trace.Cases[name] {
				compare(t, name, e, trace.Texts[i], want)
			}
		}
	}
}

// TestPeer compares with tokenizers on every code point and on random texts.
func TestPeer(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	if err := exec.Command(python, "-c", "import tokenizers").Run(); err != nil {
		t.Skipf("%s has no tokenizers; PYTHON=$(bench/peers/setup.sh) runs this", python)
	}
	peer := exec.CommandContext(t.Context(), python, "testdata/trace.py", "many")
	peer.Stderr = os.Stderr
	out, err := peer.StdoutPipe()
	if err == nil {
		err = peer.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	encoders := map[string]*Encoder{}
	for name, tokenizer := range fixtures(t) {
		encoders[name] = tokenizer.NewEncoder()
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	texts := 0
	for lines.Scan() {
		var line struct {
			Input string            `json:"input"`
			Cases map[string]traced `json:"cases"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		for name, want := range line.Cases {
			compare(t, name, encoders[name], line.Input, want)
		}
		texts++
	}
	if err := peer.Wait(); err != nil || lines.Err() != nil || texts < 1000 {
		t.Fatal(texts, err, lines.Err())
	}
}


