package examples

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"rondo/corpus"
)

var words = corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None}

// write makes a file in a new folder.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// config is one of words, with a cache of its own.
func config(t testing.TB, kind Kind, source string) Config {
	return Config{Source: source, Kind: kind, Tokenizer: words, MaxLength: 100,
		CacheDir: t.TempDir()}
}

func open(t testing.TB, cfg Config) *Set {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// example is what a person sees of one.
type example struct {
	text    string
	targets []string
}

// read returns the examples of a set as words.
func read(t testing.TB, s *Set) []example {
	t.Helper()
	var all []example
	for i := range s.Len() {
		tokens, targets := make([]int32, s.Length(i)), make([]int32, s.Targets(i))
		if err := s.Read(i, tokens, targets); err != nil {
			t.Fatal(err)
		}
		e := example{text: s.Vocabulary().Decode(corpus.Tokenizer{Unit: corpus.Word}, tokens)}
		for _, id := range targets {
			if s.TargetVocabulary() != nil {
				e.targets = append(e.targets, s.TargetVocabulary().Token(id))
			} else {
				e.targets = append(e.targets, s.Labels()[id])
			}
		}
		all = append(all, e)
	}
	return all
}

// archive returns a zip archive of files with this content.
func archive(t testing.TB, content string, names ...string) string {
	t.Helper()
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for _, name := range names {
		entry, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		if _, err := entry.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.String()
}

func TestFormats(t *testing.T) {
	labelled := []example{{`good "film"`, []string{"pos"}}, {"é, bad", []string{"neg"}}}
	tagged := []example{
		{`" EU rejects`, []string{"O", "B-ORG", "O"}}, {"Peter Black", []string{"B-PER", "I-PER"}},
	}
	pairs := []example{{"Go .", []string{"Va", "!"}}, {`"Hi"`, []string{"Salut"}}}
	const tsv = "pos\tgood \"film\"\nneg\té,  bad\n"
	const conll = "-DOCSTART- -X- O O\n\n\" \" O O\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n \n" +
		"Peter NNP I-NP B-PER\nBlack NNP I-NP I-PER\n"
	const fra = "Go .\tVa !\tCC-BY 2.0 (France)\n\"Hi\"\tSalut\n"
	const babi = "1 Mary went home.\n2 Who is there? \tMary\t1\n4 Ann  left !\n" +
		"5 Who left?\tAnn,Bo\t4\n1 Hi\n2 And?\tHi\n"
	told := []example{{"Mary went home <stop> Who is there <stop>", []string{"Mary"}},
		{"Mary went home <stop> Ann left <stop> Who left <stop>", []string{"Ann,Bo"}},
		{"Hi <stop> And <stop>", []string{"Hi"}}}
	for _, c := range []struct {
		name    string
		kind    Kind
		content string
		want    []example
	}{
		{"a.tsv", Labelled, tsv, labelled},
		{"a.TSV", Labelled, "\ufeff" + tsv, labelled},
		{"header.tsv", Labelled, "label\ttext\n" + tsv, labelled},
		{"turned.tsv", Labelled, "text\tlabel\ngood \"film\"\tpos\né, bad\tneg", labelled},
		{"crlf.tsv", Labelled, strings.ReplaceAll("label\ttext\n"+tsv, "\n", "\r\n"), labelled},
		{"end.tsv", Labelled, strings.TrimSuffix(tsv, "\n"), labelled},
		{"a.jsonl", Labelled, `{"text": "good \"film\"", "label": "pos", "id": 7}` + "\r\n" +
			`{"label":"neg","text":"\u00e9,\nbad"}`, labelled},
		{"a.zip", Labelled, archive(t, tsv, "data/", "data/a.tsv", "_about.tsv", "b.txt"),
			labelled},
		{"a.conll", Tagged, conll, tagged},
		{"tabs.conll", Tagged, strings.ReplaceAll(conll, " ", "\t"), tagged},
		{"crlf.conll", Tagged, strings.ReplaceAll(conll, "\n", "\r\n") + "\r\n", tagged},
		{"docs.conll", Tagged, strings.Replace(conll, "\n \n", "\n-DOCSTART- -X- O O\n", 1),
			tagged},
		{"a.txt", Pairs, fra, pairs},
		{"a.tsv", Pairs, fra, pairs},
		{"fra-eng.zip", Pairs, archive(t, fra, "fra-eng/fra.txt", "fra-eng/_about.txt",
			"__MACOSX/._fra.txt"), pairs},
		{"babi.txt", Stories, babi, told},
		{"crlf.txt", Stories, strings.ReplaceAll(babi, "\n", "\r\n"), told},
	} {
		s := open(t, config(t, c.kind, write(t, c.name, c.content)))
		if got := read(t, s); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s of %s: %q; want %q", c.name, c.kind, got, c.want)
		}
	}
}

func TestLabelsAreSortedAndVocabulariesByFrequency(t *testing.T) {
	path := write(t, "a.tsv", "z\tb b a\na\tb c c b\nm\td\n")
	cfg := config(t, Labelled, path)
	cfg.MinFrequency, cfg.Reserved = 2, []string{"<pad>"}
	s := open(t, cfg)
	if got := s.Labels(); !slices.Equal(got, []string{"a", "m", "z"}) {
		t.Errorf("labels %q", got)
	}
	if got := s.Vocabulary().Tokens(); !slices.Equal(got, []string{"<unk>", "<pad>", "b", "c"}) {
		t.Errorf("vocabulary %q", got)
	}
	cfg.Kind, cfg.MaxExamples = Pairs, 2
	s = open(t, cfg)
	if got := s.TargetVocabulary().Tokens(); !slices.Equal(got, []string{"<unk>", "<pad>", "b",
		"c"}) || s.Vocabulary().Len() != 2 || s.Labels() != nil || s.Len() != 2 {
		t.Errorf("target vocabulary %q, vocabulary %q, %d examples", got, s.Vocabulary().Tokens(),
			s.Len())
	}
}

func TestAnEarlierRunsVocabularyAndLabelsAreUsed(t *testing.T) {
	train := open(t, config(t, Labelled, write(t, "a.tsv", "x\tone two\ny\tthree\n")))
	cfg := config(t, Labelled, write(t, "b.tsv", "y\tthree four one\n"))
	cfg.Vocabulary, cfg.Labels = train.Vocabulary(), train.Labels()
	held := open(t, cfg)
	want := []example{{"three <unk> one", []string{"y"}}}
	if got := read(t, held); !reflect.DeepEqual(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	cfg.Kind, cfg.TargetVocabulary = Pairs, train.Vocabulary()
	pairs := open(t, cfg)
	if got := pairs.TargetVocabulary().Fingerprint(); got != train.Vocabulary().Fingerprint() {
		t.Error("another target vocabulary")
	}
}

// A text's tokens are those that the vocabulary's own Encode finds.
func TestTextsAreSplitAsEncodeDoes(t *testing.T) {
	texts := []string{"It's 5 o'clock", "  Two\tspaces ", "日本 naïve", "a"}
	file := ""
	for i, text := range texts {
		file += fmt.Sprintf(`{"label": "%d", "text": %q}`+"\n", i, text)
	}
	for _, unit := range []corpus.Unit{corpus.Char, corpus.Word} {
		for _, normalize := range []corpus.Normalization{corpus.None, corpus.Letters} {
			cfg := config(t, Labelled, write(t, "a.jsonl", file))
			cfg.Tokenizer = corpus.Tokenizer{Unit: unit, Normalize: normalize}
			s := open(t, cfg)
			for i, text := range texts {
				want, err := s.Vocabulary().Encode(cfg.Tokenizer, text)
				if err != nil {
					t.Fatal(err)
				}
				got, label := make([]int32, s.Length(int64(i))), make([]int32, 1)
				if err := s.Read(int64(i), got, label); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) || slices.Contains(got, 0) || label[0] != int32(i) {
					t.Errorf("%v of %q: %v, label %d; want %v", cfg.Tokenizer, text, got, label[0],
						want)
				}
			}
		}
	}
}

func TestWrongInputIsOneClearLine(t *testing.T) {
	const good = "a\tx\nb\ty\n"
	long := strings.Repeat("w ", 101)
	for _, c := range []struct {
		name    string
		kind    Kind
		content string
		want    []string
		change  func(*Config)
	}{
		{"three.tsv", Labelled, good + "a\tx\ty\n", []string{"three.tsv", "line 3: 2 col"}, nil},
		{"one.tsv", Labelled, good + "a\n" + good, []string{"one.tsv", "line 3", "found 1"}, nil},
		{"one.txt", Pairs, good + "a\n", []string{"line 3", "found 1"}, nil},
		{"head.tsv", Labelled, "label\ttext\textra\n", []string{"line 1", "found 3"}, nil},
		{"row.tsv", Labelled, good + "a\t \n", []string{"row.tsv", "line 3", "no token"}, nil},
		{"row.txt", Pairs, good + "a\t\n", []string{"line 3", "no token", "word"}, nil},
		{"row.jsonl", Labelled, `{"label":"a","text":""}`, []string{"line 1", "no token"}, nil},
		{"none.tsv", Labelled, "a\tx\nb\t12\n", []string{"line 2", "--normalize letters"},
			func(c *Config) { c.Tokenizer.Normalize = corpus.Letters }},
		{"label.tsv", Labelled, good + "\tx\n", []string{"line 3", "label is empty"}, nil},
		{"swap.tsv", Labelled, strings.Repeat("x", 257) + "\ta\n", []string{"line 1", "257"}, nil},
		{"new.tsv", Labelled, good + "c\tx\n", []string{"new.tsv", "line 3", `"c"`, `["a" "b"]`},
			func(c *Config) { c.Labels = []string{"a", "b"} }},
		{"new.conll", Tagged, "x O\n\ny O\nz B-X\n", []string{"line 4", `"B-X"`},
			func(c *Config) { c.Labels = []string{"O"} }},
		{"long.tsv", Labelled, good + "a\t" + long, []string{"line 3", "--max-length 100"},
			nil},
		{"long.txt", Pairs, good + "a\t" + long, []string{"line 3", "--max-length"}, nil},
		{"long.conll", Tagged, "y O\n" + strings.Repeat("x O\n", 100), []string{"line 101",
			"--max-length"}, nil},
		{"latin.tsv", Labelled, good + "a\t\xe9\n", []string{"line 3", "UTF-8"}, nil},
		{"latin.jsonl", Labelled, "{\"label\":\"\xe9\"}", []string{"line 1", "UTF-8"}, nil},
		{"bad.jsonl", Labelled, "{\"label\":\n", []string{"bad.jsonl", "line 1", "JSON"}, nil},
		{"gap.tsv", Labelled, good + "\n" + good, []string{"line 3: it is empty: remove it"}, nil},
		{"gap.txt", Pairs, good + " \n" + good, []string{"line 3: it is empty: remove it"}, nil},
		{"none.jsonl", Labelled, "\n", []string{"line 1: it is empty: remove it"}, nil},
		{"list.jsonl", Labelled, `["a","x"]`, []string{"line 1", "not a JSON object"}, nil},
		{"gap.jsonl", Labelled, `{"text":"x"}`, []string{"line 1", `"label" is missing`}, nil},
		{"case.jsonl", Labelled, `{"label":"a","Text":"x"}`, []string{`"text" is missing`}, nil},
		{"num.jsonl", Labelled, `{"text":"x","label":3}`, []string{"line 1", `"3", not a `}, nil},
		{"nul.jsonl", Labelled, `{"text":null,"label":"a"}`, []string{`"null", not a str`}, nil},
		{"empty.tsv", Labelled, "", []string{"empty.tsv", "no example"}, nil},
		{"empty.conll", Tagged, "-DOCSTART- O\n\n", []string{"empty.conll", "no example"}, nil},
		{"same.tsv", Labelled, "a\tx\na\ty\n", []string{"same.tsv", `label "a"`, "learn"}, nil},
		{"same.conll", Tagged, "x O\ny O\n", []string{`label "O"`, "learn"}, nil},
		{"thin.conll", Tagged, "x\n", []string{"line 1", "2 columns expected", "found 1"}, nil},
		{"many.tsv", Labelled, manyLabels(), []string{"line 65537", "65536 labels"}, nil},
		{"odd.conll", Tagged, "x P O\ny O\n", []string{"line 2: 3 columns", "found 2"}, nil},
		{"line.tsv", Labelled, good + strings.Repeat("x", maxLineBytes+1),
			[]string{"line 3", "longer than"}, nil},
		{"word.tsv", Labelled, good + "a\t" + strings.Repeat("x", 1<<17), []string{"line 3",
			"--tokenizer char"}, nil},
		{"a.csv", Labelled, good, []string{"a.csv", ".jsonl, .tsv"}, nil},
		{"a.tsv", Tagged, good, []string{".conll"}, nil},
		{"char.conll", Tagged, "x O\n", []string{"--tokenizer char", "--tokenizer word"},
			func(c *Config) { c.Tokenizer.Unit = corpus.Char }},
		{"bare.txt", Stories, "Mary went home.\n",
			[]string{"line 1", "above 0", `"Mary went`}, nil},
		{"back.txt", Stories, "1 Ann left.\n3 Hi.\n2 Who?\tAnn\n",
			[]string{"line 3", "above 3"}, nil},
		{"gap.txt", Stories, "1 Ann left.\n2 .\n3 Who?\tAnn\n",
			[]string{"line 3", "no word"}, nil},
		{"none.txt", Stories, "1 Ann left.\n2 Who?\t\n",
			[]string{"line 2", "label is empty"}, nil},
		{"char.txt", Stories, "1 Who?\tAnn\n", []string{"--tokenizer char", "--tokenizer word"},
			func(c *Config) { c.Tokenizer.Unit = corpus.Char }},
		{"open.txt", Trees, "(1 (2 a) b)\n(1 (2 a) b\n",
			[]string{"open.txt", "line 2: column 1: the ( has no )"}, nil},
		{"bare.ptb", Trees, "(1 (2 a) b)\n((2 a) b)\n", []string{"line 2: the root has no label"},
			nil},
		{"new.txt", Trees, "(1 (2 a) b)\n(1 (3 a) b)\n", []string{"line 2", `"3"`, `["1" "2"]`},
			func(c *Config) { c.Labels = []string{"1", "2"} }},
		{"long.txt", Trees, "(1 (2 a) b)\n(1" + strings.Repeat(" (2 x)", 101) + ")\n",
			[]string{"line 2", "--max-length 100"}, nil},
		{"blank.txt", Trees, "(1 (2 a) b)\n\n", []string{"line 2: it is empty"}, nil},
		{"same.txt", Trees, "(1 (1 a) b)\n", []string{`label "1"`, "learn"}, nil},
		{"letters.txt", Trees, "(1 (2 a) b)\n", []string{"--normalize none"},
			func(c *Config) { c.Tokenizer.Normalize = corpus.Letters }},
		{"a.tsv", "other", good, []string{`"other"`}, nil},
		{"a.tsv", Labelled, good, []string{"--max-length 0"}, func(c *Config) { c.MaxLength = 0 }},
		{"a.tsv", Labelled, good, []string{"--max-examples 268435457", "268435456"},
			func(c *Config) { c.MaxExamples = MaxExamples + 1 }},
		{"a.tsv", Labelled, good, []string{"twice"},
			func(c *Config) { c.Labels = []string{"a", "b", "a"} }},
		{"a.tsv", Labelled, good, []string{"--min-frequency"},
			func(c *Config) { c.MinFrequency = -1 }},
		{"a.tsv", Labelled, good, []string{"does not exist"},
			func(c *Config) { c.Source = "/no/such/file.tsv" }},
		{"no.zip", Labelled, archive(t, good, "a.csv", "_b.tsv"), []string{"no.zip", "0 files",
			".jsonl, .tsv"}, nil},
		{"two.zip", Labelled, archive(t, good, "a.tsv", "b/c.jsonl"), []string{"two.zip", "2 files",
			`"a.tsv" "b/c.jsonl"`}, nil},
		{"in.zip", Labelled, archive(t, good+"x", "a.tsv"), []string{"in.zip", "a.tsv", "line 3"},
			nil},
		{"not.zip", Labelled, good, []string{"not.zip", "zip archive"}, nil},
	} {
		cfg := config(t, c.kind, write(t, c.name, c.content))
		if c.change != nil {
			c.change(&cfg)
		}
		s, err := Open(t.Context(), cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s of %s: no error", c.name, c.kind)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") || len(err.Error()) > 500 {
			t.Errorf("%s: not one short line: %q", c.name, err)
		}
	}
}

// A length that does not fit in 16 bits widens the file.
func TestALongText(t *testing.T) {
	cfg := config(t, Labelled, write(t, "a.tsv", "a\tx\nb\t"+strings.Repeat("xy", 40000)+"\n"))
	cfg.Tokenizer.Unit, cfg.MaxLength = corpus.Char, 80000
	s := open(t, cfg)
	want := strings.Repeat("x y ", 40000)
	if got := read(t, s); s.Length(1) != 80000 || got[1].text != want[:len(want)-1] ||
		got[1].targets[0] != "b" {
		t.Errorf("a text of %d tokens", s.Length(1))
	}
}

// manyLabels has one more than are allowed.
func manyLabels() string {
	var file strings.Builder
	for i := range MaxLabels + 1 {
		fmt.Fprintf(&file, "%d\tx\n", i)
	}
	return file.String()
}

func TestTooManyExamplesAreRefused(t *testing.T) {
	b := &builder{cfg: config(t, Labelled, "a.tsv")}
	p := &pass{builder: b, counts: [2]int{1, 1}, rows: MaxExamples - 1,
		done: func([2]int) error { return nil }}
	if err := p.end(); err != nil {
		t.Errorf("the last example: %v", err)
	}
	p.counts = [2]int{1, 1}
	if err := p.end(); err == nil || !strings.Contains(err.Error(), "--max-examples") {
		t.Errorf("one more: %v", err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := config(t, Labelled, write(t, "a.tsv", "a\tone\nb\ttwo\n"))
	if _, err := Open(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestMaxExamplesReadsTheFirst(t *testing.T) {
	cfg := config(t, Labelled, write(t, "a.tsv", "a\tone\nb\ttwo two\nnot a row\n"))
	cfg.MaxExamples = 2
	s := open(t, cfg)
	if s.Len() != 2 || s.Length(1) != 2 || s.Vocabulary().Len() != 3 {
		t.Errorf("%d examples", s.Len())
	}
}

func TestExamplesAreTokenisedOnce(t *testing.T) {
	cfg := config(t, Labelled, write(t, "a.tsv", "a\tone\nb\ttwo two\n"))
	first := open(t, cfg)
	files := func() []string {
		found, err := filepath.Glob(filepath.Join(cfg.CacheDir, "*.tokens"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	before, err := os.Stat(files()[0])
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, cfg)
	after, err := os.Stat(files()[0])
	if err != nil || !os.SameFile(before, after) || len(files()) != 1 {
		t.Errorf("%d token files; written again: %v", len(files()), err)
	}
	if !reflect.DeepEqual(read(t, first), read(t, again)) {
		t.Error("the cache has other examples")
	}
	// What the token file does not show must not be taken from the cache.
	cfg.MaxLength = 1
	if _, err := Open(t.Context(), cfg); err == nil {
		t.Error("a text longer than --max-length comes from the cache")
	}
	cfg.MaxLength, cfg.Labels = 2, []string{"a"}
	if _, err := Open(t.Context(), cfg); err == nil {
		t.Error("an unknown label comes from the cache")
	}
}

func TestExamplesFromABucket(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	content := "a\tone\nb\ttwo\n"
	for name, text := range map[string]string{
		"x/a.tsv": content, "x/a.zip": archive(t, content, "a.tsv"),
	} {
		if err := bucket.WriteAll(t.Context(), name, []byte(text), nil); err != nil {
			t.Fatal(err)
		}
	}
	want := read(t, open(t, config(t, Labelled, write(t, "a.tsv", content))))
	for _, url := range []string{"s3://bucket/x/a.tsv?region=eu", "gs://bucket/x/a.zip"} {
		cfg := config(t, Labelled, url)
		cfg.OpenBucket = func(context.Context, string) (*blob.Bucket, error) {
			return blob.PrefixedBucket(bucket, ""), nil
		}
		if got := read(t, open(t, cfg)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q", url, got)
		}
		cfg.OpenBucket = nil
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), url) {
			t.Errorf("without buckets: %v", err)
		}
	}
}

func TestFingerprintsTellSetsApart(t *testing.T) {
	const text = "a\tone two\nb\ttwo\nb\tthree\n"
	base := config(t, Labelled, write(t, "a.tsv", text))
	set := open(t, base)
	same := open(t, config(t, Labelled, write(t, "other.tsv", "label\ttext\n"+text)))
	if set.Fingerprint() != same.Fingerprint() || set.Range(0, 3).Fingerprint() !=
		set.Fingerprint() || set.Range(1, 2).Range(1, 1).Fingerprint() != set.Range(2,
		1).Fingerprint() {
		t.Error("equal sets have two fingerprints")
	}
	change := func(change func(*Config)) *Set {
		cfg := base
		change(&cfg)
		return open(t, cfg)
	}
	content := func(text string) *Set {
		return open(t, config(t, Labelled, write(t, "a.tsv", text)))
	}
	seen := map[string]string{set.Fingerprint(): "the set"}
	for name, s := range map[string]*Set{
		"other labels":   content("a\tone two\nc\ttwo\nc\tthree\n"),
		"label swapped":  content("b\tone two\na\ttwo\na\tthree\n"),
		"other order":    content("b\ttwo\na\tone two\nb\tthree\n"),
		"other lengths":  content("a\tone\nb\ttwo two\nb\tthree\n"),
		"range":          set.Range(0, 2),
		"other range":    set.Range(1, 2),
		"range of range": set.Range(1, 2).Range(1, 1),
		"kind":           change(func(c *Config) { c.Kind = Pairs }),
		"other target": change(func(c *Config) {
			c.Kind, c.Source = Pairs, write(t, "a.tsv", strings.ReplaceAll(text, "two", "four"))
			c.Vocabulary = set.Vocabulary()
		}),
		"target":    change(func(c *Config) { c.Kind, c.Vocabulary = Pairs, set.Vocabulary() }),
		"tokenizer": change(func(c *Config) { c.Tokenizer.Unit = corpus.Char }),
		"normalize": change(func(c *Config) { c.Tokenizer.Normalize = corpus.Letters }),
		"frequency": change(func(c *Config) { c.MinFrequency = 2 }),
		"reserved":  change(func(c *Config) { c.Reserved = []string{"<pad>"} }),
		"labels":    change(func(c *Config) { c.Labels = []string{"a", "b", "c"} }),
	} {
		if other, ok := seen[s.Fingerprint()]; ok {
			t.Errorf("%s and %s have one fingerprint", name, other)
		}
		seen[s.Fingerprint()] = name
	}
}

func TestSplitHoldsOutExamplesOfAllTheFile(t *testing.T) {
	s := lengths(t, 4000, func(i int) int { return i%9 + 1 })
	train, held, err := s.Split(0.2)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := s.Split(0.2)
	if err != nil || again.Fingerprint() != train.Fingerprint() {
		t.Errorf("another split: %v", err)
	}
	if train.Fingerprint() == held.Fingerprint() || train.Len()+held.Len() != s.Len() {
		t.Errorf("%d and %d examples of %d", train.Len(), held.Len(), s.Len())
	}
	// Of each quarter of the file a fifth, within five standard deviations (13 each).
	quarters, seen := [4]int{}, map[int32]bool{}
	for part, set := range []*Set{train, held} {
		for i := range set.Len() {
			number := number(t, set, i)
			if seen[number] {
				t.Fatalf("example %d stands twice", number)
			}
			seen[number] = true
			quarters[number/1000] += part
		}
	}
	for _, count := range quarters {
		if count < 135 || count > 265 {
			t.Errorf("held out of each quarter: %v", quarters)
		}
	}
	// A longer file keeps what is held out.
	_, longer, err := lengths(t, 5000, func(i int) int { return i%9 + 1 }).Split(0.2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range held.Len() {
		if a, b := number(t, held, i), number(t, longer, i); a != b {
			t.Fatalf("held out as %dth: %d, of the longer file %d", i, a, b)
		}
	}
	_, part, err := s.Range(1000, 1000).Split(0.2)
	if err != nil || part.Len() != int64(quarters[1]) || number(t, part, 0) !=
		number(t, held, int64(quarters[0])) {
		t.Errorf("a range is split another way: %v", err)
	}
	for _, fraction := range []float64{-1, 0, 1, 1e-9, 0.99999999} {
		_, _, err := s.Split(fraction)
		if err == nil || !strings.Contains(err.Error(), "--validation-fraction") {
			t.Errorf("%v: %v", fraction, err)
		}
	}
}

// lengths makes a set of pairs. Example i is length(i) times the word "x", and its target the
// number i, in i%3+1 words.
func lengths(t testing.TB, n int, length func(i int) int) *Set {
	t.Helper()
	var file strings.Builder
	for i := range n {
		fmt.Fprintf(&file, "%s\t%d%s\n", strings.Repeat("x ", length(i)), i,
			strings.Repeat(" y", i%3))
	}
	return open(t, config(t, Pairs, write(t, "a.tsv", file.String())))
}

// number reads the number of an example of lengths.
func number(t testing.TB, s *Set, i int64) int32 {
	t.Helper()
	tokens, targets := make([]int32, s.Length(i)), make([]int32, s.Targets(i))
	if err := s.Read(i, tokens, targets); err != nil {
		t.Fatal(err)
	}
	var n int32
	if _, err := fmt.Sscan(s.TargetVocabulary().Token(targets[0]), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Described examples have a row's number as their one token, and a text as their targets.
func TestDescribed(t *testing.T) {
	cfg := config(t, Described, write(t, "d.tsv", "2\ta b\n0\tb\n2\tc\n"))
	cfg.Rows, cfg.Reserved = 3, []string{"<bos>", "<eos>"}
	s := open(t, cfg)
	var rows []int32
	for i := range s.Len() {
		row, text := make([]int32, s.Length(i)), make([]int32, s.Targets(i))
		if err := s.Read(i, row, text); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row...)
	}
	v := s.TargetVocabulary()
	if !slices.Equal(rows, []int32{2, 0, 2}) || v.Len() != 6 || v.ID("<eos>") != 2 ||
		s.Vocabulary().Len() != 1 || s.Longest() != 1 || s.LongestTarget() != 2 {
		t.Errorf("rows %v, vocabularies %v and %v", rows, s.Vocabulary().Tokens(), v.Tokens())
	}
	for text, want := range map[string]string{
		"0\ta\n3\tb\n":  `line 2: "3" is not the number of a row: there are 3, from 0`,
		"0\ta\n-1\tb\n": `line 2: "-1" is not`,
		"x\ta\n":        `line 1: "x" is not`,
		"0\n":           "line 1: 2 columns expected, row TAB text; found 1",
		"0\t \n":        "line 1: a text has no token",
	} {
		cfg.Source = write(t, "d.tsv", text)
		_, err := Open(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestSubwords: texts with a label may have subwords, of a tokenizer that Open learns or reads.
func TestSubwords(t *testing.T) {
	texts := []string{"the cat sat on the mat", "the dog sat on the log", "the hat of the cat"}
	source := write(t, "a.tsv", "x\t"+texts[0]+"\ny\t"+texts[1]+"\nx\t"+texts[2]+"\n")
	learned := config(t, Labelled, source)
	learned.Tokenizer.Unit, learned.Subwords = corpus.Subword, 270
	s := open(t, learned)
	v := s.Vocabulary()
	if v.TokenizerJSON() == nil || v.Len() <= 256 || v.Len() > 270 {
		t.Fatalf("%d tokens, of which some must be learned", v.Len())
	}
	for i, text := range texts {
		tokens, label := make([]int32, s.Length(int64(i))), make([]int32, 1)
		if err := s.Read(int64(i), tokens, label); err != nil {
			t.Fatal(err)
		}
		want, err := v.Encode(learned.Tokenizer, text)
		if err != nil || !slices.Equal(tokens, want) || len(want) >= len(text) {
			t.Errorf("%q: %v, and Encode has %v (%v)", text, tokens, want, err)
		}
		if got := v.Decode(learned.Tokenizer, tokens); got != text {
			t.Errorf("%q was decoded as %q", text, got)
		}
	}
	again, file := learned, learned
	again.CacheDir, again.Vocabulary = t.TempDir(), v
	file.CacheDir, file.SubwordFile = t.TempDir(), write(t, "t.json", string(v.TokenizerJSON()))
	for name, cfg := range map[string]Config{"vocabulary": again, "file": file} {
		if open(t, cfg).Fingerprint() != s.Fingerprint() {
			t.Errorf("the examples of the same %s are others", name)
		}
	}
	long := learned
	long.MaxLength = 6
	if _, err := Open(t.Context(), long); err == nil ||
		!strings.Contains(err.Error(), "more than --max-length 6 tokens") {
		t.Errorf("a text above --max-length: %v", err)
	}
	pairs := config(t, Pairs, source)
	pairs.Tokenizer.Unit = corpus.Subword
	if _, err := Open(t.Context(), pairs); err == nil ||
		!strings.Contains(err.Error(), "subwords are for texts with a label") {
		t.Errorf("pairs of subwords: %v", err)
	}
}
