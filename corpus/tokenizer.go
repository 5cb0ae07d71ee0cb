package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"

	"rondo/corpus/subword"
)

// Unit is the unit of a token (--tokenizer).
type Unit string

const (
	// Char makes every Unicode code point a token, including line ends.
	Char Unit = "char"
	// Word splits at white space (unicode.IsSpace) and keeps everything else, including punctuation
	// and capitals. White space is dropped, so line ends vanish and there is no <eos>.
	Word Unit = "word"
	// Subword is a part of a word, by a vocabulary with a subword.Tokenizer.
	Subword Unit = "subword"
)

// Separator is the text between two tokens: a space between words, nothing between characters.
func (u Unit) Separator() string {
	if u == Word {
		return " "
	}
	return ""
}

// Normalization is applied to the text before it is split (--normalize).
type Normalization string

const (
	// None leaves the text unchanged.
	None Normalization = "none"
	// Letters is the preprocessing of "The Time Machine" in Dive into Deep Learning (Zhang, Lipton,
	// Li and Smola), section "Text Preprocessing", in the edition that reads the book line by line.
	// In each line, every run of bytes other than A-Z and a-z becomes one space, spaces at both
	// ends are removed, and letters become lower case. The lines are then joined without a
	// separator, so characters of two lines touch ("himwas"), but words do not. The book has
	// 170,580 characters in this form, and 173,428 in a later edition that turns a line end into a
	// space. Both have the same symbols: 26 letters, space and <unk>.
	Letters Normalization = "letters"
	// Punctuation is the preprocessing of sentence pairs in the same book, section "Machine
	// Translation and the Dataset": letters become lower case, no-break spaces become spaces, and a
	// space is put before each of , . ! ? that does not follow one, so that these are words.
	Punctuation Normalization = "punctuation"
)

// EndOfText is the token that Ends inserts.
const EndOfText = "<eos>"

// Ends says where EndOfText stands in a text (--eos).
type Ends string

const (
	// NoEnds inserts none; words then run over line ends, and characters have line feeds.
	NoEnds Ends = "none"
	// LineEnds puts one in the place of each line feed, and at the end of a document's last line.
	LineEnds Ends = "line"
	// DocumentEnds puts one behind each document.
	DocumentEnds Ends = "document"
)

// Tokenizer says how text becomes tokens.
type Tokenizer struct {
	Unit      Unit
	Normalize Normalization
	Ends      Ends // empty: NoEnds
}

// marksEnds says whether the texts have EndOfText.
func (t Tokenizer) marksEnds() bool { return t.Ends != "" && t.Ends != NoEnds }

func (t Tokenizer) validate() error {
	if t.Unit != Char && t.Unit != Word && t.Unit != Subword {
		return fmt.Errorf("--tokenizer %q is not one of char, word, bpe", t.Unit)
	}
	if t.Normalize != None && t.Normalize != Letters && t.Normalize != Punctuation {
		return fmt.Errorf("--normalize %q is not one of none, letters, punctuation", t.Normalize)
	}
	switch t.Ends {
	case "", NoEnds, LineEnds, DocumentEnds:
		return nil
	}
	return fmt.Errorf("--eos %q is not one of none, line, document", t.Ends)
}

// normalizer normalises text that arrives in blocks of whole code points.
type normalizer interface {
	append(dst, src []byte) []byte
}

// normalizer returns nil for None.
func (t Tokenizer) normalizer() normalizer {
	switch t.Normalize {
	case Letters:
		return &letters{lines: t.Unit == Word || t.Ends == LineEnds}
	case Punctuation:
		return &punctuation{space: true}
	default:
		return nil
	}
}

const blockBytes = 256 << 10 // size of the text blocks held in memory

// sink receives normalised text in blocks of whole code points. A block is valid until text
// returns.
type sink interface {
	text(block []byte) error
	end() error
}

// lineMarker is a sink that calls mark instead of passing a line feed on.
type lineMarker struct {
	to    sink
	mark  func() error
	begun bool // the text has gone on after the last line feed
}

func (l *lineMarker) text(block []byte) error {
	for {
		line, rest, found := bytes.Cut(block, []byte{'\n'})
		if !found {
			l.begun = l.begun || len(block) > 0
			return l.to.text(block)
		}
		if err := l.to.text(line); err != nil {
			return err
		}
		if err := errors.Join(l.to.end(), l.mark()); err != nil {
			return err
		}
		block, l.begun = rest, false
	}
}

func (l *lineMarker) end() error { return l.to.end() }

// scan reads r to its end, checks that it is UTF-8, normalises it and passes it to dst. It skips a
// byte-order mark at the start.
func (t Tokenizer) scan(ctx context.Context, r io.Reader, dst sink) error {
	size := blockBytes
	if short, ok := r.(interface{ Len() int }); ok { // and one byte more to find its end
		size = min(size, max(short.Len()+1, utf8.UTFMax))
	}
	return t.scanBlocks(ctx, r, dst, size)
}

// scanBlocks is scan with a given block size, which must hold at least one code point.
func (t Tokenizer) scanBlocks(ctx context.Context, r io.Reader, dst sink, size int) error {
	var (
		buf    = make([]byte, size)
		clean  []byte
		rules  = t.normalizer()
		held   int   // bytes of an incomplete code point at the start of buf
		offset int64 // position of buf[0] in the source
	)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, last, err := fill(r, buf[held:])
		if err != nil {
			return fmt.Errorf("read at byte %d: %w", offset+int64(held), err)
		}
		block := buf[:held+n]
		whole := len(block)
		if !last {
			whole = completeRunes(block)
		}
		if bad := invalidUTF8(block[:whole]); bad >= 0 {
			return fmt.Errorf("invalid UTF-8 at byte %d (0x%02x): give a text, and convert it "+
				"to UTF-8, for example with iconv", offset+int64(bad), block[bad])
		}
		text := block[:whole]
		if offset == 0 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if rules != nil {
			clean = rules.append(clean[:0], text)
			text = clean
		}
		if err := dst.text(text); err != nil {
			return err
		}
		if last {
			return dst.end()
		}
		offset += int64(whole)
		held = copy(buf, block[whole:])
	}
}

// fill reads until p is full or the text ends. Unlike io.ReadFull it tells a text that ends from a
// transfer that was cut off, which is io.ErrUnexpectedEOF.
func fill(r io.Reader, p []byte) (n int, last bool, err error) {
	for n < len(p) {
		more, err := r.Read(p[n:])
		n += more
		if err == io.EOF {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// completeRunes returns the length of b without an incomplete code point at its end.
func completeRunes(b []byte) int {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}

// invalidUTF8 returns the index of the first byte that is not valid UTF-8, or -1.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

// letters applies Letters to text that arrives in pieces. No byte of a code point beyond ASCII is a
// letter, so each byte can be classified alone.
type letters struct {
	lines bool // write a line feed at each line end, to separate words
	begun bool // the line has had a letter
	gap   bool // a non-letter followed the last letter
}

func (l *letters) append(dst, src []byte) []byte {
	for _, c := range src {
		lower := c | 0x20
		switch {
		case 'a' <= lower && lower <= 'z':
			if l.gap {
				dst = append(dst, ' ')
				l.gap = false
			}
			l.begun = true
			dst = append(dst, lower)
		case c == '\n' || c == '\r':
			l.begun, l.gap = false, false
			if l.lines {
				dst = append(dst, '\n')
			}
		default:
			l.gap = l.begun
		}
	}
	return dst
}

// punctuation applies Punctuation.
type punctuation struct {
	space bool // the text begins here, or the last code point was a space
}

func (p *punctuation) append(dst, src []byte) []byte {
	for len(src) > 0 {
		r, n := utf8.DecodeRune(src)
		src = src[n:]
		switch r {
		case '\u00a0', '\u202f':
			r = ' '
		case ',', '.', '!', '?':
			if !p.space {
				dst = append(dst, ' ')
			}
		}
		p.space = r == ' '
		dst = utf8.AppendRune(dst, unicode.ToLower(r))
	}
	return dst
}

// Splitter splits one short text after the other, each as a whole text, and calls token with each
// token. It must not be used concurrently.
type Splitter struct {
	tokenizer Tokenizer
	clean     []byte
	each      func(text []byte) error
}

// NewSplitter makes a splitter, which inserts no EndOfText. A token is valid until the function
// returns. For Subword the tokens are the words that Counter.Subwords learns from.
func (t Tokenizer) NewSplitter(token func(token []byte) error) (*Splitter, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	switch t.Unit {
	case Word:
		return &Splitter{tokenizer: t, each: func(text []byte) error {
			return eachWord(text, token)
		}}, nil
	case Subword:
		return &Splitter{tokenizer: t, each: func(text []byte) error {
			return subword.SplitWords(text, token)
		}}, nil
	case Char:
	}
	return &Splitter{tokenizer: t, each: func(text []byte) error {
		for len(text) > 0 {
			_, n := utf8.DecodeRune(text)
			if err := token(text[:n]); err != nil {
				return err
			}
			text = text[n:]
		}
		return nil
	}}, nil
}

// Split splits a text, which must be UTF-8. It does not keep it. After an error the splitter is of
// no use.
func (s *Splitter) Split(text []byte) error {
	if rules := s.tokenizer.normalizer(); rules != nil {
		s.clean = rules.append(s.clean[:0], text)
		text = s.clean
	}
	return s.each(text)
}
