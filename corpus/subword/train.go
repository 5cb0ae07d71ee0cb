package subword

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"iter"
)

const (
	// MaxWords is the most different words that Train reads. With maxSymbols it bounds the memory
	// to some 2 GiB.
	MaxWords = 1 << 22
	// MinSize is the smallest vocabulary beside the special tokens: the 256 bytes.
	MinSize = 256

	maxSymbols       = 1 << 27 // bytes of all words
	maxWordBytes     = 1 << 10 // the rest of a longer word is not learned from
	wordsBetweenAsks = 1 << 12 // whether ctx has ended
)

// Train learns a byte-level tokenizer from the words of SplitWords and how often each occurs: from
// the bytes on, the pair of neighbours that occurs most often becomes a token, until there are size
// tokens or no pair occurs minFrequency times. Among equals the pair with the lower ids comes
// first. The result depends on neither the order of the words nor how their counts were summed. It
// is that of tokenizers' BpeTrainer with the byte-level alphabet. special are the first tokens.
func Train(
	ctx context.Context, words iter.Seq2[string, int64], size int, minFrequency int64,
	special []string,
) (*Tokenizer, error) {
	if size > maxTokens || size < MinSize+len(special) {
		return nil, fmt.Errorf("a vocabulary of %d tokens is not in [%d, %d]", size,
			MinSize+len(special), maxTokens)
	}
	t := newTrainer(special)
	if len(t.tokens) < len(special)+MinSize {
		return nil, fmt.Errorf("of the special tokens %.200q one comes twice or stands for a byte",
			special)
	}
	for word, count := range words {
		if len(t.counts) == MaxWords {
			return nil, fmt.Errorf("more than %d different words", MaxWords)
		}
		if len(t.symbols) > maxSymbols-maxWordBytes {
			return nil, fmt.Errorf("the different words have more than %d bytes", maxSymbols)
		}
		t.add(word, count)
	}
	for i := range t.counts {
		if i%wordsBetweenAsks == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t.countPairs(int32(i))
	}
	for at := range t.pairs {
		t.push(int32(at))
	}
	for len(t.tokens) < size && t.queue.Len() > 0 {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !t.step(max(1, minFrequency)) {
			break
		}
	}
	return Read(t.file(special))
}

// trainer holds the words as tokens, and how often each pair of neighbours occurs.
type trainer struct {
	tokens  []string
	ids     map[string]int32
	bytes   [256]int32
	symbols []int32 // of all words, one after the other; a merged word's end is unused
	starts  []int32 // of the words in symbols
	lengths []int32
	counts  []int64 // of the words

	index  map[pair]int32 // places in pairs
	pairs  []pairCount
	queue  pairQueue
	merges []pair
}

// pairCount is a pair, how often it occurs, and the words in which it may be.
type pairCount struct {
	pair
	count int64
	words []int32
}

func newTrainer(special []string) *trainer {
	t := &trainer{ids: map[string]int32{}, index: map[pair]int32{}}
	for _, s := range special {
		t.token(s)
	}
	table := byteLevelTable()
	for r := range rune(0x200) { // the characters of the byte level are below
		if b, ok := table.byte[r]; ok {
			t.bytes[b] = t.token(string(r))
		}
	}
	return t
}

// token returns a token's id. It may have one: "a" and "bc" make the same token as "ab" and "c".
func (t *trainer) token(text string) int32 {
	id, ok := t.ids[text]
	if !ok {
		id = int32(len(t.tokens))
		t.ids[text] = id
		t.tokens = append(t.tokens, text)
	}
	return id
}

func (t *trainer) add(word string, count int64) {
	word = word[:min(len(word), maxWordBytes)]
	t.starts = append(t.starts, int32(len(t.symbols)))
	t.lengths = append(t.lengths, int32(len(word)))
	t.counts = append(t.counts, count)
	for _, b := range []byte(word) {
		t.symbols = append(t.symbols, t.bytes[b])
	}
}

// word returns the tokens of a word.
func (t *trainer) word(i int32) []int32 {
	return t.symbols[t.starts[i]:][:t.lengths[i]]
}

func (t *trainer) countPairs(i int32) {
	w := t.word(i)
	for k := 1; k < len(w); k++ {
		t.change(pair{w[k-1], w[k]}, i, t.counts[i])
	}
}

// change adds to the count of a pair in a word.
func (t *trainer) change(p pair, word int32, by int64) {
	at, ok := t.index[p]
	if !ok {
		at = int32(len(t.pairs))
		t.index[p] = at
		t.pairs = append(t.pairs, pairCount{pair: p})
	}
	c := &t.pairs[at]
	c.count += by
	if n := len(c.words); by > 0 && (n == 0 || c.words[n-1] != word) {
		c.words = append(c.words, word)
	}
}

// step merges the most frequent pair. It returns false if that is too rare.
func (t *trainer) step(minFrequency int64) bool {
	top := t.queue.entries[0]
	c := &t.pairs[top.at]
	if c.count != top.count { // it has been counted before other merges
		heap.Pop(&t.queue)
		t.push(top.at)
		return true
	}
	if c.count < minFrequency {
		return false
	}
	heap.Pop(&t.queue)
	p, words := c.pair, c.words
	c.words = nil
	text := t.tokens[p.left] + t.tokens[p.right]
	_, known := t.ids[text]
	id := t.token(text)
	t.merges = append(t.merges, p)
	before := len(t.pairs)
	for _, w := range words {
		t.merge(w, p, id)
	}
	for at := before; at < len(t.pairs); at++ {
		t.push(int32(at))
	}
	if known { // other pairs with it have become more frequent, too
		for at, c := range t.pairs[:before] {
			if c.left == id || c.right == id {
				t.push(int32(at))
			}
		}
	}
	return true
}

// merge replaces a pair in a word, from its beginning on.
func (t *trainer) merge(word int32, p pair, id int32) {
	w, n := t.word(word), t.counts[word]
	end := 0
	for k := 0; k < len(w); k++ {
		if k+1 == len(w) || w[k] != p.left || w[k+1] != p.right {
			w[end] = w[k]
			end++
			continue
		}
		if end > 0 {
			t.change(pair{w[end-1], p.left}, word, -n)
			t.change(pair{w[end-1], id}, word, n)
		}
		t.change(p, word, -n)
		if k+2 < len(w) {
			t.change(pair{p.right, w[k+2]}, word, -n)
			t.change(pair{id, w[k+2]}, word, n)
		}
		w[end] = id
		end++
		k++
	}
	t.lengths[word] = int32(end)
}

// pairQueue has the most frequent pair on top, by the counts at the time of the pushes.
type pairQueue struct {
	entries []queued
	pairs   *[]pairCount
}

type queued struct {
	count int64
	at    int32
}

func (t *trainer) push(at int32) {
	t.queue.pairs = &t.pairs
	if n := t.pairs[at].count; n > 0 {
		heap.Push(&t.queue, queued{n, at})
	}
}

func (q *pairQueue) Len() int { return len(q.entries) }

func (q *pairQueue) Less(i, j int) bool {
	a, b := q.entries[i], q.entries[j]
	p, s := (*q.pairs)[a.at].pair, (*q.pairs)[b.at].pair
	return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(p.left, s.left),
		cmp.Compare(p.right, s.right)) < 0
}

func (q *pairQueue) Swap(i, j int) { q.entries[i], q.entries[j] = q.entries[j], q.entries[i] }

func (q *pairQueue) Push(x any) { q.entries = append(q.entries, x.(queued)) }

func (q *pairQueue) Pop() any {
	last := q.entries[len(q.entries)-1]
	q.entries = q.entries[:len(q.entries)-1]
	return last
}

// file returns the tokenizer.json, in the order of the ids and of the merges.
func (t *trainer) file(special []string) []byte {
	var b bytes.Buffer
	b.WriteString(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	for i, token := range special {
		fmt.Fprintf(&b, addedForm, comma(i), i, quoted(token), false, true)
	}
	const options = `"trim_offsets":true,"use_regex":true}`
	b.WriteString(`],"normalizer":null,` +
		`"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,` + options +
		`,"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,` + options +
		`,"model":{"type":"BPE","dropout":null,"unk_token":null,` +
		`"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,` +
		`"byte_fallback":false,"ignore_merges":false,"vocab":{`)
	for i, token := range t.tokens {
		fmt.Fprintf(&b, "%s%s:%d", comma(i), quoted(token), i)
	}
	b.WriteString(`},"merges":[`)
	for i, m := range t.merges {
		fmt.Fprintf(&b, "%s[%s,%s]", comma(i), quoted(t.tokens[m.left]), quoted(t.tokens[m.right]))
	}
	b.WriteString("]}}")
	return b.Bytes()
}

// addedForm is an added token: a comma, its id, content, and whether it is normalized and special.
const addedForm = `%s{"id":%d,"content":%s,"single_word":false,"lstrip":false,"rstrip":false,` +
	`"normalized":%t,"special":%t}`

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// quoted is a JSON string, in which < and > stay as they are.
func quoted(text string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic(fmt.Sprintf("subword: %q cannot be encoded: %v", text, err))
	}
	return bytes.TrimSpace(b.Bytes())
}
