package job

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/corpus"
	"rondo/job/jobspec"
)

// TestLossPerUnit evaluates a text of 12 characters, 14 bytes and 4 words, whose every target costs
// a bit, with models of several tokens.
func TestLossPerUnit(t *testing.T) {
	source := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(source, []byte("n\u00e9 a\nn\u00e9 bcd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tokenizer, eos              string
		tokens                      int64 // of the text
		perCharacter, perByte, word float64
	}{
		{"char", "none", 12, 1, 12.0 / 14, 0},
		{"char", "line", 12, 1, 12.0 / 14, 0}, // <eos> takes the line feed's place
		{"word", "none", 4, 4.0 / 12, 4.0 / 14, 0},
		{"word", "line", 6, 6.0 / 12, 6.0 / 14, 0},
		// 257 tokens: the bytes and their most frequent pair.
		{"bpe", "none", 12, 1, 12.0 / 14, math.Exp2(12.0 / 4)},
	} {
		spec := jobspec.Default()
		spec.Tokenizer, spec.Eos, spec.VocabularySize = c.tokenizer, c.eos, 257
		own, err := OpenText(t.Context(), source, spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		vocabulary := own.Vocabulary()
		if err := own.Close(); err != nil {
			t.Fatal(err)
		}
		e, err := (&Trained{Spec: spec, Vocabulary: vocabulary}).scoreText(t.Context(), source,
			func(text corpus.Tokens) (float64, int64, error) {
				if text.Len() != c.tokens {
					t.Errorf("%s, --eos %s: %d tokens, want %d", c.tokenizer, c.eos, text.Len(),
						c.tokens)
				}
				return float64(text.Len()-1) * math.Ln2, text.Len() - 1, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }
		if !near(e.BitsPerToken, 1) || !near(e.BitsPerCharacter, c.perCharacter) ||
			!near(e.BitsPerByte, c.perByte) || !near(e.PerplexityPerWord, c.word) {
			t.Errorf("%s, --eos %s: %+v", c.tokenizer, c.eos, e)
		}
	}
}

// TestTextFieldWithoutObjects: --text-field is refused where no file has fields.
func TestTextFieldWithoutObjects(t *testing.T) {
	folder := t.TempDir()
	plain, lines := filepath.Join(folder, "a.txt"), filepath.Join(folder, "a.jsonl")
	text := strings.Repeat("some words and others. ", 100)
	for name, content := range map[string]string{plain: text, lines: `{"body": "` + text + `"}`} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ corpus, evaluated, says string }{
		{plain, "", "--text-field body is for a .jsonl or .parquet"},
		{plain, plain, "--text-field body is for a .jsonl or .parquet"},
		{plain, lines, ""},
		{lines, "", ""},
	} {
		spec := jobspec.Default()
		spec.Batch, spec.TextField, spec.Corpus, spec.EvalCorpus = 2, "body", c.corpus, c.evaluated
		d, err := openText(t.Context(), spec)
		if err == nil {
			err = d.Close()
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("--corpus %s --eval-corpus %s: %v; want %q", c.corpus, c.evaluated, err,
				c.says)
		}
	}
}
