package subword

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// added are the tokens that are cut out of a text before it is normalized and split.
type added struct {
	contents   []string
	normalized map[int32]string // what is found in the normalized text, which Decode writes
	raw, plain trie             // found in the text as it is; in the normalized text
}

// addedToken says how a token is found.
type addedToken struct {
	id          int32
	word        bool // only where it is a word of its own
	left, right bool // it takes the white space on that side
}

// trie finds the longest of its strings. Nodes have numbers; 0 is the root.
type trie struct {
	next   map[step]int32
	tokens map[int32]addedToken // by the node at which they end
	begins [256]bool
	nodes  int32
}

type step struct {
	node int32
	byte byte
}

func (t *trie) add(text string, token addedToken) {
	if t.next == nil {
		t.next, t.tokens = map[step]int32{}, map[int32]addedToken{}
	}
	node := int32(0)
	for _, c := range []byte(text) {
		at := step{node, c}
		if t.next[at] == 0 {
			t.nodes++
			t.next[at] = t.nodes
		}
		node = t.next[at]
	}
	if node == 0 {
		return
	}
	if _, ok := t.tokens[node]; !ok {
		t.tokens[node] = token
	}
	t.begins[text[0]] = true
}

// longest returns the longest string at the beginning of a text; size 0: there is none.
func (t *trie) longest(text []byte) (token addedToken, size int) {
	if !t.begins[text[0]] {
		return token, 0
	}
	node := int32(0)
	for i, c := range text {
		if node = t.next[step{node, c}]; node == 0 {
			break
		}
		if found, ok := t.tokens[node]; ok {
			token, size = found, i+1
		}
	}
	return token, size
}

// cut appends the parts of a piece: those that are tokens, and those between them.
func (t *trie) cut(dst []piece, p piece) []piece {
	text, begin := p.text, 0
	between := func(end int) {
		if end > begin {
			dst = append(dst, piece{text[begin:end], -1, p.first && begin == 0})
		}
	}
	for i := 0; i < len(text) && t.next != nil; {
		token, size := t.longest(text[i:])
		if size == 0 {
			i++
			continue
		}
		start, end := i, i+size
		i = end
		if token.word && (endsInWord(text[:start]) || beginsWord(text[end:])) {
			continue
		}
		if token.left {
			for start > begin && isSpaceBefore(text[:start]) {
				_, n := utf8.DecodeLastRune(text[:start])
				start -= n
			}
		}
		if token.right {
			end = len(text) - len(bytes.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		between(start)
		dst = append(dst, piece{text[start:end], token.id, false})
		begin, i = end, max(i, end)
	}
	between(len(text))
	return dst
}

func endsInWord(text []byte) bool {
	r, n := utf8.DecodeLastRune(text)
	return n > 0 && isWordChar(r)
}

func beginsWord(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return n > 0 && isWordChar(r)
}

func isSpaceBefore(text []byte) bool {
	r, n := utf8.DecodeLastRune(text)
	return n > 0 && unicode.IsSpace(r)
}

// extract cuts the added tokens out of a text and normalizes the text between them.
func (a *added) extract(
	dst []piece, text []byte, first, last bool, rules []normalizer,
) ([]piece, error) {
	for _, p := range a.raw.cut(nil, piece{text, -1, first}) {
		if p.id >= 0 {
			dst = append(dst, p)
			continue
		}
		// Each part between added tokens is a document to the normalizers, as in tokenizers.
		begins := first || &text[0] != &p.text[0]
		ends := last || &text[len(text)-1] != &p.text[len(p.text)-1]
		for _, r := range rules {
			var err error
			if p.text, err = r.normalize(p.text, begins, ends); err != nil {
				return nil, err
			}
			if len(p.text) > maxNormalized {
				return nil, fmt.Errorf("the normalizers make more than %d bytes of a text",
					maxNormalized)
			}
		}
		dst = a.plain.cut(dst, p)
	}
	return dst, nil
}
