package subword

import (
	"fmt"
	"unicode/utf8"
)

// wordPiece splits a word into the longest tokens from its beginning on.
type wordPiece struct {
	ids      map[string]int32
	prefix   string // of the parts of a word but the first
	unknown  int32
	maxChars int // of a word; a longer one is unknown
	longest  int // bytes of the longest token
}

func newWordPiece(m modelJSON, ids map[string]int32) (*wordPiece, error) {
	w := &wordPiece{ids: ids, prefix: "##", maxChars: 100}
	unknown := "[UNK]"
	if m.Unknown != nil {
		unknown = *m.Unknown
	}
	if m.Prefix != nil {
		w.prefix = *m.Prefix
	}
	if m.MaxChars != nil {
		w.maxChars = *m.MaxChars
	}
	if w.maxChars < 0 || w.maxChars > maxWordChars {
		return nil, fmt.Errorf("model.max_input_chars_per_word %d is not in [0, %d]", w.maxChars,
			maxWordChars)
	}
	var ok bool
	if w.unknown, ok = ids[unknown]; !ok {
		return nil, fmt.Errorf("model.unk_token %q is not in the vocabulary", unknown)
	}
	for token := range ids {
		w.longest = max(w.longest, len(token))
	}
	if w.longest > maxPartBytes {
		return nil, fmt.Errorf("a token of WordPiece is longer than %d bytes", maxPartBytes)
	}
	return w, nil
}

func (w *wordPiece) encode(_ *merging, word string, dst []int32) []int32 {
	begin := len(dst)
	unknown := utf8.RuneCountInString(word) > w.maxChars
	for start := 0; start < len(word) && !unknown; {
		id, end := w.longestAt(word, start)
		unknown = end == start
		dst = append(dst, id)
		start = end
	}
	if unknown {
		return append(dst[:begin], w.unknown)
	}
	return dst
}

// longestAt returns the longest token at a place in a word, and its end; start: there is none.
func (w *wordPiece) longestAt(word string, start int) (id int32, end int) {
	rest, mark := word[start:min(len(word), start+w.longest)], 0
	if start > 0 {
		rest, mark = w.prefix+rest, len(w.prefix)
	}
	for end := len(rest); end > mark; end-- {
		if end < len(rest) && !utf8.RuneStart(rest[end]) {
			continue
		}
		if id, ok := w.ids[rest[:end]]; ok {
			return id, start + end - mark
		}
	}
	return 0, start
}
