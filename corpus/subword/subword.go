// Package subword splits text into subwords as Hugging Face's tokenizers does: by the steps of a
// tokenizer.json, which Read reads, with byte-pair encoding (Sennrich et al. 2016,
// arXiv:1508.07909) or WordPiece (Schuster and Nakajima 2012). Train makes a byte-level tokenizer
// (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2), and
// ReadSentencePiece one of a model of SentencePiece.
//
// The post-processor, truncation and padding of a tokenizer.json are kept and not applied: a corpus
// is a stream of tokens, and its marks are the corpus's own. The package knows nothing of files. It
// imports nothing of this module.
package subword

import (
	"fmt"
	"unicode/utf8"
)

// Limits on a tokenizer.json.
const (
	MaxBytes       = 64 << 20 // of the file
	maxTokens      = 1 << 22
	maxTokenBytes  = 4 << 10
	maxPartBytes   = 512 // of a token of WordPiece or SentencePiece, and of an added one
	maxAddedTokens = 1 << 16
	maxAddedBytes  = 4 << 20
	maxSteps       = 64 // normalizers, pre-tokenizers or decoders
	maxWordChars   = 1000
	maxPattern     = 4 << 10  // bytes of a pattern, and of what replaces it
	maxNormalized  = 16 << 20 // bytes that normalizers make of a piece of text
	maxDecoded     = 64 << 10 // bytes that a decoder makes of a token
)

// Tokenizer is the content of a tokenizer.json. It is immutable.
type Tokenizer struct {
	source  []byte // compact JSON
	kind    string // of the model
	tokens  []string
	ids     map[string]int32
	added   added
	rules   []normalizer
	split   []splitter
	bytes   bool // the text of a word becomes byte-level characters after the last splitter
	model   model
	decoder []decoder
	names   components
}

// model turns a word into ids, which it appends to dst.
type model interface {
	encode(work *merging, word string, dst []int32) []int32
}

// Len returns the number of tokens. Ids are 0 to Len()-1.
func (t *Tokenizer) Len() int { return len(t.tokens) }

// Token returns the token of an id in [0, Len()), as tokenizer.json has it: byte-level characters
// and marks such as ## are not undone.
func (t *Tokenizer) Token(id int32) string { return t.tokens[id] }

// ID returns the id of a token.
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// JSON returns the tokenizer.json, without white space between its parts. The caller must not
// change it.
func (t *Tokenizer) JSON() []byte { return t.source }

// MarshalJSON writes the tokenizer.json.
func (t *Tokenizer) MarshalJSON() ([]byte, error) { return t.source, nil }

// UnmarshalJSON is Read.
func (t *Tokenizer) UnmarshalJSON(text []byte) error {
	made, err := Read(text)
	if err != nil {
		return err
	}
	*t = *made
	return nil
}

// Description names the parts of a tokenizer by their types in tokenizer.json.
type Description struct {
	Model         string   `json:"model"`
	Tokens        int      `json:"tokens"`
	Merges        int      `json:"merges,omitempty"`
	Normalizers   []string `json:"normalizers"`
	PreTokenizers []string `json:"pre_tokenizers"`
	Decoders      []string `json:"decoders"`
	Added         []string `json:"added_tokens"`
}

// Describe describes the tokenizer.
func (t *Tokenizer) Describe() Description {
	d := Description{Model: t.kind, Tokens: t.Len(), Normalizers: t.names.normalizers,
		PreTokenizers: t.names.preTokenizers, Decoders: t.names.decoders, Added: t.added.contents}
	if pairs, ok := t.model.(*bytePairs); ok {
		d.Merges = len(pairs.merges)
	}
	return d
}

// piece is a part of a text on its way to the model.
type piece struct {
	text  []byte
	id    int32 // of an added token that the text is; -1: it is none
	first bool  // the text of the document begins here
}

const (
	cacheWords     = 1 << 16 // words whose ids an Encoder keeps
	cacheIDs       = 1 << 20 // ids of these words
	cacheWordBytes = 64      // longer words are not kept
)

// Encoder turns text into ids. It must not be used concurrently.
type Encoder struct {
	of     *Tokenizer
	cache  map[string]cached
	ids    []int32 // of the cached words, one after the other
	pieces [2][]piece
	found  []match
	word   []byte
	out    []int32
	work   merging
}

// cached is the place of a word's ids in Encoder.ids.
type cached struct{ start, end int32 }

// NewEncoder makes an encoder.
func (t *Tokenizer) NewEncoder() *Encoder {
	return &Encoder{of: t, cache: map[string]cached{}}
}

// Encode returns the ids of a text, which must be UTF-8. They are valid until the next call. first
// and last say that a document begins and ends with the text: there, some tokenizers put a mark or
// remove white space.
func (e *Encoder) Encode(text []byte, first, last bool) ([]int32, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("the text is not UTF-8")
	}
	e.out = e.out[:0]
	pieces, err := e.of.added.extract(e.pieces[0][:0], text, first, last, e.of.rules)
	if err != nil {
		return nil, err
	}
	other := e.pieces[1]
	for _, s := range e.of.split {
		other = other[:0]
		for _, p := range pieces {
			if p.id >= 0 {
				other = append(other, p)
			} else if other, err = s.split(e, other, p); err != nil {
				return nil, err
			}
		}
		pieces, other = other, pieces
	}
	e.pieces = [2][]piece{pieces, other}
	for _, p := range pieces {
		if p.id >= 0 {
			e.out = append(e.out, p.id)
		} else {
			e.encodeWord(p.text)
		}
	}
	return e.out, nil
}

// encodeWord appends a word's ids to e.out.
func (e *Encoder) encodeWord(word []byte) {
	if at, ok := e.cache[string(word)]; ok {
		e.out = append(e.out, e.ids[at.start:at.end]...)
		return
	}
	begin := len(e.out)
	read := word
	if e.of.bytes {
		e.word = appendByteLevel(e.word[:0], word)
		read = e.word
	}
	e.out = e.of.model.encode(&e.work, string(read), e.out)
	if len(word) > cacheWordBytes {
		return
	}
	ids := e.out[begin:]
	if len(e.cache) == cacheWords || len(e.ids)+len(ids) > cacheIDs {
		clear(e.cache)
		e.ids = e.ids[:0]
	}
	start := int32(len(e.ids))
	e.ids = append(e.ids, ids...)
	e.cache[string(word)] = cached{start, int32(len(e.ids))}
}
