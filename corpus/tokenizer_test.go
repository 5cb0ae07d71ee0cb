package corpus

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// tokenStrings returns the tokens of a text that is read in blocks of the given size.
func tokenStrings(t Tokenizer, text []byte, size int) ([]string, error) {
	var found []string
	splitter, err := Tokenizer{Unit: t.Unit, Normalize: None}.NewSplitter(func(token []byte) error {
		found = append(found, string(token))
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := newCutter(t.Unit, func() []byte { return nil }, func(b block) error {
		return b.each(func(text []byte, _ piece) error { return splitter.Split(text) })
	})
	err = t.scanBlocks(context.Background(), bytes.NewReader(text), c, size)
	return found, errors.Join(err, c.flush())
}

var notLetters = regexp.MustCompile("[^A-Za-z]+")

// bookLetters is the textbook's preprocessing as printed: line by line, with a regular expression.
func bookLetters(text string) []string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, strings.ToLower(strings.TrimSpace(
			notLetters.ReplaceAllString(line, " "))))
	}
	return lines
}

// bookPunctuation is the textbook's preprocessing of sentence pairs as printed: code point by code
// point.
func bookPunctuation(text string) string {
	runes := []rune(strings.ToLower(strings.NewReplacer("\u202f", " ", "\u00a0", " ").
		Replace(text)))
	var out strings.Builder
	for i, r := range runes {
		if i > 0 && strings.ContainsRune(",.!?", r) && runes[i-1] != ' ' {
			out.WriteRune(' ')
		}
		out.WriteRune(r)
	}
	return out.String()
}

// slowTokens is a simple reference for the streaming tokenizer.
func slowTokens(t Tokenizer, text string) []string {
	text = strings.TrimPrefix(text, "\ufeff")
	if t.Normalize == Punctuation {
		text = bookPunctuation(text)
	}
	var found []string
	switch {
	case t.Normalize == Letters && t.Unit == Word:
		for _, line := range bookLetters(text) {
			found = append(found, strings.Fields(line)...)
		}
	case t.Unit == Word:
		found = strings.Fields(text)
	case t.Normalize == Letters:
		text = strings.Join(bookLetters(text), "")
		fallthrough
	default:
		for _, r := range text {
			found = append(found, string(r))
		}
	}
	return found
}

// split is a tokenizer that inserts no EndOfText.
func split(unit Unit, normalize Normalization) Tokenizer {
	return Tokenizer{Unit: unit, Normalize: normalize}
}

var allTokenizers = []Tokenizer{split(Char, None), split(Char, Letters), split(Word, None),
	split(Word, Letters), split(Char, Punctuation), split(Word, Punctuation)}

func TestTokenizersMatchTheirTwins(t *testing.T) {
	texts := []string{
		"", " ", "\n\n", "a", "Hello,  World!\nIt's me.\r\n\r\n  'tis \t 42 \rend--",
		"Va !  \u202f?! \u00a0.Être, OUI!,", ".", "?a..b",
		"\ufeffnaïve café — 日本語 \U0001F600\u00a0\u2003x\n", "ſK",
		strings.Repeat("ab \n", 3000),
	}
	for _, text := range texts {
		for _, tokenizer := range allTokenizers {
			want := slowTokens(tokenizer, text)
			for _, size := range []int{4, 5, 7, 64, blockBytes} {
				got, err := tokenStrings(tokenizer, []byte(text), size)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%v of %.20q in blocks of %d: %q, %v; want %q", tokenizer, text,
						size, got, err, want)
				}
			}
		}
	}
}

func TestInvalidUTF8IsFoundAtItsOffset(t *testing.T) {
	for _, c := range []struct {
		text   string
		offset string
	}{
		{"abc\xffdef", "byte 3 (0xff)"},
		{"\x80", "byte 0 (0x80)"},
		{"日本\xe8\xaa", "byte 6 (0xe8)"},
		{"ab\xed\xa0\x80", "byte 2 (0xed)"},
		{strings.Repeat("é", 1000) + "\xc3(", "byte 2000 (0xc3)"},
	} {
		for _, size := range []int{4, 6, 64, blockBytes} {
			for _, tokenizer := range allTokenizers {
				_, err := tokenStrings(tokenizer, []byte(c.text), size)
				if err == nil || !strings.Contains(err.Error(), c.offset) {
					t.Errorf("%.10q in blocks of %d: %v; want %s", c.text, size, err, c.offset)
				}
			}
		}
	}
}

func TestAWordHasALimit(t *testing.T) {
	fits := strings.Repeat("x", maxWordBytes)
	for _, size := range []int{1 << 10, blockBytes} {
		got, err := tokenStrings(split(Word, None), []byte("a "+fits+" b"), size)
		if err != nil || len(got) != 3 || got[1] != fits {
			t.Errorf("the longest word: %d tokens, %v", len(got), err)
		}
		for _, text := range []string{"a x" + fits, "a x" + fits + " b"} {
			_, err := tokenStrings(split(Word, None), []byte(text), size)
			if err == nil || !strings.Contains(err.Error(), "--tokenizer char") {
				t.Errorf("a word too long: %v", err)
			}
		}
	}
}

// timeMachine returns the path of the book that RONDO_TIMEMACHINE names. Without it, it returns a
// text with all the book's features: blank lines, indented lines, digits, dashes, apostrophes and
// every letter.
func timeMachine(t *testing.T) (path string, whole bool) {
	if path := os.Getenv("RONDO_TIMEMACHINE"); path != "" {
		return path, true
	}
	return "testdata/lines.txt", false
}

func TestLettersGiveTheTextbooksVocabulary(t *testing.T) {
	path, whole := timeMachine(t)
	cfg := Config{Source: path, Tokenizer: split(Char, Letters), CacheDir: t.TempDir()}
	c := open(t, cfg)
	want := []string{Unknown, " "}
	for letter := 'a'; letter <= 'z'; letter++ {
		want = append(want, string(letter))
	}
	tokens := c.Vocabulary().Tokens()
	if tokens[0] != Unknown || tokens[1] != " " {
		t.Errorf("the vocabulary begins %q", tokens[:2])
	}
	slices.Sort(tokens[2:])
	if !slices.Equal(tokens, want) {
		t.Errorf("vocabulary %q; want %q", tokens, want)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	book := strings.Join(bookLetters(string(text)), "")
	if got := c.Vocabulary().Decode(Tokenizer{Unit: Char}, all(t, c.Tokens())); got != book {
		t.Errorf("the tokens read %.60q…; want %.60q…", got, book)
	}
	cfg.Tokenizer.Unit = Word
	w := open(t, cfg)
	if !whole {
		return
	}
	// The figures of the textbook edition that reads line by line.
	if c.Tokens().Len() != 170580 || c.Vocabulary().Len() != 28 {
		t.Errorf("%d characters, %d symbols; want 170580, 28", c.Tokens().Len(),
			c.Vocabulary().Len())
	}
	order := strings.Join(c.Vocabulary().Tokens()[1:12], "")
	if order != " etainoshrd"[:11] {
		t.Errorf("the most frequent symbols are %q", order)
	}
	if w.Tokens().Len() != 32775 || w.Vocabulary().Len() != 4580 {
		t.Errorf("%d words of %d; want 32775 of 4580", w.Tokens().Len(), w.Vocabulary().Len())
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("Hello,  World!\r\nIt's 42"), uint8(4))
	f.Add([]byte("\ufeffnaïve 日本語 \U0001F600\u2003x"), uint8(5))
	f.Add([]byte("ab\xed\xa0\x80"), uint8(6))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		for _, tokenizer := range allTokenizers {
			got, err := tokenStrings(tokenizer, text, max(utf8.UTFMax, int(size)))
			whole, wholeErr := tokenStrings(tokenizer, text, len(text)+utf8.UTFMax)
			if (err == nil) != utf8.Valid(text) || (wholeErr == nil) != (err == nil) {
				t.Fatalf("%v: %v in pieces, %v whole", tokenizer, err, wholeErr)
			}
			if err != nil {
				if err.Error() != wholeErr.Error() {
					t.Fatalf("%v: %v in pieces, %v whole", tokenizer, err, wholeErr)
				}
				continue
			}
			want := slowTokens(tokenizer, string(text))
			if !slices.Equal(got, want) || !slices.Equal(whole, want) {
				t.Fatalf("%v: %q in pieces, %q whole; want %q", tokenizer, got, whole, want)
			}
		}
	})
}
