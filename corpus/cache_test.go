package corpus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestACorpusIsTokenisedOnce(t *testing.T) {
	dir := t.TempDir()
	path := textFile(t, "some text")
	cfg := Config{Source: path, Tokenizer: split(Char, None), CacheDir: dir}
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
	cfg := Config{Source: "testdata/lines.txt", Tokenizer: split(Char, None), CacheDir: dir}
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
	// Flip one bit in every field of the prelude, in the header, and in the ids.
	for _, at := range []int{0, 9, 12, 17, 25, 30, 62, 66, preludeBytes + 5, len(good) - 1} {
		bad := slices.Clone(good)
		bad[at] ^= 4
		damage[fmt.Sprintf("bit at %d", at)] = bad
	}
	for name, bad := range damage {
		if err := os.Remove(path); err != nil { // c still has its own open
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

// TestMain lets the test binary act as another process of the host.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CORPUS_TEST_CACHE"); dir != "" {
		c, err := Open(context.Background(), Config{
			Source: Opticks, Tokenizer: split(Word, None), CacheDir: dir,
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
	c := open(t, Config{Source: Opticks, Tokenizer: split(Word, None), CacheDir: dir})
	for i, got := range prints {
		if got != c.Fingerprint() {
			t.Errorf("process %d has fingerprint %q; want %q", i, got, c.Fingerprint())
		}
	}
	left, err := os.ReadDir(dir)
	kinds := map[string]int{}
	for _, entry := range left {
		kinds[filepath.Ext(entry.Name())]++
	}
	if err != nil || kinds[tokenFileSuffix] != 1 || kinds[filesSuffix] != 1 ||
		len(left) != 2+kinds[""] || kinds[""] > 2 {
		t.Errorf("the cache holds %v, %v; want a token file, a list of files and their locks",
			left, err)
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
			file.Close()
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

// writeTokens writes a token file of ids. vocabulary is the number of tokens in its vocabulary.
func writeTokens(dst io.WriteSeeker, ids []int32, vocabulary int) error {
	tokens := []string{Unknown}
	for i := 1; i < vocabulary; i++ {
		tokens = append(tokens, fmt.Sprint("t", i))
	}
	v, err := NewVocabulary(tokens)
	if err != nil {
		return err
	}
	w, err := newTokenWriter(dst, identity{Source: "test"}, Header{Vocabulary: v})
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := w.Put(id); err != nil {
			return err
		}
	}
	return w.Finish()
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
	cfg := Config{Source: path, Tokenizer: split(Char, None), CacheDir: dir}
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

// tokenFiles lists the complete files of a cache.
func tokenFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+tokenFileSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestCacheWithoutHome: without a home folder the cache is in the folder of temporary files, unless
// somebody else can change it there.
func TestCacheWithoutHome(t *testing.T) {
	for _, name := range []string{"HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	if _, err := os.UserCacheDir(); err == nil {
		t.Skip("this system finds a cache folder without HOME")
	}
	elsewhere := t.TempDir()
	for what, make := range map[string]func(dir string) error{
		"":       func(string) error { return nil },
		"a link": func(dir string) error { return os.Symlink(elsewhere, dir) },
		"a folder that others can change": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
		},
	} {
		t.Setenv("TMPDIR", t.TempDir())
		dir, shared := userCache()
		if !shared {
			t.Fatalf("%s is not in TMPDIR", dir)
		}
		if err := make(dir); err != nil {
			t.Fatal(err)
		}
		_, err := openCache("")
		if (err == nil) != (what == "") || err != nil &&
			!strings.Contains(err.Error(), "set XDG_CACHE_HOME to a folder of your own") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if os.Getuid() == 0 {
		t.Setenv("TMPDIR", t.TempDir())
		dir, _ := userCache()
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, -1)); err != nil {
			t.Fatal(err)
		}
		if _, err := openCache(""); err == nil {
			t.Error("another user's folder is used")
		}
	}
}
