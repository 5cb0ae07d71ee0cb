package subword

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before it is split. It may return its argument, which it does not
// change. first and last say that the document begins and ends with the text.
type normalizer interface {
	normalize(text []byte, first, last bool) ([]byte, error)
}

// mapped changes each text by itself.
type mapped func(text []byte) []byte

func (m mapped) normalize(text []byte, _, _ bool) ([]byte, error) { return m(text), nil }

// characters is a normalizer that replaces single characters. change appends r's replacement.
func characters(change func(dst []byte, r rune) []byte) mapped {
	return func(text []byte) []byte {
		dst := make([]byte, 0, len(text)+len(text)/8)
		for len(text) > 0 {
			r, n := utf8.DecodeRune(text)
			dst = change(dst, r)
			text = text[n:]
		}
		return dst
	}
}

// without is a normalizer that removes characters.
func without(drop func(r rune) bool) mapped {
	return characters(func(dst []byte, r rune) []byte {
		if drop(r) {
			return dst
		}
		return utf8.AppendRune(dst, r)
	})
}

// toLower is the full lower case of a character: of one alone it has two characters.
func toLower(dst []byte, r rune) []byte {
	if r == 'İ' {
		return append(dst, "i\u0307"...)
	}
	return utf8.AppendRune(dst, unicode.ToLower(r))
}

func isMark(r rune) bool { return unicode.Is(unicode.M, r) }

// byName returns a normalizer without parameters; nil: none has the name.
func byName(name string) normalizer {
	switch name {
	case "NFC":
		return mapped(norm.NFC.Bytes)
	case "NFD":
		return mapped(norm.NFD.Bytes)
	case "NFKC":
		return mapped(norm.NFKC.Bytes)
	case "NFKD":
		return mapped(norm.NFKD.Bytes)
	case "Lowercase":
		return characters(toLower)
	case "StripAccents":
		return without(isMark)
	case "ByteLevel":
		return mapped(func(text []byte) []byte { return appendByteLevel(nil, text) })
	}
	return nil
}

// bert returns the steps of BERT's own normalizer.
func bert(j stepJSON) []normalizer {
	var steps []normalizer
	if isTrue(j.CleanText, true) {
		steps = append(steps, characters(cleanText))
	}
	if isTrue(j.HandleChinese, true) {
		steps = append(steps, characters(spaceChinese))
	}
	lower := isTrue(j.Lowercase, true)
	if isTrue(j.StripAccents, lower) {
		steps = append(steps, mapped(norm.NFD.Bytes),
			without(func(r rune) bool { return unicode.Is(unicode.Mn, r) }))
	}
	if lower {
		steps = append(steps, characters(toLower))
	}
	return steps
}

// cleanText removes control characters, and makes all white space spaces.
func cleanText(dst []byte, r rune) []byte {
	switch {
	case r == '\t' || r == '\n' || r == '\r':
		return append(dst, ' ')
	case r == 0 || r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co):
		return dst
	case unicode.IsSpace(r):
		return append(dst, ' ')
	}
	return utf8.AppendRune(dst, r)
}

// spaceChinese puts spaces around the characters that BERT takes for words: CJK ideographs. The
// range that begins at U+2B920 is so in BERT's code.
func spaceChinese(dst []byte, r rune) []byte {
	switch {
	case 0x4e00 <= r && r <= 0x9fff, 0x3400 <= r && r <= 0x4dbf, 0x20000 <= r && r <= 0x2a6df,
		0x2a700 <= r && r <= 0x2b73f, 0x2b740 <= r && r <= 0x2b81f, 0x2b920 <= r && r <= 0x2ceaf,
		0xf900 <= r && r <= 0xfaff, 0x2f800 <= r && r <= 0x2fa1f:
		return append(utf8.AppendRune(append(dst, ' '), r), ' ')
	}
	return utf8.AppendRune(dst, r)
}

// strip removes white space at a document's ends.
type strip struct{ left, right bool }

func (s strip) normalize(text []byte, first, last bool) ([]byte, error) {
	if s.left && first {
		text = bytes.TrimLeftFunc(text, unicode.IsSpace)
	}
	if s.right && last {
		text = bytes.TrimRightFunc(text, unicode.IsSpace)
	}
	return text, nil
}

// prepend puts a mark before a document.
type prepend string

func (p prepend) normalize(text []byte, first, _ bool) ([]byte, error) {
	if !first || len(text) == 0 {
		return text, nil
	}
	return append([]byte(p), text...), nil
}

// replace replaces the matches of a pattern.
type replace struct {
	pattern finder
	by      string
}

func (r replace) normalize(text []byte, first, last bool) ([]byte, error) {
	if p, ok := r.pattern.(pattern); ok {
		r.pattern = part{p, first, last}
	}
	return r.within(text, maxNormalized)
}

// within is an error if it makes more than limit bytes.
func (r replace) within(text []byte, limit int) ([]byte, error) {
	found, err := r.pattern.find(nil, text)
	if err != nil || len(found) == 1 && !found[0].is {
		return text, err
	}
	var dst []byte
	for _, m := range found {
		if m.is {
			dst = append(dst, r.by...)
		} else {
			dst = append(dst, text[m.start:m.end]...)
		}
		if len(dst) > limit {
			return nil, fmt.Errorf("a Replace makes more than %d bytes of a text", limit)
		}
	}
	return dst, nil
}
