package corpus

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// zipped returns a text as gzip.
func zipped(t *testing.T, text string) string {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.String()
}

// zstandard returns a text as zstd.
func zstandard(t *testing.T, text string) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return string(w.EncodeAll([]byte(text), nil))
}

// write makes files below a folder, by their names.
func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// words returns a corpus's tokens, with spaces between them.
func tokensOf(t *testing.T, cfg Config) string {
	t.Helper()
	c := open(t, cfg)
	var text []string
	for _, id := range all(t, c.Tokens()) {
		text = append(text, c.Vocabulary().Token(id))
	}
	return strings.Join(text, " ")
}

// TestTexts reads a folder, patterns and lists of files in all formats.
func TestTexts(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string]string{
		"a.txt":            "one two\nthree",
		"b/c.txt.gz":       zipped(t, "four\n\nfive\n"),
		"b/d.txt.zst":      zstandard(t, "six"),
		"e.jsonl":          "{\"text\": \"seven\", \"n\": 1}\n\n{\"text\": \"eight\\nnine\"}\n",
		"f.jsonl.gz":       zipped(t, `{"text": "ten"}`),
		".hidden.txt":      "hidden",
		".folder/hide.txt": "hidden",
	})
	word := split(Word, None)
	other, linked := t.TempDir(), filepath.Join(t.TempDir(), "linked")
	write(t, other, map[string]string{"a": "one", "[x]": "two"})
	if err := os.Symlink(other, linked); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		source    string
		tokenizer Tokenizer
		want      string
	}{
		{folder, word, "one two three four five six seven eight nine ten"},
		{folder + "/b/*.txt.*", word, "four five six"},
		{folder + "/*/*", word, "four five six"},
		{linked, word, "two one"},
		{other + "/[x]", word, "two"},
		{folder + "/b," + folder + "/a.txt", word, "four five six one two three"},
		{"file://" + folder + "/b/", word, "four five six"},
		{folder, Tokenizer{Word, None, LineEnds},
			"one two <eos> three <eos> four <eos> <eos> five " +
				"<eos> six <eos> seven <eos> eight <eos> nine <eos> ten <eos>"},
		{folder, Tokenizer{Word, Letters, DocumentEnds},
			"one two three <eos> four five <eos> six " +
				"<eos> seven <eos> eight nine <eos> ten <eos>"},
		{folder + "/b/c.txt.gz", Tokenizer{Char, None, LineEnds},
			"f o u r <eos> <eos> f i v e <eos>"},
		{folder + "/[ab]*", Tokenizer{Char, Letters, LineEnds},
			"o n e   t w o <eos> t h r e e <eos>"},
	} {
		cfg := Config{Source: c.source, Tokenizer: c.tokenizer, CacheDir: t.TempDir()}
		if got := tokensOf(t, cfg); got != c.want {
			t.Errorf("%s, %v: %q; want %q", c.source, c.tokenizer, got, c.want)
		}
	}
}

// TestTextsKnowTheirFiles looks for another file or content in a folder that has a token file.
func TestTextsKnowTheirFiles(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, map[string]string{"a": "one", "b": "two"})
	cfg := Config{Source: folder, Tokenizer: split(Word, None),
		CacheDir: t.TempDir()}
	if got := tokensOf(t, cfg); got != "one two" {
		t.Error(got)
	}
	write(t, folder, map[string]string{"c": "three", "a": "again"})
	if got := tokensOf(t, cfg); got != "again two three" {
		t.Error(got)
	}
	write(t, folder, map[string]string{"d.jsonl": `{"text": "four", "body": "five"}`})
	if got := tokensOf(t, cfg); got != "again two three four" {
		t.Error(got)
	}
	cfg.TextField = "body"
	if got := tokensOf(t, cfg); got != "again two three five" {
		t.Error(got)
	}
}

// TestWrongTexts has one line for each fault.
func TestWrongTexts(t *testing.T) {
	folder := t.TempDir()
	half := zipped(t, strings.Repeat("a long enough text ", 1000))
	write(t, folder, map[string]string{
		"cut/a.gz":      half[:len(half)/2],
		"cut.zst":       zstandard(t, strings.Repeat("text ", 1000))[:20],
		"no.gz":         "plain",
		"t.parquet.gz":  zipped(t, "PAR1"),
		"t.ZIP.zst":     zstandard(t, "PK"),
		"wrong/b.txt":   "a\xff",
		"list.jsonl":    "[1]\n",
		"none.jsonl":    "{\"text\": \"a\"}\n{\"body\": \"b\"}\n",
		"number.jsonl":  "{\"text\": 1}\n",
		"inside/c.txt":  "c",
		"outside/d.txt": "secret",
		"empty/.hidden": "a",
	})
	if err := os.Symlink("../outside/d.txt", filepath.Join(folder, "inside", "d.txt")); err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"cut":                          "a.gz: read at byte 0: the compressed text has no end",
		"cut.zst":                      "no end",
		"no.gz":                        "it is not gzip",
		"t.parquet.gz":                 "a .parquet within .gz is not read: unpack it",
		"t.ZIP.zst":                    "a .zip within .zst is not read: unpack it",
		"wrong/*":                      "invalid UTF-8 at byte 1 (0xff)",
		"list.jsonl":                   "line 1: it is no JSON object",
		"none.jsonl":                   `line 2: the object has no field "text": name the`,
		"number.jsonl":                 `line 1: the field "text" is not a string`,
		"inside":                       "d.txt leads out of",
		"inside/../*/*":                "read at byte 0",
		"inside/*/../../outside/d.txt": "no file is there",
		"empty":                        "no file is there: give a path",
		"[":                            "malformed",
		"list.jsonl,new":               "new does not exist",
	} {
		c, err := Open(context.Background(), Config{Source: folder + "/" + source,
			Tokenizer: split(Word, None), CacheDir: t.TempDir()})
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", source, err, want)
		}
	}
}

// TestObjects reads a folder of a bucket, each object once, and a pattern in it.
func TestObjects(t *testing.T) {
	ctx := context.Background()
	cfg := Config{Tokenizer: split(Word, None), CacheDir: t.TempDir(),
		OpenBucket: func(_ context.Context, url string) (*blob.Bucket, error) {
			if url != "mem://bucket" {
				return nil, errors.New(url)
			}
			bucket := memblob.OpenBucket(nil)
			for name, text := range map[string]string{"texts/a.txt": "one", "other": "no",
				"texts/b.gz": zipped(t, "two"), "texts/c/d.jsonl": `{"text": "three"}`,
				"texts/c/": ""} {
				if err := bucket.WriteAll(ctx, name, []byte(text), nil); err != nil {
					return nil, err
				}
			}
			return bucket, nil
		}}
	for source, want := range map[string]string{
		"mem://bucket/texts/":                             "one two three",
		"mem://bucket/texts/*.*":                          "one two",
		"mem://bucket/texts/c/d.jsonl,mem://bucket/other": "three no",
	} {
		cfg.Source = source
		if got := tokensOf(t, cfg); got != want {
			t.Errorf("%s: %q; want %q", source, got, want)
		}
	}
	cfg.Source = "mem://bucket/nothing/"
	_, err := Open(ctx, cfg)
	if err == nil || !strings.Contains(err.Error(), "no object is there") {
		t.Error(err)
	}
}

// cutOff is a transfer that ends too early.
type cutOff struct{ io.Reader }

func (c cutOff) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// TestCutOffText does not take the end of a transfer for the end of the text.
func TestCutOffText(t *testing.T) {
	err := split(Word, None).scan(context.Background(),
		cutOff{strings.NewReader("a text")}, newCutter(Word, func() []byte { return nil }, nil))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// TestLinesOfAPrefix encodes a text that goes on, and writes line feeds for its ends.
func TestLinesOfAPrefix(t *testing.T) {
	v, err := NewVocabulary([]string{Unknown, EndOfText, "a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"a b\n\nb": 5, "a b\n": 3, "a": 1} {
		tokenizer := Tokenizer{Word, None, LineEnds}
		ids, err := v.Encode(tokenizer, text)
		if err != nil || len(ids) != want || v.Decode(tokenizer, ids) != text {
			t.Errorf("%q: %v, %v", text, ids, err)
		}
	}
}
