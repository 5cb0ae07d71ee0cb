package subword

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// bytePairs is byte-pair encoding: a word is split into characters, and of all pairs of neighbours
// that may merge, the one with the lowest rank, and among equals the leftmost, merges first.
type bytePairs struct {
	ids           map[string]int32
	merges        map[pair]merged
	chars         map[rune]int32 // ids of tokens of one character, without prefix and suffix
	unknown       int32          // -1: characters without a token vanish
	fuseUnknown   bool
	byteFallback  [256]int32 // ids of <0x00> and on, if hasBytes
	hasBytes      bool
	ignoreMerges  bool
	prefix, after string // of the parts of a word but the first; of the last
}

type pair struct{ left, right int32 }

// merged is a pair's place in the list of merges, and the token that it becomes.
type merged struct{ rank, id int32 }

func newBytePairs(m modelJSON, ids map[string]int32) (*bytePairs, error) {
	if m.Dropout != nil && *m.Dropout != 0 {
		return nil, fmt.Errorf("model.dropout %v is not supported: set it to null", *m.Dropout)
	}
	b := &bytePairs{ids: ids, merges: make(map[pair]merged, len(m.Merges)),
		chars: map[rune]int32{}, unknown: -1, fuseUnknown: m.FuseUnknown,
		ignoreMerges: m.IgnoreMerges}
	if m.Prefix != nil {
		b.prefix = *m.Prefix
	}
	if m.Suffix != nil {
		b.after = *m.Suffix
	}
	if m.Unknown != nil {
		id, ok := ids[*m.Unknown]
		if !ok {
			return nil, fmt.Errorf("model.unk_token %q is not in the vocabulary", *m.Unknown)
		}
		b.unknown = id
	}
	if m.ByteFallback {
		b.hasBytes = true
		for i := range b.byteFallback {
			id, ok := ids[fmt.Sprintf("<0x%02X>", i)]
			if !ok {
				id = -1
			}
			b.byteFallback[i] = id
		}
	}
	for token, id := range ids {
		if r, n := utf8.DecodeRuneInString(token); n == len(token) {
			b.chars[r] = id
		}
	}
	for rank, m := range m.Merges {
		left, leftKnown := ids[m[0]]
		right, rightKnown := ids[m[1]]
		id, known := ids[m[0]+strings.TrimPrefix(m[1], b.prefix)]
		if !leftKnown || !rightKnown || !known {
			return nil, fmt.Errorf("merge %d, %q and %q: a part or the result is not in the "+
				"vocabulary", rank, m[0], m[1])
		}
		b.merges[pair{left, right}] = merged{int32(rank), id}
	}
	return b, nil
}

// merging is the state of one word.
type merging struct {
	symbols []symbol
	queue   []candidate
}

// symbol is a token of a word, in a list of neighbours. -1: there is none.
type symbol struct{ id, before, next int32 }

// candidate is a pair that may merge: its rank, and where its left part is.
type candidate struct{ rank, at int32 }

func (c candidate) less(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func (b *bytePairs) encode(work *merging, word string, dst []int32) []int32 {
	if b.ignoreMerges {
		if id, ok := b.ids[word]; ok {
			return append(dst, id)
		}
	}
	work.symbols, work.queue = b.symbols(work.symbols[:0], word), work.queue[:0]
	for i := range work.symbols[:max(0, len(work.symbols)-1)] {
		b.propose(work, int32(i))
	}
	for len(work.queue) > 0 {
		b.merge(work, work.pop())
	}
	for i := int32(0); i >= 0 && len(work.symbols) > 0; i = work.symbols[i].next {
		dst = append(dst, work.symbols[i].id)
	}
	return dst
}

// propose queues the pair whose left part is at i.
func (b *bytePairs) propose(work *merging, i int32) {
	s := work.symbols[i]
	if s.next < 0 {
		return
	}
	if m, ok := b.merges[pair{s.id, work.symbols[s.next].id}]; ok {
		work.push(candidate{m.rank, i})
	}
}

// gone is the id of a symbol that has merged into its neighbour.
const gone = -1

func (b *bytePairs) merge(work *merging, c candidate) {
	s := &work.symbols[c.at]
	if s.id == gone || s.next < 0 {
		return
	}
	right := &work.symbols[s.next]
	m, ok := b.merges[pair{s.id, right.id}]
	if !ok || m.rank != c.rank { // a part has merged meanwhile
		return
	}
	s.id, right.id, s.next = m.id, gone, right.next
	if s.next >= 0 {
		work.symbols[s.next].before = c.at
	}
	b.propose(work, c.at)
	if s.before >= 0 {
		b.propose(work, s.before)
	}
}

// symbols splits a word into the tokens of its characters.
func (b *bytePairs) symbols(dst []symbol, word string) []symbol {
	unknown := int32(-1) // a token that has not been appended, because more may fuse with it
	add := func(id int32) {
		dst = append(dst, symbol{id, int32(len(dst)) - 1, int32(len(dst)) + 1})
	}
	for i := 0; i < len(word); {
		r, n := utf8.DecodeRuneInString(word[i:])
		part := word[i : i+n]
		id, ok := int32(0), false
		if b.prefix == "" && b.after == "" {
			id, ok = b.chars[r]
		} else {
			if i > 0 {
				part = b.prefix + part
			}
			if i+n == len(word) {
				part += b.after
			}
			id, ok = b.ids[part]
		}
		i += n
		switch {
		case ok:
			if unknown >= 0 {
				add(unknown)
				unknown = -1
			}
			add(id)
		case b.inBytes(part):
			for _, c := range []byte(part) {
				add(b.byteFallback[c])
			}
		case b.unknown >= 0:
			if unknown >= 0 && !b.fuseUnknown {
				add(unknown)
			}
			unknown = b.unknown
		}
	}
	if unknown >= 0 {
		add(unknown)
	}
	if len(dst) > 0 {
		dst[len(dst)-1].next = -1
	}
	return dst
}

// inBytes reports whether all bytes of a part have tokens.
func (b *bytePairs) inBytes(part string) bool {
	if !b.hasBytes {
		return false
	}
	for _, c := range []byte(part) {
		if b.byteFallback[c] < 0 {
			return false
		}
	}
	return true
}

func (w *merging) push(c candidate) {
	w.queue = append(w.queue, c)
	i := len(w.queue) - 1
	for i > 0 {
		above := (i - 1) / 2
		if !c.less(w.queue[above]) {
			break
		}
		w.queue[i] = w.queue[above]
		i = above
	}
	w.queue[i] = c
}

func (w *merging) pop() candidate {
	top := w.queue[0]
	last := len(w.queue) - 1
	c := w.queue[last]
	w.queue = w.queue[:last]
	for i := 0; last > 0; {
		below := 2*i + 1
		if below+1 < last && w.queue[below+1].less(w.queue[below]) {
			below++
		}
		if below >= last || !w.queue[below].less(c) {
			w.queue[i] = c
			break
		}
		w.queue[i] = w.queue[below]
		i = below
	}
	return top
}
