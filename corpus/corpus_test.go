package corpus

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

func open(t testing.TB, cfg Config) *Corpus {
	t.Helper()
	c, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// all reads all tokens.
func all(t testing.TB, tokens Tokens) []int32 {
	t.Helper()
	ids := make([]int32, tokens.Len())
	if err := tokens.ReadTokens(ids, 0); err != nil {
		t.Fatal(err)
	}
	return ids
}

// textFile writes a text to a file in a new folder.
func textFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpticksComesBackAsItWas(t *testing.T) {
	for _, tokenizer := range allTokenizers {
		c := open(t, Config{Source: Opticks, Tokenizer: tokenizer, CacheDir: t.TempDir()})
		want := strings.Join(slowTokens(tokenizer, opticks), tokenizer.Unit.Separator())
		if got := c.Vocabulary().Decode(tokenizer, all(t, c.Tokens())); got != want {
			t.Errorf("%v: %d bytes came back; want %d", tokenizer, len(got), len(want))
		}
		ids, err := c.Vocabulary().Encode(tokenizer, opticks)
		if err != nil || !slices.Equal(ids, all(t, c.Tokens())) {
			t.Errorf("%v: Encode finds %d other ids, %v", tokenizer, len(ids), err)
		}
	}
}

func TestVocabularyIsByFrequency(t *testing.T) {
	path := textFile(t, "b a c a b d <unk> <pad> a b d é")
	cfg := Config{
		Source:    path,
		Tokenizer: split(Word, None),
		Reserved:  []string{"<pad>", "<bos>"},
		CacheDir:  t.TempDir(),
	}
	for _, c := range []struct {
		least int64
		want  string
		ids   []int32
	}{
		{0, "<unk> <pad> <bos> a b d c é", []int32{4, 3, 6, 3, 4, 5, 0, 1, 3, 4, 5, 7}},
		{2, "<unk> <pad> <bos> a b d", []int32{4, 3, 0, 3, 4, 5, 0, 1, 3, 4, 5, 0}},
		{9, "<unk> <pad> <bos>", []int32{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}},
	} {
		cfg.MinFrequency = c.least
		got := open(t, cfg)
		if tokens := strings.Join(got.Vocabulary().Tokens(), " "); tokens != c.want {
			t.Errorf("at least %d: vocabulary %q; want %q", c.least, tokens, c.want)
		}
		if ids := all(t, got.Tokens()); !slices.Equal(ids, c.ids) {
			t.Errorf("at least %d: ids %v; want %v", c.least, ids, c.ids)
		}
	}
	cfg.Tokenizer.Unit, cfg.MinFrequency, cfg.Reserved = Char, 3, nil
	if got := open(t, cfg).Vocabulary().Tokens(); !slices.Equal(got,
		[]string{Unknown, " ", "a", "b", "d"}) {
		t.Errorf("characters: vocabulary %q", got)
	}
}

func TestAGivenVocabularyIsUsed(t *testing.T) {
	dir := t.TempDir()
	v, err := NewVocabulary([]string{Unknown, "x", "b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	path := textFile(t, "aabbcxé")
	cfg := Config{Source: path, Tokenizer: split(Char, None), Vocabulary: v, CacheDir: dir}
	c := open(t, cfg)
	if ids := all(t, c.Tokens()); !slices.Equal(ids, []int32{3, 3, 2, 2, 0, 1, 0}) {
		t.Errorf("ids %v", ids)
	}
	if c.Vocabulary().Fingerprint() != v.Fingerprint() {
		t.Error("the vocabulary is another")
	}
	cfg.Vocabulary = nil
	own := open(t, cfg)
	if own.Vocabulary().Fingerprint() == v.Fingerprint() || own.Fingerprint() == c.Fingerprint() {
		t.Error("the cache mixes a given vocabulary up with the text's own")
	}
}

func TestMaxTokensLeavesTheVocabularyWhole(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Source: Opticks, Tokenizer: split(Char, Letters), CacheDir: dir}
	whole := open(t, cfg)
	cfg.MaxTokens = 1000
	cut := open(t, cfg)
	if cut.Tokens().Len() != 1000 || cut.Vocabulary().Len() != whole.Vocabulary().Len() {
		t.Errorf("%d tokens, vocabulary %d", cut.Tokens().Len(), cut.Vocabulary().Len())
	}
	if !slices.Equal(all(t, cut.Tokens()), all(t, whole.Tokens())[:1000]) {
		t.Error("the tokens are not the text's first")
	}
	if cut.Fingerprint() == whole.Fingerprint() {
		t.Error("two selections of tokens have one fingerprint")
	}
	if files := tokenFiles(t, dir); len(files) != 1 {
		t.Errorf("%d token files for one text", len(files))
	}
	cfg.MaxTokens = 1 << 40
	if open(t, cfg).Fingerprint() != whole.Fingerprint() {
		t.Error("a limit beyond the text changes the fingerprint")
	}
}

func TestWideIds(t *testing.T) {
	const n = 1<<16 + 10
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "w%d ", i)
	}
	path := textFile(t, text.String())
	c := open(t, Config{Source: path, Tokenizer: split(Word, None), CacheDir: t.TempDir()})
	if c.file.width != 4 || c.Vocabulary().Len() != n+1 {
		t.Fatalf("width %d, vocabulary %d", c.file.width, c.Vocabulary().Len())
	}
	for i, id := range all(t, c.Tokens()) {
		if got, want := c.Vocabulary().Token(id), fmt.Sprintf("w%d", i); got != want {
			t.Fatalf("token %d is %q; want %q", i, got, want)
		}
	}
}

// bucketOf returns a function that opens buckets holding one object.
func bucketOf(key string, text []byte) func(context.Context, string) (*blob.Bucket, error) {
	return func(ctx context.Context, url string) (*blob.Bucket, error) {
		if url != "mem://shelf?option=1" {
			return nil, fmt.Errorf("asked for %s", url)
		}
		bucket := memblob.OpenBucket(nil)
		return bucket, bucket.WriteAll(ctx, key, text, nil)
	}
}

func TestSourcesAgree(t *testing.T) {
	text, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := Config{
		Tokenizer:  split(Word, None),
		CacheDir:   dir,
		OpenBucket: bucketOf("a/book.txt", text),
	}
	var prints []string
	for _, source := range []string{
		"testdata/lines.txt", path, "file://" + path, "mem://shelf/a/book.txt?option=1",
	} {
		cfg.Source = source
		cfg.Vocabulary = nil
		c := open(t, cfg)
		prints = append(prints, c.Fingerprint())
		cfg.Vocabulary = c.Vocabulary() // needs one pass, so no scratch file
		prints = append(prints, open(t, cfg).Fingerprint())
	}
	if got := slices.Compact(slices.Clone(prints)); len(got) != 1 {
		t.Errorf("fingerprints %q", prints)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		if !strings.HasSuffix(entry.Name(), tokenFileSuffix) &&
			!strings.HasSuffix(entry.Name(), filesSuffix) &&
			!strings.HasPrefix(entry.Name(), "lock-") {
			t.Errorf("%s is left in the cache", entry.Name())
		}
	}
}

func TestWrongInputIsOneClearLine(t *testing.T) {
	dir := t.TempDir()
	text := textFile(t, "words")
	good := Config{Source: text, Tokenizer: split(Char, None), CacheDir: dir}
	with := func(change func(*Config)) Config {
		cfg := good
		change(&cfg)
		return cfg
	}
	source := func(name string) Config { return with(func(c *Config) { c.Source = name }) }
	stored := func(name string) Config {
		return with(func(c *Config) {
			c.Source, c.OpenBucket = name, bucketOf("k", []byte("text"))
		})
	}
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"missing": {source("/no/such.txt"),
			[]string{"/no/such.txt", "does not exist", Opticks}},
		"none":          {source(""), []string{"no --corpus"}},
		"folder":        {source(t.TempDir()), []string{"no file is there"}},
		"device":        {source("/dev/null"), []string{"/dev/null", "regular file"}},
		"builtin":       {source("builtin:bible"), []string{"bible", Opticks}},
		"no storage":    {source("s3://b/k"), []string{"s3://", "not supported"}},
		"bad URL":       {source("s3://b/%zz"), []string{"%zz"}},
		"file host":     {source("file://a/b"), []string{"file:///a/b"}},
		"no key":        {stored("mem://shelf?option=1"), []string{"mem://bucket/key"}},
		"no object":     {stored("mem://shelf/x?option=1"), []string{"does not exist"}},
		"no bucket":     {stored("mem://other/k"), []string{"asked for mem://other"}},
		"empty":         {source(textFile(t, "")), []string{"empty", "--normalize none"}},
		"bom alone":     {source(textFile(t, "\ufeff")), []string{"empty"}},
		"invalid UTF-8": {source(textFile(t, "abc\xff")), []string{"byte 3", "iconv"}},
		"tokenizer": {with(func(c *Config) { c.Tokenizer.Unit = "bpe" }),
			[]string{"char, word"}},
		"normalize": {with(func(c *Config) { c.Tokenizer.Normalize = "" }),
			[]string{"none, letters"}},
		"min-frequency": {with(func(c *Config) { c.MinFrequency = -1 }), []string{"-1"}},
		"max-tokens":    {with(func(c *Config) { c.MaxTokens = -1 }), []string{"-1"}},
		"reserved": {with(func(c *Config) { c.Reserved = []string{"a", "a"} }),
			[]string{"two ids"}},
		"cache": {with(func(c *Config) { c.CacheDir = text }), []string{"XDG_CACHE_HOME"}},
	} {
		got, err := Open(t.Context(), c.cfg)
		if err == nil {
			got.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range append(c.want, "") {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q in one line", name, err, want)
			}
		}
	}
	if files := tokenFiles(t, dir); len(files) != 0 {
		t.Errorf("wrong input left %q", files)
	}
	// Tests may run as root, whom the system never refuses, so the error is made here.
	refused := &os.PathError{Op: "open", Path: text, Err: syscall.EACCES}
	if err := openError(text, refused); !strings.Contains(err.Error(), "may not be read by user") {
		t.Errorf("a file that may not be read: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestMemoryIsBounded builds and opens token files of two texts of many blocks. It counts all
// allocated bytes, whether or not they are freed: those that a longer text takes more are few. On
// one processor the blocks that may wait at a time have less than size in all passes.
func TestMemoryIsBounded(t *testing.T) {
	const size = 4 << 20
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, unit := range []Unit{Char, Word} {
		var used [2]uint64
		for i, times := range []int{1, 5} {
			path := textFile(t, strings.Repeat("The bounded text goes on and on.\n", times*size/33))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c := open(t, Config{Source: path, Tokenizer: split(unit, None), CacheDir: t.TempDir()})
			runtime.ReadMemStats(&after)
			used[i] = after.TotalAlloc - before.TotalAlloc
			if c.Tokens().Len() < int64(times*size/8) {
				t.Errorf("%s: %d tokens", unit, c.Tokens().Len())
			}
		}
		if used[1] > used[0]+size {
			t.Errorf("%s: %d bytes allocated for a text of %d, and %d for one of %d", unit,
				used[0], size, used[1], 5*size)
		}
	}
}

func TestAChangingFileIsRefused(t *testing.T) {
	path := textFile(t, "first")
	src, err := openSource(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	err = src.passes(t.Context(), t.TempDir(), []func(io.Reader) error{func(io.Reader) error {
		return os.WriteFile(path, []byte("second text"), 0o644)
	}})
	if err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a file that changed meanwhile: %v", err)
	}
}

func TestOpticksIsTheKnownText(t *testing.T) {
	const want = "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd"
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(opticks))); got != want {
		t.Errorf("SHA-256 %s; want %s", got, want)
	}
}
