package subword

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// match is a part of a text that a pattern has found, or one between two of these.
type match struct {
	start, end int
	is         bool
}

// finder finds a pattern. The matches that it appends to dst cover the text.
type finder interface {
	find(dst []match, text []byte) ([]match, error)
}

// oneOf finds each character of a class.
type oneOf func(r rune) bool

func (in oneOf) find(dst []match, text []byte) ([]match, error) {
	start := 0
	for i := 0; i < len(text); {
		r, n := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(text[i:])
		}
		if in(r) {
			dst = appendMatch(dst, start, i, i+n)
			start = i + n
		}
		i += n
	}
	return appendMatch(dst, start, len(text), len(text)), nil
}

// appendMatch appends the text before a match, and the match. Empty ones are left out.
func appendMatch(dst []match, before, start, end int) []match {
	if before < start {
		dst = append(dst, match{before, start, false})
	}
	if start < end {
		dst = append(dst, match{start, end, true})
	}
	return dst
}

// literal finds a string.
type literal string

func (l literal) find(dst []match, text []byte) ([]match, error) {
	start := 0
	for len(l) > 0 {
		i := bytes.Index(text[start:], []byte(l))
		if i < 0 {
			break
		}
		dst = appendMatch(dst, start, start+i, start+i+len(l))
		start += i + len(l)
	}
	return appendMatch(dst, start, len(text), len(text)), nil
}

// find finds the words of GPT-2's pattern.
func (w words) find(dst []match, text []byte) ([]match, error) {
	for start := 0; start < len(text); {
		n := w.next(text[start:])
		dst = append(dst, match{start, start + n, true})
		start += n
	}
	return dst, nil
}

// bertWords finds \w+|[^\w\s]+.
type bertWords struct{}

func (bertWords) find(dst []match, text []byte) ([]match, error) {
	const (
		outside = iota
		inWord
		inMarks
	)
	start, state := 0, outside
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		now := inMarks
		if unicode.IsSpace(r) {
			now = outside
		} else if isWordChar(r) {
			now = inWord
		}
		if now != state {
			if i > start {
				dst = append(dst, match{start, i, state != outside})
			}
			start, state = i, now
		}
		i += n
	}
	if len(text) > start {
		dst = append(dst, match{start, len(text), state != outside})
	}
	return dst, nil
}

// isWordChar reports whether \w matches r, as UTS #18 has it.
func isWordChar(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9' || r == '_'
	}
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc,
		unicode.Other_Alphabetic, unicode.Join_Control)
}

// isPunctuation is BERT's: ASCII's symbols are punctuation too.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return '!' <= r && r <= '~' && !('0' <= r && r <= '9') &&
			!('a' <= r|0x20 && r|0x20 <= 'z')
	}
	return unicode.IsPunct(r)
}

// A pattern can take exponential time. It has much for a text, lest a busy machine refuse a corpus,
// and little for decoding, which leaves a token as it is when the time is over.
const (
	maxMatch    = 5 * time.Second // for one match
	maxMatches  = time.Minute     // for all in a text
	maxDecoding = time.Second     // for the patterns of all decoders, and a millisecond for each id
)

// pattern finds a regular expression.
type pattern struct {
	is  *regexp2.Regexp
	all time.Duration // for the matches in a text
}

func newPattern(text string, match, all time.Duration) (finder, error) {
	if text == gpt2Pattern {
		return words{classes()}, nil
	}
	if len(text) > maxPattern {
		return nil, fmt.Errorf("a regular expression is longer than %d bytes", maxPattern)
	}
	compiled, err := regexp2.Compile(text, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("the regular expression %.200q cannot be used: %w", text, err)
	}
	compiled.MatchTimeout = match
	return pattern{compiled, all}, nil
}

const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func (p pattern) find(dst []match, text []byte) ([]match, error) {
	return part{p, true, true}.find(dst, text)
}

// part finds a pattern in a part of a document. A letter stands for what is before the part, and a
// space and a letter for what is behind it, so that no anchor takes a cut for the document's end.
type part struct {
	pattern
	first, last bool
}

func (p part) find(dst []match, text []byte) ([]match, error) {
	const neighbour = 'a'
	runes, at, begin := bytes.Runes(text), 0, time.Now()
	if !p.first {
		runes, at = slices.Insert(runes, 0, neighbour), 1
	}
	end := len(runes)
	if !p.last {
		runes = append(runes, ' ', neighbour)
	}
	m, err := p.is.FindRunesMatchStartingAt(runes, at)
	place, start := 0, 0 // place: bytes before the rune at
	for ; m != nil && err == nil && m.Index < end; m, err = p.is.FindNextMatch(m) {
		if time.Since(begin) > p.all {
			break
		}
		for ; at < m.Index; at++ {
			place += utf8.RuneLen(runes[at])
		}
		from := place
		for ; at < min(m.Index+m.Length, end); at++ {
			place += utf8.RuneLen(runes[at])
		}
		if place > from {
			dst = appendMatch(dst, start, from, place)
			start = place
		}
	}
	if err != nil || time.Since(begin) > p.all { // the error has the whole input
		return nil, fmt.Errorf("the regular expression %.200q takes more than %v for a match, or "+
			"%v for a piece of text: give a simpler one, or try again when the machine is less "+
			"busy", p.is, p.is.MatchTimeout, p.all)
	}
	return appendMatch(dst, start, len(text), len(text)), nil
}

// inverted matches the text between the matches of a pattern.
type inverted struct{ finder }

func (i inverted) find(dst []match, text []byte) ([]match, error) {
	begin := len(dst)
	dst, err := i.finder.find(dst, text)
	for k := begin; k < len(dst); k++ {
		dst[k].is = !dst[k].is
	}
	return dst, err
}

// splitter is a pre-tokenizer: it appends the parts of a piece.
type splitter interface {
	split(e *Encoder, dst []piece, p piece) ([]piece, error)
}

// behavior is how a text is split at the matches.
type behavior string

const (
	removed            behavior = "Removed"
	isolated           behavior = "Isolated"
	mergedWithPrevious behavior = "MergedWithPrevious"
	mergedWithNext     behavior = "MergedWithNext"
	contiguous         behavior = "Contiguous"
)

// cut splits where a pattern matches.
type cut struct {
	at finder
	do behavior
}

func (c cut) split(e *Encoder, dst []piece, p piece) ([]piece, error) {
	found, err := c.at.find(e.found[:0], p.text)
	e.found = found
	if err != nil {
		return nil, err
	}
	begin := 0
	for i, m := range found {
		join := false // with the match behind
		if i+1 < len(found) {
			next := found[i+1]
			switch c.do {
			case contiguous:
				join = m.is == next.is
			case mergedWithPrevious:
				join = next.is && !m.is
			case mergedWithNext:
				join = m.is && !next.is
			case removed, isolated:
			}
		}
		if join {
			continue
		}
		if !(c.do == removed && m.is) {
			dst = append(dst, piece{p.text[begin:m.end], -1, p.first && begin == 0})
		}
		begin = m.end
	}
	return dst, nil
}

// byteLevelWords splits by GPT-2's pattern, and puts a space before a text that has none.
type byteLevelWords struct {
	space bool
	by    splitter // nil: the text stays whole
}

func (b byteLevelWords) split(e *Encoder, dst []piece, p piece) ([]piece, error) {
	if b.space && !bytes.HasPrefix(p.text, []byte{' '}) {
		p.text = append([]byte{' '}, p.text...)
	}
	if b.by == nil {
		return append(dst, p), nil
	}
	return b.by.split(e, dst, p)
}

// byteCharacters replaces bytes by the characters of the byte level.
type byteCharacters struct{}

func (byteCharacters) split(_ *Encoder, dst []piece, p piece) ([]piece, error) {
	p.text = appendByteLevel(nil, p.text)
	return append(dst, p), nil
}

// metaspace replaces spaces by a mark, which begins each word.
type metaspace struct {
	mark   string
	scheme string // where a mark is put before a text without one: always, first, never
	words  bool
}

func (m metaspace) split(e *Encoder, dst []piece, p piece) ([]piece, error) {
	p.text = bytes.ReplaceAll(p.text, []byte{' '}, []byte(m.mark))
	if m.scheme == "always" || m.scheme == "first" && p.first {
		if !bytes.HasPrefix(p.text, []byte(m.mark)) {
			p.text = append([]byte(m.mark), p.text...)
		}
	}
	if !m.words {
		return append(dst, p), nil
	}
	return cut{literal(m.mark), mergedWithNext}.split(e, dst, p)
}

// decode undoes split.
func (m metaspace) decode(tokens []string, _ time.Time) []string {
	for i, token := range tokens {
		by := " "
		if i == 0 && m.scheme != "never" {
			by = ""
		}
		tokens[i] = strings.ReplaceAll(token, m.mark, by)
	}
	return tokens
}
