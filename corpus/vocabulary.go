package corpus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"rondo/corpus/subword"
)

// Unknown is the token with id 0. It stands for every token that is not in the vocabulary.
const Unknown = "<unk>"

// MaxVocabulary is the largest number of tokens in a vocabulary.
const MaxVocabulary = 1 << 22

// Vocabulary maps tokens to ids, 0 to Len()-1, and back. It is immutable. Its JSON is the list of
// tokens in the order of their ids, or, of subwords, a tokenizer.json.
type Vocabulary struct {
	tokens   []string
	ids      keyTable           // of characters or words
	subwords *subword.Tokenizer // nil: characters or words
}

// OfSubwords is the vocabulary of a tokenizer, whose token 0 may be any.
func OfSubwords(t *subword.Tokenizer) *Vocabulary {
	v := &Vocabulary{subwords: t, tokens: make([]string, t.Len())}
	for id := range v.tokens {
		v.tokens[id] = t.Token(int32(id))
	}
	return v
}

// StoredVocabulary is the vocabulary of a checkpoint: its tokens and, of subwords, the
// tokenizer.json.
func StoredVocabulary(tokens []string, tokenizer []byte) (*Vocabulary, error) {
	if len(tokenizer) == 0 {
		return NewVocabulary(tokens)
	}
	t, err := subword.Read(tokenizer)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if v := OfSubwords(t); slices.Equal(v.tokens, tokens) {
		return v, nil
	}
	return nil, errors.New("the tokenizer has other tokens than the vocabulary")
}

// TokenizerJSON is the tokenizer.json of subwords; nil: the tokens are characters or words. The
// caller must not change it.
func (v *Vocabulary) TokenizerJSON() []byte {
	if v.subwords == nil {
		return nil
	}
	return v.subwords.JSON()
}

// End returns the id of EndOfText, or of the token that stands for it.
func (v *Vocabulary) End() (id int32, ok bool) {
	if v.subwords != nil {
		return endToken(v.subwords)
	}
	id = v.ids.find([]byte(EndOfText))
	return id, id > 0
}

// NewVocabulary makes a vocabulary of tokens in the order of their ids. The first must be <unk>,
// and none may be empty or occur twice.
func NewVocabulary(tokens []string) (*Vocabulary, error) {
	if len(tokens) == 0 || tokens[0] != Unknown {
		return nil, fmt.Errorf("vocabulary: the first token is not %s", Unknown)
	}
	if len(tokens) > MaxVocabulary {
		return nil, fmt.Errorf("vocabulary: %d tokens are more than %d", len(tokens), MaxVocabulary)
	}
	v := &Vocabulary{tokens: slices.Clone(tokens), ids: newKeyTable()}
	for id, token := range v.tokens {
		if token == "" || !utf8.ValidString(token) {
			return nil, fmt.Errorf("vocabulary: token %d (%q) is empty or not UTF-8", id, token)
		}
		first := id
		if token == Unknown {
			first = 0 // the number of no key
		} else if id > 0 {
			first = int(v.ids.putAny([]byte(token)))
		}
		if first != id {
			return nil, fmt.Errorf("vocabulary: token %q has two ids, %d and %d", token, first, id)
		}
	}
	return v, nil
}

// Len returns the number of tokens, including <unk>.
func (v *Vocabulary) Len() int { return len(v.tokens) }

// Token returns the token of an id in [0, Len()).
func (v *Vocabulary) Token(id int32) string { return v.tokens[id] }

// Tokens returns a copy of all tokens in the order of their ids.
func (v *Vocabulary) Tokens() []string { return slices.Clone(v.tokens) }

// ID returns the id of a token, or 0 if it is unknown.
func (v *Vocabulary) ID(token string) int32 {
	if v.subwords != nil {
		id, _ := v.subwords.ID(token)
		return id
	}
	return v.ids.find([]byte(token))
}

// MarshalJSON writes the list of tokens, or the tokenizer.
func (v *Vocabulary) MarshalJSON() ([]byte, error) {
	if v.subwords != nil {
		return v.subwords.JSON(), nil
	}
	return json.Marshal(v.tokens)
}

// UnmarshalJSON reads a list of tokens, which has the conditions of NewVocabulary, or a tokenizer.
func (v *Vocabulary) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte{'{'}) {
		t, err := subword.Read(text)
		if err != nil {
			return fmt.Errorf("vocabulary: %w", err)
		}
		*v = *OfSubwords(t)
		return nil
	}
	var tokens []string
	if err := json.Unmarshal(text, &tokens); err != nil {
		return fmt.Errorf("vocabulary: %w", err)
	}
	made, err := NewVocabulary(tokens)
	if err != nil {
		return err
	}
	*v = *made
	return nil
}

// Fingerprint is a SHA-256 of the tokens in the order of their ids, and of the tokenizer, in
// hexadecimal.
func (v *Vocabulary) Fingerprint() string {
	h := sha256.New()
	if v.subwords != nil {
		h.Write(v.subwords.JSON())
	}
	for _, token := range v.tokens {
		fmt.Fprintf(h, "%d:%s,", len(token), token)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Decode joins the tokens of ids with the unit's separator. An EndOfText that the tokenizer has
// inserted becomes a line feed. Ids must be in [0, Len()).
func (v *Vocabulary) Decode(t Tokenizer, ids []int32) string {
	var text strings.Builder
	d := v.NewDecoder(t)
	for _, id := range ids {
		text.WriteString(d.Next(id))
	}
	text.WriteString(d.End())
	return text.String()
}

// Decoder turns ids into text, one after the other.
type Decoder struct {
	vocabulary *Vocabulary
	tokenizer  Tokenizer
	begun      bool            // a token precedes in the line
	stream     *subword.Stream // of subwords
	end        int32           // what an EndOfText that the tokenizer has inserted is; -1: none
}

// NewDecoder makes a decoder of a text that was split by t.
func (v *Vocabulary) NewDecoder(t Tokenizer) *Decoder {
	d := &Decoder{vocabulary: v, tokenizer: t, end: -1}
	if end, ok := v.End(); ok && t.marksEnds() {
		d.end = end
	}
	if v.subwords != nil {
		d.stream = v.subwords.NewStream()
	}
	return d
}

// Next returns what a token adds to the text. A subword may end within a character, which then
// comes with a later one.
func (d *Decoder) Next(id int32) string {
	if id == d.end {
		d.begun = false
		return d.End() + "\n"
	}
	if d.stream != nil {
		return d.stream.Next(id)
	}
	token := d.vocabulary.tokens[id]
	if d.begun {
		token = d.tokenizer.Unit.Separator() + token
	}
	d.begun = true
	return token
}

// End returns what is left of a text that ends within a character.
func (d *Decoder) End() string {
	if d.stream == nil {
		return ""
	}
	return d.stream.End()
}

// frequency is a token's number of occurrences.
type frequency struct {
	token string
	count int64
}

// reserved are the tokens that follow <unk> in a new vocabulary.
func (c Config) reserved() []string {
	if c.Tokenizer.marksEnds() {
		return slices.Concat([]string{EndOfText}, c.Reserved)
	}
	return c.Reserved
}

// countVocabulary builds the vocabulary of subwords or characters in a text: <unk>, EndOfText if it
// is inserted, the reserved tokens, then the tokens that occur at least MinFrequency times, sorted
// by falling frequency, then by bytes.
func countVocabulary(
	ctx context.Context, read reading, cfg Config, scratch string,
) (*Vocabulary, error) {
	if cfg.Tokenizer.Unit == Subword {
		made, err := trainSubwords(ctx, read, cfg, scratch)
		if err != nil {
			return nil, err
		}
		return OfSubwords(made), nil
	}
	found, err := countChars(ctx, read, cfg)
	if err != nil {
		return nil, err
	}
	return rankTokens(found, cfg.reserved())
}

// rankTokens makes a vocabulary of the tokens found, in the order that countVocabulary states.
func rankTokens(found []frequency, reserved []string) (*Vocabulary, error) {
	slices.SortFunc(found, func(a, b frequency) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.token, b.token))
	})
	tokens := slices.Concat([]string{Unknown}, reserved)
	known := make(map[string]bool, len(tokens))
	for _, token := range tokens {
		known[token] = true
	}
	for _, f := range found {
		if !known[f.token] {
			tokens = append(tokens, f.token)
		}
	}
	return NewVocabulary(tokens)
}

// countChars counts characters.
func countChars(ctx context.Context, read reading, cfg Config) ([]frequency, error) {
	var each []*[]int64 // of each processor, by code point
	start := func() func(block) (struct{}, error) {
		counts := &[]int64{}
		each = append(each, counts)
		return func(b block) (none struct{}, err error) {
			for text := b.text; len(text) > 0; {
				r, n := rune(text[0]), 1
				if r >= utf8.RuneSelf {
					r, n = utf8.DecodeRune(text)
				}
				if int(r) >= len(*counts) {
					*counts = append(*counts, make([]int64, int(r)+1-len(*counts))...)
				}
				(*counts)[r]++
				text = text[n:]
			}
			return none, nil
		}
	}
	if err := scanTexts(ctx, cfg.Tokenizer, read, start, uncounted); err != nil {
		return nil, err
	}
	var sum []int64
	for _, counts := range each {
		sum = append(sum, make([]int64, max(0, len(*counts)-len(sum)))...)
		for r, n := range *counts {
			sum[r] += n
		}
	}
	var found []frequency
	for r, n := range sum {
		if n > 0 && n >= cfg.MinFrequency {
			found = append(found, frequency{string(rune(r)), n})
		}
	}
	return found, nil
}

// uncounted takes a block that has been counted.
func uncounted(struct{}) error { return nil }

// countKeys counts the keys in texts, as count does, on all processors. The counts are sums of
// integers, so that they do not depend on which processor counts which part.
func countKeys(
	ctx context.Context, read reading, t Tokenizer, scratch string,
	count func(to *keyCounter, text []byte) error,
) (*keyCounter, error) {
	var counters []*keyCounter
	start := func() func(block) (struct{}, error) {
		counter := newKeyCounter(scratch, counterBytes/processors())
		counters = append(counters, counter)
		return func(b block) (none struct{}, err error) {
			return none, b.each(func(text []byte, _ piece) error {
				return count(counter, text)
			})
		}
	}
	err := scanTexts(ctx, t, read, start, uncounted)
	all := counters[0]
	all.limit = counterBytes
	for _, other := range counters[1:] {
		if err == nil {
			err = other.each(all.add)
		}
		other.close()
	}
	if err != nil {
		all.close()
		return nil, err
	}
	return all, nil
}

// Counter counts tokens for a vocabulary, in bounded memory.
type Counter struct{ keys *keyCounter }

// NewCounter makes a counter. Counts that do not fit in memory go to files in scratch.
func NewCounter(scratch string) *Counter { return &Counter{newKeyCounter(scratch, counterBytes)} }

// Add counts one occurrence of a token. The caller may reuse token.
func (c *Counter) Add(token []byte) error { return c.keys.add(token, 1) }

// Close removes the files.
func (c *Counter) Close() { c.keys.close() }

// Subwords is the vocabulary of a tokenizer of this many tokens that is learned from the words.
// Tokens whose parts occur together fewer than minFrequency times, or twice, are not learned.
func (c *Counter) Subwords(
	ctx context.Context, size int, minFrequency int64,
) (*Vocabulary, error) {
	made, err := learnSubwords(ctx, c.keys, size, minFrequency, nil)
	if err != nil {
		return nil, err
	}
	return OfSubwords(made), nil
}

// Vocabulary is <unk>, the reserved tokens, then the tokens that occur at least minFrequency times,
// by falling frequency, then by bytes.
func (c *Counter) Vocabulary(minFrequency int64, reserved []string) (*Vocabulary, error) {
	return vocabularyOf(c.keys.each, minFrequency, reserved)
}

// vocabularyOf is Counter.Vocabulary of the words that each yields once with their counts.
func vocabularyOf(
	each func(yield func([]byte, int64) error) error, minFrequency int64, reserved []string,
) (*Vocabulary, error) {
	var found []frequency
	err := each(func(word []byte, n int64) error {
		if n < minFrequency {
			return nil
		}
		if len(found) == MaxVocabulary {
			return fmt.Errorf("more than %d words are frequent enough for the vocabulary: "+
				"raise --min-frequency", MaxVocabulary)
		}
		found = append(found, frequency{string(word), n})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rankTokens(found, reserved)
}
