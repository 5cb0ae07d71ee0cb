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
	ids      map[string]int32   // of characters or words
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
	id, ok = v.ids[EndOfText]
	return id, ok
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
	v := &Vocabulary{tokens: slices.Clone(tokens), ids: make(map[string]int32, len(tokens))}
	for id, token := range v.tokens {
		if token == "" || !utf8.ValidString(token) {
			return nil, fmt.Errorf("vocabulary: token %d (%q) is empty or not UTF-8", id, token)
		}
		if first, ok := v.ids[token]; ok {
			return nil, fmt.Errorf("vocabulary: token %q has two ids, %d and %d", token, first, id)
		}
		v.ids[token] = int32(id)
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
	return v.ids[token]
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

// Encode splits a text with t and returns the ids; unknown tokens become 0. The text is treated as
// the start of a document, so Letters trims its ends, and no EndOfText follows it.
func (v *Vocabulary) Encode(t Tokenizer, text string) ([]int32, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	var ids []int32
	put := func(id int32) error {
		ids = append(ids, id)
		return nil
	}
	ctx := context.Background()
	to := v.encoder(ctx, t.Unit, put)
	if t.Ends == LineEnds {
		end, _ := v.End()
		to = &lineMarker{to: to, mark: func() error { return put(end) }}
	}
	if err := t.scan(ctx, strings.NewReader(text), to); err != nil {
		return nil, err
	}
	return ids, nil
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

// encoder returns a sink that calls put with the id of every token.
func (v *Vocabulary) encoder(
	ctx context.Context, unit Unit, put func(id int32) error,
) sink {
	if v.subwords != nil {
		return encodeSubwords(ctx, v.subwords, put)
	}
	if unit == Word {
		return &words{word: func(word []byte) error { return put(v.ids[string(word)]) }}
	}
	table := v.runes()
	return chars{char: func(r rune) error {
		if int(r) >= len(table) {
			return put(0)
		}
		return put(table[r])
	}}
}

// runes returns the ids of tokens of one code point, indexed by code point. Other entries are 0.
func (v *Vocabulary) runes() []int32 {
	var table []int32
	for id, token := range v.tokens {
		r, n := utf8.DecodeRuneInString(token)
		if n < len(token) {
			continue
		}
		if grow := int(r) + 1 - len(table); grow > 0 {
			table = append(table, make([]int32, grow)...)
		}
		table[r] = int32(id)
	}
	return table
}

// frequency is a token's number of occurrences.
type frequency struct {
	token string
	count int64
}

// countVocabulary builds the vocabulary of a text: <unk>, EndOfText if it is inserted, the reserved
// tokens, then the tokens that
// occur at least MinFrequency times. They are sorted by falling frequency, then by bytes.
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
	reserved := cfg.Reserved
	if cfg.Tokenizer.marksEnds() {
		reserved = slices.Concat([]string{EndOfText}, reserved)
	}
	if cfg.Tokenizer.Unit == Word {
		counter := NewCounter(scratch)
		defer counter.Close()
		words := &words{word: counter.Add}
		if err := cfg.Tokenizer.scanTexts(ctx, read, words, uncounted); err != nil {
			return nil, err
		}
		return counter.Vocabulary(cfg.MinFrequency, reserved)
	}
	found, err := countChars(ctx, read, cfg)
	if err != nil {
		return nil, err
	}
	return rankTokens(found, reserved)
}

// uncounted takes an EndOfText, which is in the vocabulary however often it occurs.
func uncounted() error { return nil }

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

func countChars(ctx context.Context, read reading, cfg Config) ([]frequency, error) {
	var counts []int64 // by code point
	err := cfg.Tokenizer.scanTexts(ctx, read, chars{char: func(r rune) error {
		if int(r) >= len(counts) {
			counts = append(counts, make([]int64, int(r)+1-len(counts))...)
		}
		counts[r]++
		return nil
	}}, uncounted)
	if err != nil {
		return nil, err
	}
	var found []frequency
	for r, n := range counts {
		if n > 0 && n >= cfg.MinFrequency {
			found = append(found, frequency{string(rune(r)), n})
		}
	}
	return found, nil
}

// Counter counts tokens for a vocabulary, in bounded memory.
type Counter struct{ keys *keyCounter }

// NewCounter makes a counter. Counts that do not fit in memory go to files in scratch.
func NewCounter(scratch string) *Counter { return &Counter{newKeyCounter(scratch, counterBytes)} }

// Add counts one occurrence of a token. The caller may reuse token.
func (c *Counter) Add(token []byte) error { return c.keys.add(token) }

// Close removes the files.
func (c *Counter) Close() { c.keys.close() }

// Vocabulary is <unk>, the reserved tokens, then the tokens that occur at least minFrequency times,
// by falling frequency, then by bytes.
func (c *Counter) Vocabulary(minFrequency int64, reserved []string) (*Vocabulary, error) {
	var found []frequency
	err := c.keys.each(func(word []byte, n int64) error {
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
