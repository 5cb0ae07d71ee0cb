package corpus

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// documents returns the parts of tokens that EndOfText ends.
func documents(c *Corpus, ids []int32) []string {
	text := c.Vocabulary().Decode(c.tokenizer, ids)
	return strings.SplitAfter(text, "\n")
}

// Shuffled documents are the same ones, whole, in an order that the seed alone draws.
func TestShuffledDocuments(t *testing.T) {
	var lines, want []string
	for i := range 300 {
		lines = append(lines, `{"text": "`+strings.Repeat("w", i%5)+" d"+strconv.Itoa(i)+`"}`)
	}
	folder := textFiles(t, map[string]string{"a.jsonl": strings.Join(lines[:100], "\n"),
		"b.jsonl": strings.Join(lines[100:], "\n"), "c.txt": "a file", "d.txt": "another"})
	cfg := Config{Source: folder, CacheDir: t.TempDir(),
		Tokenizer: Tokenizer{Unit: Char, Normalize: None, Ends: DocumentEnds}}
	plain := open(t, cfg)
	want = documents(plain, all(t, plain.Tokens()))
	cfg.ShuffleDocuments, cfg.Seed = true, 1
	first, again := open(t, cfg), open(t, cfg)
	cfg.Seed = 2
	second := open(t, cfg)
	a, b := all(t, first.Tokens()), all(t, second.Tokens())
	if !slices.Equal(a, all(t, again.Tokens())) || first.Fingerprint() != again.Fingerprint() {
		t.Error("one seed has two orders")
	}
	if slices.Equal(a, b) || first.Fingerprint() == second.Fingerprint() ||
		slices.Equal(a, all(t, plain.Tokens())) || first.Fingerprint() == plain.Fingerprint() {
		t.Error("two seeds have one order, or the files'")
	}
	slices.Sort(want)
	for _, c := range []*Corpus{first, second} {
		got := documents(c, all(t, c.Tokens()))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%d documents, and %d that are shuffled", len(want), len(got))
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		from := random.IntN(len(a) + 1)
		dst := make([]int32, random.IntN(len(a)-from+1))
		if err := first.Tokens().ReadTokens(dst, int64(from)); err != nil ||
			!slices.Equal(dst, a[from:from+len(dst)]) {
			t.Fatalf("tokens [%d, %d): %v", from, from+len(dst), err)
		}
	}
	cfg.Source = textFile(t, "one document")
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(),
		"--shuffle-documents: it is one document") {
		t.Errorf("one document: %v", err)
	}
}

func TestSplits(t *testing.T) {
	folder := textFiles(t, map[string]string{"wiki.train.tokens": "a b", "wiki.valid.tokens": "c",
		"test/latest.txt": "d", "dev-test.txt": "e", "train/val_1.txt": "f", "contest.txt": "g"})
	for name, want := range map[string]string{"#train": "a b", "#valid": "f c", "#test": "e d",
		"": "g e d f a b c"} {
		c := open(t, Config{Source: folder + name, Tokenizer: split(Word, None),
			CacheDir: t.TempDir()})
		if got := c.Vocabulary().Decode(c.tokenizer, all(t, c.Tokens())); got != want {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
	_, err := Open(t.Context(), Config{Source: filepath.Join(folder, "*.tokens") + "#test",
		Tokenizer: split(Word, None), CacheDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "none of the 2 files there has the word test") {
		t.Errorf("no test file: %v", err)
	}
}

// The rows of a column are documents, whether or not the file can be read at any place.
func TestParquetTexts(t *testing.T) {
	type row struct {
		ID   int64   `parquet:"id"`
		Text *string `parquet:"text,optional"`
	}
	first, second := "first \u00e9", "second"
	var file bytes.Buffer
	if err := parquet.Write(&file, []row{{1, &first}, {2, nil}, {3, &second}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "docs.parquet")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Source: path, CacheDir: t.TempDir(),
		Tokenizer: Tokenizer{Unit: Word, Normalize: None, Ends: DocumentEnds}}
	c := open(t, cfg)
	want := []string{"first \u00e9\n", "second\n", ""}
	if got := documents(c, all(t, c.Tokens())); !slices.Equal(got, want) {
		t.Errorf("documents %q", got)
	}
	var streamed int
	stream := struct{ io.Reader }{bytes.NewReader(file.Bytes())}
	err := readDocuments("docs.parquet", "text", stream,
		func(io.Reader) error { streamed++; return nil })
	if err != nil || streamed != 2 {
		t.Errorf("%d documents of a stream, %v", streamed, err)
	}
	for field, want := range map[string]string{"id": "is not text", "body": `no column "body"`} {
		cfg.TextField = field
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", field, err)
		}
	}
	cut := filepath.Join(t.TempDir(), "cut.parquet")
	if err := os.WriteFile(cut, file.Bytes()[:file.Len()/2], 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Source = cut
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("half a file: %v", err)
	}
}
