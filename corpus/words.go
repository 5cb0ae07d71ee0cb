package corpus

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode"
	"unicode/utf8"
)

const (
	maxWordBytes = 64 << 10 // bounds memory for a text without white space
	keyBatch     = 256      // words whose keys are passed on together
	lowBits      = 0x0101010101010101
	highBits     = 0x8080808080808080
)

// eachWord calls word with each word of a text, split at white space. The argument is valid until
// word returns.
func eachWord(text []byte, word func(word []byte) error) error {
	for len(text) > 0 {
		var next []byte
		if next, text = cutWord(text); len(next) > maxWordBytes {
			return errLongWord()
		}
		if len(next) > 0 {
			if err := word(next); err != nil {
				return err
			}
		}
	}
	return nil
}

// cutWord cuts a text at its first white space.
func cutWord(text []byte) (word, rest []byte) {
	for i := 0; i < len(text); {
		n, space := 1, false
		if c := text[i]; c < utf8.RuneSelf {
			space = c == ' ' || '\t' <= c && c <= '\r'
		} else {
			var r rune
			r, n = utf8.DecodeRune(text[i:])
			space = unicode.IsSpace(r)
		}
		if space {
			return text[:i], text[i+n:]
		}
		i += n
	}
	return text, nil
}

func errLongWord() error {
	return fmt.Errorf("a word is longer than %d bytes: use --tokenizer char", maxWordBytes)
}

// eachKey is eachWord that calls short with the keys of several short words, and long with a longer
// word, all in the order of the text. It uses the memory of keys, which must have some.
func eachKey(
	text []byte, keys []shortKey, short func([]shortKey) error, long func(word []byte) error,
) error {
	keys = keys[:0]
	for len(text) > 0 {
		keys, text = asciiKeys(keys, text)
		var word []byte
		if len(keys) < cap(keys) {
			word, text = cutWord(text)
		}
		key := shortKeyOf(word)
		if key != (shortKey{}) {
			keys = append(keys, key)
		}
		isLong := len(word) > 0 && key == (shortKey{})
		if len(keys) == cap(keys) || isLong || len(text) == 0 {
			if err := short(keys); err != nil {
				return err
			}
			keys = keys[:0]
		}
		if len(word) > maxWordBytes {
			return errLongWord()
		}
		if isLong {
			if err := long(word); err != nil {
				return err
			}
		}
	}
	return nil
}

// asciiKeys appends the keys of a text's words to keys, until these are full. It returns the rest
// of the text, at whose start is a word with a character beyond ASCII, or a long one, or one at the
// end of the memory. What follows the text in memory is read, and has no effect.
func asciiKeys(keys []shortKey, text []byte) ([]shortKey, []byte) {
	for len(keys) < cap(keys) && len(text) > 0 && cap(text) > shortBytes {
		first := binary.LittleEndian.Uint64(text[:8])
		if first&highBits != 0 {
			break
		}
		n := min(spaceIn(first), len(text))
		if n < 8 {
			if n > 0 {
				keys = append(keys, shortKey{first & (1<<(8*n) - 1), uint64(n) << 56})
			}
			text = text[min(n+1, len(text)):]
			continue
		}
		second := binary.LittleEndian.Uint64(text[8:16])
		n = min(spaceIn(second), len(text)-8)
		if second&highBits != 0 || n == 8 {
			break
		}
		keys = append(keys, shortKey{first, second&(1<<(8*n)-1) | uint64(8+n)<<56})
		text = text[min(8+n+1, len(text)):]
	}
	return keys, text
}

// spaceIn returns the place of the first white space in eight bytes of ASCII; 8: there is none.
func spaceIn(ascii uint64) int {
	spaces := ^((ascii ^ ' '*lowBits) + 0x7f*lowBits)                            // 0x20
	controls := (ascii + (0x80-'\t')*lowBits) &^ (ascii + (0x80-'\r'-1)*lowBits) // 0x09 to 0x0d
	return bits.TrailingZeros64((spaces|controls)&highBits) / 8
}
