package corpus

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// textFiles writes files to a new folder.
func textFiles(t testing.TB, content map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range content {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// A copy of a corpus has its token file, and a list of files saves reading them again.
func TestTokensAreKnownByContent(t *testing.T) {
	content := map[string]string{"a.txt": "one two", "b.txt": "three"}
	cache, first := t.TempDir(), textFiles(t, content)
	cfg := Config{Source: first, Tokenizer: split(Word, None), CacheDir: cache}
	open(t, cfg)
	cfg.Source = textFiles(t, content)
	open(t, cfg)
	if files := tokenFiles(t, cache); len(files) != 1 {
		t.Errorf("token files %q of one content", files)
	}
	// Other bytes at the same size and time are not looked at.
	path := filepath.Join(first, "b.txt")
	info, err := os.Stat(path)
	if err == nil {
		err = errors.Join(os.WriteFile(path, []byte("THREE"), 0o600),
			os.Chtimes(path, time.Time{}, info.ModTime()))
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg.Source = first
	open(t, cfg)
	if files := tokenFiles(t, cache); len(files) != 1 {
		t.Errorf("token files %q: the text was read again", files)
	}
	if err := os.Chtimes(path, time.Time{}, info.ModTime().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := open(t, cfg).Vocabulary().ID("THREE"); got == 0 {
		t.Error("a changed file has its old tokens")
	}
}

func TestChangedFiles(t *testing.T) {
	a, b, c := File{"x/a.txt", 3, "sha256:1111111111111111"}, File{"x/b.txt", 4, "sha256:22"},
		File{"x/c.txt", 5, "sha256:33"}
	longer, other, moved, renamed := a, a, a, a
	longer.Bytes, longer.Digest = 9, "sha256:44"
	other.Digest = "sha256:5555555555555555"
	moved.Name, renamed.Name = "y/z.txt", "y/wiki.train.tokens"
	packed := a
	packed.Name = "x/a.jsonl"
	for _, test := range []struct {
		now, was Files
		want     string
	}{
		{Files{a, b}, Files{a, b}, ""},
		{Files{a, b}, Files{moved, b}, ""},
		{Files{a, b}, Files{renamed, b}, ""},
		{Files{a, b}, Files{longer, b}, "x/a.txt has 9 bytes instead of 3"},
		{Files{a, b}, Files{other, b},
			"x/a.txt has 3 bytes, as now, but sha256:555555555555... instead of " +
				"sha256:111111111111..."},
		{Files{a, c}, Files{a, b, c}, "there are 3 files instead of 2: x/b.txt too"},
		{Files{a, b, c}, Files{a, c}, "there are 2 files instead of 3: not x/b.txt"},
		{Files{a, b}, Files{a}, "there are 1 files instead of 2: not x/b.txt"},
		{Files{a}, Files{a, b}, "there are 2 files instead of 1: x/b.txt too"},
		{Files{a, b}, Files{a, c}, "x/c.txt is in the place of x/b.txt"},
		{Files{a}, Files{packed}, "x/a.jsonl is in the place of x/a.txt"},
	} {
		if got := test.now.Changed(test.was); got != test.want {
			t.Errorf("%v to %v: %q; want %q", test.now, test.was, got, test.want)
		}
	}
}

// The tokens of many files are in the files' order for any number of processors, and so is the
// first error.
func TestManyFiles(t *testing.T) {
	content := map[string]string{}
	var whole strings.Builder
	for i := range 40 {
		name := "f" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + ".txt"
		content[name] = strings.Repeat("word"+name+" and \u00e9 more\n", 1+i%7*3000)
		whole.WriteString(content[name])
	}
	folder := textFiles(t, content)
	wrong := textFiles(t, content)
	for _, name := range []string{"fad.txt", "fbb.txt"} {
		if err := os.WriteFile(filepath.Join(wrong, name), []byte("\xff"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []Unit{Char, Word} {
		for _, threads := range []int{1, 3} {
			was := runtime.GOMAXPROCS(threads)
			c := open(t, Config{Source: folder, Tokenizer: split(unit, None),
				CacheDir: t.TempDir()})
			_, err := Open(t.Context(), Config{Source: wrong, Tokenizer: split(unit, None),
				CacheDir: t.TempDir()})
			runtime.GOMAXPROCS(was)
			got := c.Vocabulary().Decode(split(unit, None), all(t, c.Tokens()))
			want := whole.String()
			if unit == Word {
				want = strings.Join(strings.Fields(want), " ")
			}
			if got != want {
				t.Errorf("%s, %d threads: the tokens are not the text", unit, threads)
			}
			if err == nil || !strings.Contains(err.Error(), "fad.txt: invalid UTF-8 at byte 0") {
				t.Errorf("%s, %d threads: %v", unit, threads, err)
			}
		}
	}
}

// The ids of a large file are verified when they are read. Damage ends the reading, and the file is
// made anew.
func TestDamageIsFoundWhenRead(t *testing.T) {
	cache := t.TempDir()
	cfg := Config{Source: textFile(t, strings.Repeat("ab", 300_000)),
		Tokenizer: split(Char, None), CacheDir: cache}
	c := open(t, cfg)
	want := all(t, c.Tokens())
	path := tokenFiles(t, cache)[0]
	for i := range c.file.verified {
		c.file.verified[i].Store(0) // as if the file were large
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	end, err := file.Seek(0, 2)
	if err == nil {
		_, err = file.WriteAt([]byte{1}, end/2)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	dst := make([]int32, 10)
	if err := c.Tokens().ReadTokens(dst, 5); err != nil {
		t.Errorf("a sound block: %v", err)
	}
	var passing *PassingError
	err = c.Tokens().ReadTokens(dst, int64(len(want)/2))
	if !errors.As(err, &passing) || !errors.Is(err, errCorrupt) {
		t.Errorf("a damaged block: %v", err)
	}
	if got := all(t, open(t, cfg).Tokens()); string(runesOf(got)) != string(runesOf(want)) {
		t.Error("the file was not made anew")
	}
}

func runesOf(ids []int32) []rune {
	out := make([]rune, len(ids))
	copy(out, ids)
	return out
}
