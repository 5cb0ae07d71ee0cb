package jobspec

import (
	"slices"
	"strings"
	"testing"
)

func TestTokenizerFlag(t *testing.T) {
	for _, c := range []struct {
		tokenizer, task, says string
		file                  bool
	}{
		{"char", "tag", "", false},
		{"bpe", "lm", "", false},
		{"a/tokenizer.json", "lm", "", true},
		{"s3://bucket/T.JSON?region=r", "lm", "", true},
		{"m.model", "lm", "", true},
		{"wrod", "lm", "not one of char, word, bpe", false},
		{"", "lm", "not one of", false},
		{"bpe", "translate", "give char or word", false},
		{"t.json", "fill", "give char or word", true},
		{"bpe", "classify", "", false},
		{"bpe", "tag", "the task is tag: give word", false},
	} {
		spec := Default()
		spec.Tokenizer, spec.Task = c.tokenizer, c.task
		err := ValidateFields(spec)
		if err == nil {
			err = validateTokenizer(spec)
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("--tokenizer %s --task %s: %v; want %q", c.tokenizer, c.task, err, c.says)
		}
		named := slices.ContainsFunc(places(spec), func(p place) bool {
			return p.flag == "tokenizer" && p.location == c.tokenizer
		})
		if named != c.file {
			t.Errorf("--tokenizer %s: a worker must be allowed to read it: %v", c.tokenizer, named)
		}
	}
}
