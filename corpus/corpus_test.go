package corpus

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
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

// textFile writes a text to a file of its own folder.
func textFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tokenFiles lists the complete files of a cache.
func tokenFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+tokenFileSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestOpticksComesBackAsItWas(t *testing.T) {
	for _, tokenizer := range allTokenizers {
		c := open(t, Config{Source: Opticks, Tokenizer: tokenizer, CacheDir: t.TempDir()})
		want := strings.Join(slowTokens(tokenizer, opticks), tokenizer.Unit.Separator())
		if got := c.Vocabulary().Decode(tokenizer.Unit, all(t, c.Tokens())); got != want {
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
		Tokenizer: Tokenizer{Word, None},
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
	cfg := Config{Source: path, Tokenizer: Tokenizer{Char, None}, Vocabulary: v, CacheDir: dir}
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
	cfg := Config{Source: Opticks, Tokenizer: Tokenizer{Char, Letters}, CacheDir: dir}
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
	c := open(t, Config{Source: path, Tokenizer: Tokenizer{Word, None}, CacheDir: t.TempDir()})
	if c.file.width != 4 || c.Vocabulary().Len() != n+1 {
		t.Fatalf("width %d, vocabulary %d", c.file.width, c.Vocabulary().Len())
	}
	for i, id := range all(t, c.Tokens()) {
		if got, want := c.Vocabulary().Token(id), fmt.Sprintf("w%d", i); got != want {
			t.Fatalf("token %d is %q; want %q", i, got, want)
		}
	}
}

// bucketOf returns an opener of buckets that hold one object.
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
		Tokenizer:  Tokenizer{Word, None},
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
		cfg.Vocabulary = c.Vocabulary() // a single pass, which needs no scratch file
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
			!strings.HasPrefix(entry.Name(), "lock-") {
			t.Errorf("%s is left in the cache", entry.Name())
		}
	}
}

func TestACorpusIsTokenisedOnce(t *testing.T) {
	dir := t.TempDir()
	path := textFile(t, "some text")
	cfg := Config{Source: path, Tokenizer: Tokenizer{Char, None}, CacheDir: dir}
	first := open(t, cfg)
	files := tokenFiles(t, dir)
	if len(files) != 1 {
		t.Fatalf("token files %q", files)
	}
	before, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	open(t, cfg)
	after, err := os.Stat(files[0])
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the token file was written again: %v", err)
	}
	if err := os.WriteFile(path, []byte("other text, longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := open(t, cfg); got.Fingerprint() == first.Fingerprint() {
		t.Error("a changed text gives the tokens of the old one")
	}
}

func TestADamagedTokenFileIsBuiltAnew(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Source: "testdata/lines.txt", Tokenizer: Tokenizer{Char, None}, CacheDir: dir}
	c := open(t, cfg)
	want, path := c.Fingerprint(), tokenFiles(t, dir)[0]
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string][]byte{
		"empty":     {},
		"truncated": good[:len(good)-1],
		"short":     good[:preludeBytes-1],
		"header":    good[:preludeBytes+10],
		"longer":    append(slices.Clone(good), 0),
		"text":      []byte(strings.Repeat("no token file ", 100)),
	}
	// One flipped bit in every field of the prelude, in the header, and in the ids.
	for _, at := range []int{0, 9, 12, 17, 25, 30, 62, preludeBytes + 5, len(good) - 1} {
		bad := slices.Clone(good)
		bad[at] ^= 4
		damage[fmt.Sprintf("bit at %d", at)] = bad
	}
	for name, bad := range damage {
		if err := os.Remove(path); err != nil { // c keeps its own
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openTokenFile(context.Background(), path); !errors.Is(err, errCorrupt) {
			t.Errorf("%s: opened with %v", name, err)
		}
		if got := open(t, cfg).Fingerprint(); got != want {
			t.Errorf("%s: fingerprint %s; want %s", name, got, want)
		}
		now, err := os.ReadFile(path)
		if err != nil || !slices.Equal(now, good) {
			t.Errorf("%s: the file was not built anew: %v", name, err)
		}
	}
	if got := all(t, c.Tokens()); int64(len(got)) != c.Tokens().Len() {
		t.Error("an open corpus lost its tokens")
	}
}

// TestMain lets the test binary stand in for the processes of one host.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CORPUS_TEST_CACHE"); dir != "" {
		c, err := Open(context.Background(), Config{
			Source: Opticks, Tokenizer: Tokenizer{Word, None}, CacheDir: dir,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Print(c.Fingerprint())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestProcessesShareOneTokenFile(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	prints := make([]string, 4)
	for i := range prints {
		wait.Go(func() {
			child := exec.CommandContext(t.Context(), self)
			child.Env = append(os.Environ(), "CORPUS_TEST_CACHE="+dir)
			child.Stderr = os.Stderr
			out, err := child.Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
			prints[i] = string(out)
		})
	}
	wait.Wait()
	c := open(t, Config{Source: Opticks, Tokenizer: Tokenizer{Word, None}, CacheDir: dir})
	for i, got := range prints {
		if got != c.Fingerprint() {
			t.Errorf("process %d has fingerprint %q; want %q", i, got, c.Fingerprint())
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("the cache holds %v, %v; want a token file and a lock", left, err)
	}
}

func TestOneProcessBuildsAndOthersWait(t *testing.T) {
	store, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Repeat("ab", 32)
	var builds sync.Map
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			file, err := store.tokens(t.Context(), key, func(dst io.WriteSeeker) error {
				builds.Store(i, true)
				return writeTokens(dst, []int32{1, 2, 3}, 4)
			})
			if err != nil {
				t.Error(err)
				return
			}
			file.close()
		})
	}
	wait.Wait()
	count := 0
	builds.Range(func(_, _ any) bool { count++; return true })
	if count != 1 {
		t.Errorf("%d builds", count)
	}
	unlock, err := store.lock(t.Context(), "cd")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.lock(ctx, "cd"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a held lock ends with %v", err)
	}
}

// writeTokens writes a token file of the given ids and a vocabulary of so many tokens.
func writeTokens(dst io.WriteSeeker, ids []int32, vocabulary int) error {
	tokens := []string{Unknown}
	for i := 1; i < vocabulary; i++ {
		tokens = append(tokens, fmt.Sprint("t", i))
	}
	v, err := NewVocabulary(tokens)
	if err != nil {
		return err
	}
	w, err := newTokenWriter(dst, identity{Source: "test"}, v)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := w.put(id); err != nil {
			return err
		}
	}
	return w.finish()
}

func TestAFailedBuildLeavesNothing(t *testing.T) {
	store, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left on device")
	_, err = store.tokens(t.Context(), "ef", func(io.WriteSeeker) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("the build's error is lost: %v", err)
	}
	left, err := os.ReadDir(store.dir)
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v, %v; want the lock alone", left, err)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	path := textFile(t, "abc")
	cfg := Config{Source: path, Tokenizer: Tokenizer{Char, None}, CacheDir: dir}
	first := open(t, cfg)
	for i := range maxCachedFiles + 3 {
		cfg.MinFrequency = int64(i + 2)
		open(t, cfg)
	}
	if files := tokenFiles(t, dir); len(files) != maxCachedFiles {
		t.Errorf("%d token files; want %d", len(files), maxCachedFiles)
	}
	if got := all(t, first.Tokens()); len(got) != 3 {
		t.Error("an evicted corpus lost its tokens")
	}
}

func TestWrongInputIsOneClearLine(t *testing.T) {
	dir := t.TempDir()
	text := textFile(t, "words")
	good := Config{Source: text, Tokenizer: Tokenizer{Char, None}, CacheDir: dir}
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
		"missing":       {source("/no/such.txt"), []string{"/no/such.txt", "does not exist", Opticks}},
		"none":          {source(""), []string{"no --corpus"}},
		"folder":        {source(dir), []string{dir, "regular file"}},
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
		"tokenizer":     {with(func(c *Config) { c.Tokenizer.Unit = "bpe" }), []string{"char, word"}},
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
	// Root, which tests may run as, is refused nothing, so the system's answer is made here.
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

// TestMemoryIsBounded builds and opens a token file of a text of many blocks, and counts every
// byte that is allocated meanwhile, whether or not it is freed.
func TestMemoryIsBounded(t *testing.T) {
	const size = 32 << 20
	path := textFile(t, strings.Repeat("The bounded text goes on and on.\n", size/33))
	for _, unit := range []Unit{Char, Word} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := open(t, Config{Source: path, Tokenizer: Tokenizer{unit, None}, CacheDir: t.TempDir()})
		runtime.ReadMemStats(&after)
		// Counters of all code points take 9 MB, buffers the rest.
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%s: %d bytes allocated for a text of %d", unit, used, size)
		}
		if c.Tokens().Len() < size/8 {
			t.Errorf("%s: %d tokens", unit, c.Tokens().Len())
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
