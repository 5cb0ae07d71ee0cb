package subword

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// decoder changes a list of tokens on its way to a text. It may change the list that it is given.
// After a time, it leaves the tokens as they are if that takes long.
type decoder interface {
	decode(tokens []string, until time.Time) []string
}

// Decode returns the text of ids, which must be in [0, Len()).
func (t *Tokenizer) Decode(ids []int32) string {
	tokens := make([]string, len(ids))
	for i, id := range ids {
		tokens[i] = t.tokens[id]
		if found, ok := t.added.normalized[id]; ok {
			tokens[i] = found
		}
	}
	if len(t.decoder) == 0 {
		return strings.Join(tokens, " ")
	}
	until := time.Now().Add(maxDecoding + time.Duration(len(ids))*time.Millisecond)
	for _, d := range t.decoder {
		tokens = d.decode(tokens, until)
	}
	return strings.Join(tokens, "")
}

// maxHeld bounds the tokens that a Stream holds back: a character has at most four bytes.
const maxHeld = 8

// Stream decodes ids as they come.
type Stream struct {
	of   *Tokenizer
	ids  []int32 // the last tokens whose text is complete, and the held ones
	done int     // of ids, those before the held ones
}

// NewStream makes a stream.
func (t *Tokenizer) NewStream() *Stream { return &Stream{of: t} }

// Next returns what a token adds to the text. A token that ends within a character adds nothing
// until a later one completes it.
func (s *Stream) Next(id int32) string {
	before := s.of.Decode(s.ids[:s.done])
	s.ids = append(s.ids, id)
	now := s.of.Decode(s.ids)
	held := len(s.ids) - s.done
	if strings.HasSuffix(now, string(utf8.RuneError)) && held < maxHeld {
		return ""
	}
	if s.done > 0 { // a token needs one before it, to be no text's beginning
		s.ids = append(s.ids[:0], s.ids[s.done:]...)
	}
	s.done = len(s.ids)
	return behind(before, now)
}

// behind returns what follows the common beginning of two texts in the second. A decoder may change
// the text before a token, which has been shown.
func behind(before, now string) string {
	n := 0
	for n < min(len(before), len(now)) && before[n] == now[n] {
		n++
	}
	for n < len(now) && n > 0 && !utf8.RuneStart(now[n]) {
		n--
	}
	return now[n:]
}

// End returns the text of the tokens that are held back, and begins a new text.
func (s *Stream) End() string {
	before, all := s.of.Decode(s.ids[:s.done]), s.of.Decode(s.ids)
	s.ids, s.done = s.ids[:0], 0
	return behind(before, all)
}

// byteDecoder undoes the byte level. Bytes that are no text become U+FFFD.
type byteDecoder struct{}

func (byteDecoder) decode(tokens []string, _ time.Time) []string {
	var text []byte
	for _, token := range tokens {
		text = appendBytes(text, token)
	}
	return []string{toText(text)}
}

// toText replaces each longest beginning of a character that has no end, and each other byte that
// is not UTF-8, by U+FFFD (Unicode 15, section 3.9).
func toText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var text strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			for n < len(b) && !utf8.FullRune(b[:n+1]) {
				n++
			}
		}
		text.WriteRune(r)
		b = b[n:]
	}
	return text.String()
}

// wordPieceDecoder joins the parts of words, and puts spaces between words.
type wordPieceDecoder struct {
	prefix  string
	cleanup bool
}

func (w wordPieceDecoder) decode(tokens []string, _ time.Time) []string {
	for i, token := range tokens {
		if i > 0 {
			if part, ok := strings.CutPrefix(token, w.prefix); ok {
				token = part
			} else {
				token = " " + token
			}
		}
		if w.cleanup {
			token = cleanup(token)
		}
		tokens[i] = token
	}
	return tokens
}

// cleanup removes the spaces that English has not, one replacement after the other.
func cleanup(token string) string {
	for _, c := range [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"},
		{" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"},
		{" 're", "'re"}} {
		token = strings.ReplaceAll(token, c[0], c[1])
	}
	return token
}

// suffixDecoder replaces the mark at the ends of words by spaces, but not the last token's.
type suffixDecoder string

func (s suffixDecoder) decode(tokens []string, _ time.Time) []string {
	for i, token := range tokens {
		by := " "
		if i == len(tokens)-1 {
			by = ""
		}
		tokens[i] = strings.ReplaceAll(token, string(s), by)
	}
	return tokens
}

// byteFallbackDecoder turns tokens such as <0xE6> into bytes.
type byteFallbackDecoder struct{}

func (byteFallbackDecoder) decode(tokens []string, _ time.Time) []string {
	var out []string
	var held []byte
	flush := func() {
		if utf8.Valid(held) && len(held) > 0 {
			out = append(out, string(held))
		} else {
			for range held {
				out = append(out, string(utf8.RuneError))
			}
		}
		held = held[:0]
	}
	for _, token := range tokens {
		if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
				held = append(held, byte(b))
				continue
			}
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
}

// fuse joins all tokens.
type fuse struct{}

func (fuse) decode(tokens []string, _ time.Time) []string {
	return []string{strings.Join(tokens, "")}
}

// stripDecoder removes up to so many characters at the ends of each token.
type stripDecoder struct {
	content     string
	left, right int
}

func (s stripDecoder) decode(tokens []string, _ time.Time) []string {
	for i, token := range tokens {
		for range min(s.left, len(token)) {
			token = strings.TrimPrefix(token, s.content)
		}
		for range min(s.right, len(token)) {
			token = strings.TrimSuffix(token, s.content)
		}
		tokens[i] = token
	}
	return tokens
}

// decode replaces the matches of a pattern in each token.
func (r replace) decode(tokens []string, until time.Time) []string {
	_, slow := r.pattern.(pattern)
	for i, token := range tokens {
		if slow && time.Now().After(until) {
			break
		}
		changed, err := r.within([]byte(token), maxDecoded)
		if err == nil { // what takes or makes too much leaves the token as it is
			tokens[i] = string(changed)
		}
	}
	return tokens
}
