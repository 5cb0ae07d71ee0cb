package subword

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
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
	got, err := e.Encode([]byte(text), true, true)
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
	if testing.Short() {
		t.Skip("it takes a minute")
	}
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

const smallModel = `{"type":"BPE","unk_token":"x","vocab":{"x":0,"a":1,"aa":2},"merges":["a a"]}`

// file is a tokenizer.json with one part of its own.
func file(part, content string) string {
	parts := map[string]string{"model": smallModel, "added_tokens": "[]"}
	parts[part] = content
	var all []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		all = append(all, `"`+name+`":`+parts[name])
	}
	return "{" + strings.Join(all, ",") + "}"
}

// bytePairModel is a file with a BPE of these fields.
func bytePairModel(fields string) string { return file("model", `{"type":"BPE",`+fields+`}`) }

// typed is a component.
func typed(name, fields string) string { return `{"type":"` + name + `"` + fields + `}` }

func TestBadFiles(t *testing.T) {
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, maxSteps+1) +
		strings.Repeat("]}", maxSteps+1)
	long := strings.Repeat("a", maxPattern+1)
	for text, says := range map[string]string{
		"":                          "no tokenizer.json",
		"[]":                        "no tokenizer.json",
		"{}":                        "no model",
		"{\"model\":\"\xff\"}":      "UTF-8",
		strings.Repeat(" ", 65<<20): "more than",

		file("model", `{"type":"Unigram","vocab":[["a",0.5]]}`): `"Unigram" is not supported`,
		file("model", `{"type":"WordPiece","vocab":{"a":0}}`):   `"[UNK]" is not in the vocabulary`,
		file("model", `{"type":"WordPiece","unk_token":"a","vocab":{"a":0},`+
			`"max_input_chars_per_word":100000}`): "max_input_chars_per_word",
		bytePairModel(`"vocab":{"a":1}`):                   "without gaps",
		bytePairModel(`"vocab":{"a":0,"b":0}`):             "both have id 0",
		bytePairModel(`"vocab":{"a":-1}`):                  "without gaps",
		bytePairModel(`"vocab":{"":0}`):                    "is empty",
		bytePairModel(`"vocab":{}`):                        "0 tokens",
		bytePairModel(`"vocab":{"a":0},"merges":["a a"]`):  "not in the vocabulary",
		bytePairModel(`"vocab":{"a":0},"merges":["a"]`):    "two parts",
		bytePairModel(`"vocab":{"a":0},"dropout":0.1`):     "dropout",
		bytePairModel(`"vocab":{"a":0},"unk_token":"?"`):   `"?" is not in the vocabulary`,
		file("added_tokens", `[{"id":7,"content":"a"}]`):   "two ids",
		file("normalizer", typed("Precompiled", "")):       `normalizer "Precompiled" is not`,
		file("pre_tokenizer", typed("UnicodeScripts", "")): `"UnicodeScripts" is not supported`,
		file("decoder", typed("CTC", "")):                  `decoder "CTC" is not supported`,
		file("normalizer", deep):                           "more than 64 steps",

		file("added_tokens", `[{"id":3,"content":"`+
			long[:maxPartBytes+1]+`"}]`): "longer than 512 bytes",
		file("pre_tokenizer", typed("Split", `,"behavior":"Removed"`)): "no pattern",
		file("pre_tokenizer", typed("Split",
			`,"behavior":"X","pattern":{"String":"a"}`)): `behavior "X"`,
		file("pre_tokenizer", typed("Split",
			`,"behavior":"Removed","pattern":{"Regex":"(a"}`)): "cannot be used",
		file("pre_tokenizer", typed("Metaspace", `,"replacement":"ab"`)): "one character",
		file("normalizer", typed("Replace",
			`,"pattern":{"String":"a"},"content":"`+long+`"`)): "more than 4096 bytes",
	} {
		if _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.150s: %v; want %q", text, err, says)
		}
	}
}

// TestHostileSteps has steps that would take too much memory for a text.
func TestHostileSteps(t *testing.T) {
	grow := typed("Replace", `,"pattern":{"String":"a"},"content":"`+
		strings.Repeat("a", 4000)+`"`)
	k, err := Read([]byte(file("normalizer", typed("Sequence", `,"normalizers":[`+grow+","+grow+
		`]`))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.NewEncoder().Encode([]byte("aa"), true, true); err == nil ||
		!strings.Contains(err.Error(), "makes more than") {
		t.Error(err)
	}
	if _, err := k.NewEncoder().Encode([]byte("a\xff"), true, true); err == nil {
		t.Error("a text that is not UTF-8 is encoded")
	}
}

// TestStreamShowsNoTextTwice has decoders that change the text before a token.
func TestStreamShowsNoTextTwice(t *testing.T) {
	const model = `{"type":"BPE","vocab":{"one":0,"\u00e9":1,"two":2},"merges":[]}`
	for _, c := range []struct {
		first          int32
		find, by, want string
	}{
		{0, "et", "E", "oneEwo"},
		{1, "\u00e9t", "\u00e8", "\u00e9\u00e8wo"}, // their first bytes are the same
	} {
		change := typed("Replace", `,"pattern":{"String":"`+c.find+`"},"content":"`+c.by+`"`)
		k, err := Read([]byte(`{"model":` + model + `,"decoder":` +
			typed("Sequence", `,"decoders":[{"type":"Fuse"},`+change+`]`) + `}`))
		if err != nil {
			t.Fatal(err)
		}
		s := k.NewStream()
		if got := s.Next(c.first) + s.Next(2) + s.End(); got != c.want {
			t.Errorf("%q: %q; want %q", c.find, got, c.want)
		}
	}
}

func TestBadSentencePieces(t *testing.T) {
	model, err := os.ReadFile("testdata/plain.model")
	if err != nil {
		t.Fatal(err)
	}
	unigram := bytes.Clone(model) // the piece <unk> has the same two bytes before
	unigram[bytes.LastIndex(model, []byte{trainerType << 3, typeBytePairs})+1] = 1
	for text, says := range map[string]string{
		"":                           "0 pieces",
		string(model[:len(model)-1]): "no model of SentencePiece",
		string(unigram):              "unigram is not read",
		"\x0a\x03\x0a\x01\xff":       "not UTF-8",
		strings.Repeat("x", 65<<20):  "more than",
	} {
		if _, err := ReadSentencePiece([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v; want %q", text, err, says)
		}
	}
}

func FuzzReadSentencePiece(f *testing.F) {
	for _, name := range []string{"plain", "bytes", "user"} {
		model, err := os.ReadFile("testdata/" + name + ".model")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(model)
	}
	f.Fuzz(func(t *testing.T, model []byte) {
		k, err := ReadSentencePiece(model)
		if err != nil {
			return
		}
		ids, err := k.NewEncoder().Encode([]byte("It's 42 na\u00efve "), true, true)
		if err == nil {
			_ = k.Decode(ids)
		}
	})
}

func FuzzRead(f *testing.F) {
	for part, components := range map[string][]string{
		"normalizer": {typed("BertNormalizer", ""), typed("Prepend", `,"prepend":"_"`),
			typed("Sequence", `,"normalizers":[{"type":"NFKC"},{"type":"Strip"}]`),
			typed("Replace", `,"pattern":{"Regex":"a+"},"content":"b"`)},
		"pre_tokenizer": {typed("ByteLevel", ""), typed("Metaspace", ""), typed("Whitespace", ""),
			typed("BertPreTokenizer", ""), typed("Digits", ""),
			typed("Split", `,"behavior":"MergedWithNext","pattern":{"String":"a"}`)},
		"decoder": {typed("WordPiece", `,"prefix":"##","cleanup":true`), typed("ByteFallback", ""),
			typed("Strip", `,"content":" ","start":1,"stop":1`)},
		"model":        {`{"type":"WordPiece","unk_token":"x","vocab":{"x":0,"##a":1,"a":2}}`},
		"added_tokens": {`[{"id":3,"content":"<s>","lstrip":true,"single_word":true}]`},
	} {
		for _, c := range components { // small ones: large ones are changed more slowly
			f.Add([]byte(file(part, c)), "It's 42 aaa<s> na\u00efve\n\u65e5\u672c ")
		}
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
		ids, err := k.NewEncoder().Encode([]byte(input), true, true)
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
