package subword

import (
	"bufio"
	"bytes"
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
	Text *string `json:"text"` // decoded; nil: not compared
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
	for _, name := range []string{"plain", "bytes", "user"} {
		model, err := os.ReadFile("testdata/" + name + ".model")
		if err == nil {
			all[name], err = ReadSentencePiece(model)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
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
	if got := e.of.Decode(want.IDs); want.Text != nil && got != *want.Text {
		t.Errorf("%s: %q is decoded as %q; want %q", name, text, got, *want.Text)
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

// file is a tokenizer.json with some parts.
func file(normalizer, split, decoder, model, added string) string {
	return `{"normalizer":` + normalizer + `,"pre_tokenizer":` + split + `,"decoder":` + decoder +
		`,"model":` + model + `,"added_tokens":[` + added + `]}`
}

const smallModel = `{"type":"BPE","unk_token":"x","vocab":{"x":0,"a":1,"aa":2},"merges":["a a"]}`

func TestBadFiles(t *testing.T) {
	step := func(name, rest string) string { return `{"type":"` + name + `"` + rest + `}` }
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, maxSteps+1) +
		strings.Repeat("]}", maxSteps+1)
	for text, says := range map[string]string{
		"":                          "no tokenizer.json",
		"[]":                        "no tokenizer.json",
		"{}":                        "no model",
		"{\"model\":\"\xff\"}":      "UTF-8",
		strings.Repeat(" ", 65<<20): "more than",
		file("null", "null", "null", `{"type":"Unigram","vocab":[["a",0.5]]}`, ""): `"Unigram" is not`,
		file("null", "null", "null", `{"type":"BPE","vocab":{"a":1}}`, ""):         "without gaps",
		file("null", "null", "null", `{"type":"BPE","vocab":{"a":0,"b":0}}`, ""):   "both have id 0",
		file("null", "null", "null", `{"type":"BPE","vocab":{"a":-1}}`, ""):        "without gaps",
		file("null", "null", "null", `{"type":"BPE","vocab":{"":0}}`, ""):          "is empty",
		file("null", "null", "null", `{"type":"BPE","vocab":{}}`, ""):              "0 tokens",
		file("null", "null", "null", `{"type":"BPE","vocab":{"a":0},"merges":["a a"]}`, ""): "not in " +
			"the vocabulary",
		file("null", "null", "null", `{"type":"BPE","vocab":{"a":0},"merges":["a"]}`, ""): "two parts",
		file("null", "null", "null", `{"type":"BPE","dropout":0.1,"vocab":{"a":0}}`, ""):  "dropout",
		file("null", "null", "null", `{"type":"BPE","unk_token":"?","vocab":{"a":0}}`,
			""): `"?" is not in`,
		file("null", "null", "null", `{"type":"WordPiece","vocab":{"a":0}}`, ""): `"[UNK]" is not`,
		file("null", "null", "null", `{"type":"WordPiece","unk_token":"a","vocab":{"a":0},`+
			`"max_input_chars_per_word":100000}`, ""): "max_input_chars_per_word",
		file("null", "null", "null", smallModel, `{"id":7,"content":"a"}`): "two ids",
		file(step("Precompiled", ""), "null", "null", smallModel, ""): `normalizer "Precompiled" is ` +
			"not supported",
		file("null", step("UnicodeScripts", ""), "null", smallModel, ""):             `"UnicodeScripts" is not`,
		file("null", "null", step("CTC", ""), smallModel, ""):                        `decoder "CTC" is not`,
		file(deep, "null", "null", smallModel, ""):                                   "more than 64 steps",
		file("null", step("Split", `,"behavior":"Removed"`), "null", smallModel, ""): "no pattern",
		file("null", step("Split", `,"behavior":"X","pattern":{"String":"a"}`), "null", smallModel,
			""): `behavior "X"`,
		file("null", step("Split", `,"behavior":"Removed","pattern":{"Regex":"(a"}`), "null",
			smallModel, ""): "cannot be used",
		file("null", step("Metaspace", `,"replacement":"ab"`), "null", smallModel, ""): "one character",
		file(step("Replace", `,"pattern":{"String":"a"},"content":"`+strings.Repeat("a", 5000)+`"`),
			"null", "null", smallModel, ""): "more than 4096 bytes",
	} {
		if _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.150s: %v; want %q", text, err, says)
		}
	}
}

// TestHostileSteps has steps that would take too much memory for a text.
func TestHostileSteps(t *testing.T) {
	grow := `{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("a", 4000) + `"}`
	k, err := Read([]byte(file(`{"type":"Sequence","normalizers":[`+grow+","+grow+`]}`, "null",
		"null", smallModel, "")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.NewEncoder().Encode([]byte("aa"), true); err == nil ||
		!strings.Contains(err.Error(), "makes more than") {
		t.Error(err)
	}
	if _, err := k.NewEncoder().Encode([]byte("a\xff"), true); err == nil {
		t.Error("a text that is not UTF-8 is encoded")
	}
}

func FuzzRead(f *testing.F) {
	for _, tokenizer := range fixtures(f) {
		f.Add(tokenizer.JSON(), "It's 42 <eos> na\u00efve\n\u65e5\u672c ")
	}
	f.Fuzz(func(t *testing.T, text []byte, input string) {
		k, err := Read(text)
		if err != nil {
			return
		}
		again, err := Read(k.JSON())
		if err != nil || !bytes.Equal(again.JSON(), k.JSON()) {
			t.Fatal("what was read cannot be read again", err)
		}
		ids, err := k.NewEncoder().Encode([]byte(input), true)
		if err != nil {
			return
		}
		_ = k.Decode(ids) // panics if an id is out of range
		s := k.NewStream()
		for _, id := range ids[:min(len(ids), 100)] {
			s.Next(id)
		}
		s.End()
	})
}
