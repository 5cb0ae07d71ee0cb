package subword

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// byteLevel maps bytes to characters that can be printed, and back, as GPT-2's encoder does: those
// of Latin-1 that are printed stand for themselves, and the others, in their order, are U+0100 and
// on.
type byteLevel struct {
	char [256]string
	byte map[rune]byte
}

//nolint:gochecknoglobals // a table that nothing changes
var byteLevelTable = sync.OnceValue(func() *byteLevel {
	t := &byteLevel{byte: map[rune]byte{}}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !('!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b && b <= 0xff) {
			r = next
			next++
		}
		t.char[b], t.byte[r] = string(r), byte(b)
	}
	return t
})

func appendByteLevel(dst, text []byte) []byte {
	table := byteLevelTable()
	for _, b := range text {
		dst = append(dst, table.char[b]...)
	}
	return dst
}

// appendBytes undoes appendByteLevel. A token with other characters stays as it is.
func appendBytes(dst []byte, token string) []byte {
	table, start := byteLevelTable(), len(dst)
	for _, r := range token {
		b, ok := table.byte[r]
		if !ok {
			return append(dst[:start], token...)
		}
		dst = append(dst, b)
	}
	return dst
}

// The classes of characters in GPT-2's pattern.
const (
	other = iota
	letter
	number
	space
)

//nolint:gochecknoglobals // a table that nothing changes
var classes = sync.OnceValue(func() *[1 << 16]uint8 {
	table := new([1 << 16]uint8)
	for r := range rune(len(table)) {
		table[r] = classify(r)
	}
	return table
})

func classify(r rune) uint8 {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

// words finds the matches of GPT-2's pattern, which cover a whole text:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
type words struct{ table *[1 << 16]uint8 }

func (w words) class(text []byte) (class uint8, size int) {
	r, n := rune(text[0]), 1
	if r >= utf8.RuneSelf {
		r, n = utf8.DecodeRune(text)
	}
	if int(r) < len(w.table) {
		return w.table[r], n
	}
	return classify(r), n
}

// next returns the length of the match at the beginning of a text, which is not empty.
func (w words) next(text []byte) int {
	if n := contraction(text); n > 0 {
		return n
	}
	begin := 0
	if text[0] == ' ' && len(text) > 1 {
		begin = 1
	}
	kind, n := w.class(text[begin:])
	if kind == space {
		return w.spaces(text)
	}
	end := begin + n
	for end < len(text) {
		class, n := w.class(text[end:])
		if class != kind {
			break
		}
		end += n
	}
	return end
}

// spaces returns the length of a run of white space, without its last character if text follows.
func (w words) spaces(text []byte) int {
	end, last := 0, 0
	for end < len(text) {
		class, n := w.class(text[end:])
		if class != space {
			if last > 0 {
				return last
			}
			return end
		}
		last = end
		end += n
	}
	return end
}

func contraction(text []byte) int {
	if text[0] != '\'' || len(text) < 2 {
		return 0
	}
	switch text[1] {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(text) > 2 {
		switch string(text[1:3]) {
		case "re", "ve", "ll":
			return 3
		}
	}
	return 0
}

// SplitWords calls word with each word of a text, as the tokenizers of Train have them: by GPT-2's
// pattern. Together they are the text.
func SplitWords(text []byte, word func(word []byte) error) error {
	w := words{classes()}
	for len(text) > 0 {
		n := w.next(text)
		if err := word(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}
