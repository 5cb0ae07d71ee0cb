package corpus

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// manyWords is a text of several pieces, with long words, and none in its last part.
func manyWords() string {
	var text strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&text, "w%d  na\u00efve, %x!\n", i%700, i*i%5000)
	}
	text.WriteString(strings.Repeat("\u65e5\u672c", pieceBytes))
	return text.String()
}

func writeText(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBytePairs trains a tokenizer with one, two and three threads: it is the same, to the byte,
// and so are the tokens, which are the text.
func TestBytePairs(t *testing.T) {
	text := manyWords()
	path := writeText(t, text)
	var first *Corpus
	for threads := 1; threads <= 3; threads++ {
		was := runtime.GOMAXPROCS(threads)
		c := open(t, Config{Source: path, Tokenizer: split(Subword, None), Subwords: 500,
			CacheDir: t.TempDir()})
		runtime.GOMAXPROCS(was)
		if first == nil {
			first = c
		}
		if c.Fingerprint() != first.Fingerprint() ||
			!bytes.Equal(c.Vocabulary().TokenizerJSON(), first.Vocabulary().TokenizerJSON()) {
			t.Errorf("%d threads make another tokenizer", threads)
		}
		if c.Vocabulary().Len() != 500 {
			t.Errorf("%d tokens", c.Vocabulary().Len())
		}
		got := c.Vocabulary().Decode(split(Subword, None), all(t, c.Tokens()))
		if got != text {
			t.Errorf("%d threads: the tokens are not the text", threads)
		}
	}
}

// TestPieces encodes a long text piece by piece: the tokens are those of the whole, but where a
// word is longer than half a piece. Some tokenizers change the ends of a document.
func TestPieces(t *testing.T) {
	text := "  " + manyWords()[:5*pieceBytes/2] + "  "
	files, err := filepath.Glob("subword/testdata/*.model")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	files = append(files, "", "subword/testdata/split-contiguous.tokenizer.json")
	for _, file := range files {
		c := open(t, Config{Source: writeText(t, text), Tokenizer: split(Subword, None),
			Subwords: 400, SubwordFile: file, CacheDir: t.TempDir()})
		want, err := c.Vocabulary().subwords.NewEncoder().Encode([]byte(text), true, true)
		if err != nil || !slices.Equal(all(t, c.Tokens()), want) {
			t.Errorf("%q: the pieces have other tokens than the whole: %v", file, err)
		}
	}
}

// TestTokenizerFile trains, writes and reads a tokenizer, with ends of lines.
func TestTokenizerFile(t *testing.T) {
	text := "the theme\n\nthen there\n"
	cfg := Config{Source: writeText(t, strings.Repeat(text, 3)), Subwords: 300,
		Tokenizer: Tokenizer{Unit: Subword, Normalize: None, Ends: LineEnds}, CacheDir: t.TempDir()}
	made, err := TrainSubwords(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.SubwordFile = writeText(t, string(made.JSON()))
	c := open(t, cfg)
	v := c.Vocabulary()
	if !bytes.Equal(v.TokenizerJSON(), made.JSON()) {
		t.Error("the token file has another tokenizer.json")
	}
	end, ok := v.End()
	if ids := all(t, c.Tokens()); !ok || ids[len(ids)-1] != end || slices.Index(ids, end) < 0 ||
		v.Decode(cfg.Tokenizer, ids) != strings.Repeat(text, 3) {
		t.Errorf("%q, end %d", v.Decode(cfg.Tokenizer, ids), end)
	}
	cfg.SubwordFile, cfg.CacheDir = "", t.TempDir()
	if trained := open(t, cfg); trained.Fingerprint() != c.Fingerprint() {
		t.Error("the file has another fingerprint than the tokenizer that is trained")
	}
	stored, err := StoredVocabulary(v.Tokens(), v.TokenizerJSON())
	if err != nil || stored.Fingerprint() != v.Fingerprint() {
		t.Error(err)
	}
	if _, err := StoredVocabulary(v.Tokens()[1:], v.TokenizerJSON()); err == nil {
		t.Error("a vocabulary with another tokenizer is read")
	}
}

func TestBadTokenizerFiles(t *testing.T) {
	trained, err := TrainSubwords(t.Context(), Config{Source: Opticks, Subwords: 260,
		Tokenizer: split(Subword, None), CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file, says string
		ends       Ends
	}{
		"no file":  {"missing.json", "missing.json", ""},
		"no JSON":  {writeText(t, "x"), "no tokenizer.json", ""},
		"no <eos>": {writeText(t, string(trained.JSON())), "leave --eos out", LineEnds},
	} {
		_, err := Open(t.Context(), Config{Source: Opticks, SubwordFile: c.file,
			Tokenizer: Tokenizer{Unit: Subword, Normalize: None, Ends: c.ends},
			CacheDir:  t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
}

func TestMostFrequentWords(t *testing.T) {
	counts := newKeyCounter(t.TempDir(), 100) // so small that it spills
	defer counts.close()
	for word, n := range map[string]int64{"a": 5, "b": 2, "c": 2, "d": 2, "e": 1, "f": 9} {
		if err := counts.add([]byte(word), n); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range []string{"", "f", "af", "abf", "abcf", "abcdf", "abcdef", "abcdef"} {
		var broken error
		words := maps.Collect(mostFrequent(counts, limit, &broken))
		got := strings.Join(slices.Sorted(maps.Keys(words)), "")
		if got != want || broken != nil {
			t.Errorf("the %d most frequent are %q, %v; want %q", limit, got, broken, want)
		}
	}
}
