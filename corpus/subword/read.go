package subword

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// fileJSON is a tokenizer.json.
type fileJSON struct {
	Added        []addedJSON     `json:"added_tokens"`
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Decoder      json.RawMessage `json:"decoder"`
	Model        *modelJSON      `json:"model"`
}

type addedJSON struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelJSON struct {
	Type         string           `json:"type"`
	Dropout      *float64         `json:"dropout"`
	Unknown      *string          `json:"unk_token"`
	Prefix       *string          `json:"continuing_subword_prefix"`
	Suffix       *string          `json:"end_of_word_suffix"`
	FuseUnknown  bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
	MaxChars     *int             `json:"max_input_chars_per_word"`
	Vocabulary   map[string]int32 `json:"-"`
	Merges       []mergeJSON      `json:"-"`
}

// UnmarshalJSON reads the type first: the vocabulary of another model has another form.
func (m *modelJSON) UnmarshalJSON(text []byte) error {
	type plain modelJSON
	if err := json.Unmarshal(text, (*plain)(m)); err != nil {
		return err
	}
	var lists struct {
		Vocabulary map[string]int32 `json:"vocab"`
		Merges     []mergeJSON      `json:"merges"`
	}
	if m.Type == "" { // files of before the field
		if m.Type = "WordPiece"; bytes.Contains(text, []byte(`"merges"`)) {
			m.Type = "BPE"
		}
	}
	if m.Type != "BPE" && m.Type != "WordPiece" {
		return fmt.Errorf("model %q is not supported: BPE and WordPiece are", m.Type)
	}
	if err := json.Unmarshal(text, &lists); err != nil {
		return err
	}
	m.Vocabulary, m.Merges = lists.Vocabulary, lists.Merges
	return nil
}

// mergeJSON is a merge: ["a", "b"], or "a b" in older files.
type mergeJSON [2]string

// UnmarshalJSON reads either form.
func (m *mergeJSON) UnmarshalJSON(text []byte) error {
	var parts []string
	var line string
	if json.Unmarshal(text, &line) == nil {
		parts = strings.Split(line, " ")
	} else if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	if len(parts) != len(m) || parts[0] == "" || parts[1] == "" {
		return fmt.Errorf("the merge %.100s has not two parts", text)
	}
	*m = mergeJSON(parts)
	return nil
}

// stepJSON is a normalizer, a pre-tokenizer or a decoder: its type, and the fields of all types.
type stepJSON struct {
	Type string `json:"type"`

	Normalizers   []json.RawMessage `json:"normalizers"`
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Decoders      []json.RawMessage `json:"decoders"`

	Pattern  *patternJSON    `json:"pattern"`
	Content  string          `json:"content"`
	Behavior behavior        `json:"behavior"`
	Invert   bool            `json:"invert"`
	Prepend  string          `json:"prepend"`
	Prefix   string          `json:"prefix"`
	Suffix   string          `json:"suffix"`
	Cleanup  bool            `json:"cleanup"`
	Start    int             `json:"start"`
	Stop     int             `json:"stop"`
	Left     *bool           `json:"strip_left"`
	Right    *bool           `json:"strip_right"`
	Digits   bool            `json:"individual_digits"`
	Char     json.RawMessage `json:"delimiter"`

	PrefixSpace *bool  `json:"add_prefix_space"`
	UseRegex    *bool  `json:"use_regex"`
	Replacement string `json:"replacement"`
	Scheme      string `json:"prepend_scheme"`
	Split       *bool  `json:"split"`

	CleanText     *bool `json:"clean_text"`
	HandleChinese *bool `json:"handle_chinese_chars"`
	StripAccents  *bool `json:"strip_accents"`
	Lowercase     *bool `json:"lowercase"`
}

type patternJSON struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// finder bounds the time for a match, and for all in a text.
func (p *patternJSON) finder(match, all time.Duration) (finder, error) {
	switch {
	case p == nil || p.String == nil && p.Regex == nil:
		return nil, errors.New("it has no pattern: neither String nor Regex")
	case p.String != nil:
		return literal(*p.String), nil
	}
	return newPattern(*p.Regex, match, all)
}

func isTrue(b *bool, missing bool) bool {
	if b == nil {
		return missing
	}
	return *b
}

// components are the types of a tokenizer's steps.
type components struct{ normalizers, preTokenizers, decoders []string }

// Read reads a tokenizer.json.
func Read(text []byte) (*Tokenizer, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(text), MaxBytes)
	}
	if !utf8.Valid(text) {
		return nil, errors.New("it is not UTF-8")
	}
	var file fileJSON
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("it is no tokenizer.json: %w", err)
	}
	if file.Model == nil {
		return nil, errors.New("it is no tokenizer.json: it has no model")
	}
	var source bytes.Buffer
	if err := json.Compact(&source, text); err != nil {
		return nil, err
	}
	t := &Tokenizer{source: source.Bytes(), kind: file.Model.Type}
	if err := t.number(file); err != nil {
		return nil, err
	}
	if err := t.readSteps(file); err != nil {
		return nil, err
	}
	if err := t.readModel(*file.Model); err != nil {
		return nil, err
	}
	return t, t.find(file.Added)
}

// number gives each token its id.
func (t *Tokenizer) number(file fileJSON) error {
	t.ids = make(map[string]int32, len(file.Model.Vocabulary)+len(file.Added))
	if len(file.Added) > maxAddedTokens {
		return fmt.Errorf("%d added tokens are more than %d", len(file.Added), maxAddedTokens)
	}
	maps.Copy(t.ids, file.Model.Vocabulary)
	size := 0
	for _, a := range file.Added {
		if id, ok := t.ids[a.Content]; ok && id != a.ID {
			return fmt.Errorf("the token %.100q has two ids, %d and %d", a.Content, id, a.ID)
		}
		t.ids[a.Content] = a.ID
		if size += len(a.Content); size > maxAddedBytes {
			return fmt.Errorf("the added tokens have more than %d bytes", maxAddedBytes)
		}
	}
	if len(t.ids) == 0 || len(t.ids) > maxTokens {
		return fmt.Errorf("%d tokens are not in [1, %d]", len(t.ids), maxTokens)
	}
	t.tokens = make([]string, len(t.ids))
	for token, id := range t.ids {
		switch {
		case token == "" || len(token) > maxTokenBytes:
			return fmt.Errorf("token %d is empty or longer than %d bytes", id, maxTokenBytes)
		case id < 0 || int(id) >= len(t.tokens):
			return fmt.Errorf("the token %.100q has id %d, and the %d tokens have ids from 0 on "+
				"without gaps", token, id, len(t.tokens))
		case t.tokens[id] != "":
			return fmt.Errorf("the tokens %.100q and %.100q both have id %d",
				min(token, t.tokens[id]), max(token, t.tokens[id]), id)
		}
		t.tokens[id] = token
	}
	return nil
}

func (t *Tokenizer) readSteps(file fileJSON) error {
	r := stepReader{to: t}
	for _, part := range []struct {
		name string
		text json.RawMessage
		read func(j stepJSON) error
		list func(j stepJSON) []json.RawMessage
	}{
		{"normalizer", file.Normalizer, r.normalizer,
			func(j stepJSON) []json.RawMessage { return j.Normalizers }},
		{"pre_tokenizer", file.PreTokenizer, r.preTokenizer,
			func(j stepJSON) []json.RawMessage { return j.PreTokenizers }},
		{"decoder", file.Decoder, r.decoder,
			func(j stepJSON) []json.RawMessage { return j.Decoders }},
	} {
		r.steps = 0
		if err := r.each(part.text, part.list, part.read); err != nil {
			return fmt.Errorf("%s %w", part.name, err)
		}
	}
	// The model maps a word to byte-level characters only if its ids are not known yet.
	if n := len(t.split); n > 0 && t.split[n-1] == (byteCharacters{}) {
		t.split, t.bytes = t.split[:n-1], true
	}
	return nil
}

// stepReader makes the steps of a tokenizer.
type stepReader struct {
	to    *Tokenizer
	steps int
}

// each calls read with a component, or with each of those in a Sequence.
func (r *stepReader) each(
	text json.RawMessage, list func(stepJSON) []json.RawMessage, read func(stepJSON) error,
) error {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	var j stepJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	if r.steps++; r.steps > maxSteps {
		return fmt.Errorf("has more than %d steps", maxSteps)
	}
	if max(len(j.Content), len(j.Prepend), len(j.Prefix), len(j.Suffix)) > maxPattern {
		return fmt.Errorf("has a text of more than %d bytes", maxPattern)
	}
	if j.Type == "Sequence" {
		for _, one := range list(j) {
			if err := r.each(one, list, read); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read(j); err != nil {
		return fmt.Errorf("%q %w", j.Type, err)
	}
	return nil
}

// unsupported names the components that can be used instead.
func unsupported(names string) error {
	return fmt.Errorf("is not supported: %s and Sequence are", names)
}

func (r *stepReader) normalizer(j stepJSON) error {
	t := r.to
	t.names.normalizers = append(t.names.normalizers, j.Type)
	if simple := byName(j.Type); simple != nil {
		t.rules = append(t.rules, simple)
		return nil
	}
	switch j.Type {
	case "BertNormalizer":
		t.rules = append(t.rules, bert(j)...)
	case "Strip":
		t.rules = append(t.rules, strip{isTrue(j.Left, true), isTrue(j.Right, true)})
	case "Prepend":
		t.rules = append(t.rules, prepend(j.Prepend))
	case "Replace":
		at, err := j.Pattern.finder(maxMatch, maxMatches)
		if err != nil {
			return err
		}
		t.rules = append(t.rules, replace{at, j.Content})
	default:
		return unsupported("NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, BertNormalizer, " +
			"Strip, Prepend, Replace, ByteLevel")
	}
	return nil
}

func (r *stepReader) preTokenizer(j stepJSON) error {
	t := r.to
	t.names.preTokenizers = append(t.names.preTokenizers, j.Type)
	add := func(s ...splitter) error {
		t.split = append(t.split, s...)
		return nil
	}
	switch j.Type {
	case "ByteLevel":
		if slices.Contains(t.split, splitter(byteCharacters{})) {
			return errors.New("comes twice")
		}
		by := byteLevelWords{space: isTrue(j.PrefixSpace, true)}
		if isTrue(j.UseRegex, true) {
			by.by = cut{words{classes()}, isolated}
		}
		return add(by, byteCharacters{})
	case "Whitespace":
		return add(cut{inverted{bertWords{}}, removed})
	case "WhitespaceSplit":
		return add(cut{oneOf(unicode.IsSpace), removed})
	case "BertPreTokenizer":
		return add(cut{oneOf(unicode.IsSpace), removed}, cut{oneOf(isPunctuation), isolated})
	case "Digits":
		if j.Digits {
			return add(cut{oneOf(unicode.IsNumber), isolated})
		}
		return add(cut{oneOf(unicode.IsNumber), contiguous})
	case "Punctuation":
		return r.cut(oneOf(isPunctuation), j)
	case "CharDelimiterSplit":
		var char string
		if err := json.Unmarshal(j.Char, &char); err != nil || char == "" {
			return errors.New("has no delimiter")
		}
		return add(cut{literal(char), removed})
	case "Metaspace":
		m, err := newMetaspace(j)
		if err != nil {
			return err
		}
		return add(m)
	case "Split":
		at, err := j.Pattern.finder(maxMatch, maxMatches)
		if err != nil {
			return err
		}
		if j.Invert {
			at = inverted{at}
		}
		return r.cut(at, j)
	}
	return unsupported("ByteLevel, Whitespace, WhitespaceSplit, BertPreTokenizer, Metaspace, " +
		"Digits, Punctuation, CharDelimiterSplit, Split")
}

func (r *stepReader) cut(at finder, j stepJSON) error {
	do := j.Behavior
	if do == "" && j.Type == "Punctuation" {
		do = isolated
	}
	all := []behavior{removed, isolated, mergedWithPrevious, mergedWithNext, contiguous}
	if !slices.Contains(all, do) {
		return fmt.Errorf("has the behavior %.100q, which is none of %v", do, all)
	}
	r.to.split = append(r.to.split, cut{at, do})
	return nil
}

func newMetaspace(j stepJSON) (metaspace, error) {
	m := metaspace{mark: j.Replacement, scheme: j.Scheme, words: isTrue(j.Split, true)}
	if m.mark == "" {
		m.mark = "▁"
	}
	if utf8.RuneCountInString(m.mark) > 1 {
		return m, fmt.Errorf("has the replacement %.100q, which is more than one character", m.mark)
	}
	if m.scheme == "" {
		if m.scheme = "never"; isTrue(j.PrefixSpace, true) {
			m.scheme = "always"
		}
	}
	if !slices.Contains([]string{"always", "first", "never"}, m.scheme) {
		return m, fmt.Errorf("has the prepend_scheme %.100q, which is none of always, first, never",
			m.scheme)
	}
	return m, nil
}

func (r *stepReader) decoder(j stepJSON) error {
	t := r.to
	t.names.decoders = append(t.names.decoders, j.Type)
	var d decoder
	switch j.Type {
	case "ByteLevel":
		d = byteDecoder{}
	case "WordPiece":
		d = wordPieceDecoder{j.Prefix, j.Cleanup}
	case "BPEDecoder":
		d = suffixDecoder(j.Suffix)
	case "ByteFallback":
		d = byteFallbackDecoder{}
	case "Fuse":
		d = fuse{}
	case "Strip":
		d = stripDecoder{j.Content, j.Start, j.Stop}
	case "Metaspace":
		m, err := newMetaspace(j)
		if err != nil {
			return err
		}
		d = m
	case "Replace":
		at, err := j.Pattern.finder(maxDecoding, maxDecoding)
		if err != nil {
			return err
		}
		d = replace{at, j.Content}
	default:
		return unsupported("ByteLevel, WordPiece, BPEDecoder, ByteFallback, Fuse, Strip, " +
			"Metaspace, Replace")
	}
	t.decoder = append(t.decoder, d)
	return nil
}

func (t *Tokenizer) readModel(m modelJSON) error {
	if m.Type == "WordPiece" {
		w, err := newWordPiece(m, m.Vocabulary)
		t.model = w
		return err
	}
	b, err := newBytePairs(m, m.Vocabulary)
	t.model = b
	return err
}

// find prepares the search for the added tokens. Special tokens come first.
func (t *Tokenizer) find(list []addedJSON) error {
	t.added.normalized = map[int32]string{}
	for _, special := range []bool{true, false} {
		for _, a := range list {
			if a.Special != special {
				continue
			}
			token := addedToken{a.ID, a.SingleWord, a.LStrip, a.RStrip}
			t.added.contents = append(t.added.contents, a.Content)
			content, to := []byte(a.Content), &t.added.raw
			if a.Normalized {
				to = &t.added.plain
				for _, r := range t.rules {
					var err error
					if content, err = r.normalize(content, true, true); err != nil {
						return fmt.Errorf("added token %.100q: %w", a.Content, err)
					}
				}
				t.added.normalized[a.ID] = string(content)
			}
			if len(content) > maxPartBytes {
				return fmt.Errorf("the added token %.100q is longer than %d bytes", a.Content,
					maxPartBytes)
			}
			to.add(string(content), token)
		}
	}
	return nil
}
