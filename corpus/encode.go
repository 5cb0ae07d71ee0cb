package corpus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Encode splits a text with t and returns the ids; unknown tokens become 0. The text is treated as
// the start of a document, so Letters trims its ends, and no EndOfText follows it.
func (v *Vocabulary) Encode(t Tokenizer, text string) ([]int32, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	ctx := context.Background()
	return encodeText(ctx, nil, t, strings.NewReader(text), v.encoder(ctx, t.Unit))
}

// encodeText appends the ids of a text to ids.
func encodeText(
	ctx context.Context, ids []int32, t Tokenizer, text io.Reader, encode encoding,
) ([]int32, error) {
	c := newCutter(t.Unit, func() []byte { return nil }, func(b block) error {
		return b.each(func(text []byte, p piece) (err error) {
			ids, err = encode(ids, text, p)
			return err
		})
	})
	var to sink = c
	if t.Ends == LineEnds {
		to = &lineMarker{to: c, mark: c.mark}
	}
	if err := t.scan(ctx, text, to); err != nil {
		return nil, err
	}
	if err := c.flush(); err != nil {
		return nil, err
	}
	return ids, nil
}

// NewSplitter is Tokenizer.NewSplitter for texts with this vocabulary, which may have subwords.
// The tokens of a text are those of Encode.
func (v *Vocabulary) NewSplitter(t Tokenizer, token func([]byte) error) (*Splitter, error) {
	if v.subwords == nil {
		return t.NewSplitter(token)
	}
	if err := t.validate(); err != nil {
		return nil, err
	}
	ctx := context.Background()
	encode := v.encoder(ctx, t.Unit)
	var ids []int32
	var name []byte
	each := func(text []byte) (err error) {
		if ids, err = encodeText(ctx, ids[:0], t, bytes.NewReader(text), encode); err != nil {
			return err
		}
		for _, id := range ids {
			name = append(name[:0], v.tokens[id]...)
			if err := token(name); err != nil {
				return err
			}
		}
		return nil
	}
	plain := Tokenizer{Unit: t.Unit, Normalize: None} // encodeText normalises
	return &Splitter{tokenizer: plain, each: each}, nil
}

// encoding appends the ids of a piece of text, and of the EndOfText behind it.
type encoding func(ids []int32, text []byte, p piece) ([]int32, error)

// encode appends the ids of a block, and returns how many of them precede each end of a document.
func (b block) encode(ids []int32, encode encoding) (_ []int32, ends []int, err error) {
	err = b.each(func(text []byte, p piece) (err error) {
		ids, err = encode(ids, text, p)
		if p.document {
			ends = append(ends, len(ids))
		}
		return err
	})
	return ids, ends, err
}

// encoder returns a function that encodes pieces. It must not be used concurrently.
func (v *Vocabulary) encoder(ctx context.Context, unit Unit) encoding {
	end, _ := v.End()
	encode := v.tokenEncoder(ctx, unit)
	return func(ids []int32, text []byte, p piece) (_ []int32, err error) {
		if len(text) > 0 {
			ids, err = encode(ids, text, p)
		}
		if p.mark {
			ids = append(ids, end)
		}
		return ids, err
	}
}

// tokenEncoder is encoder without EndOfText.
func (v *Vocabulary) tokenEncoder(ctx context.Context, unit Unit) encoding {
	switch {
	case v.subwords != nil:
		e := v.subwords.NewEncoder()
		return func(ids []int32, text []byte, p piece) ([]int32, error) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			more, err := e.Encode(text, p.first, p.last)
			if err != nil {
				return nil, fmt.Errorf("--tokenizer: %w", err)
			}
			return append(ids, more...), nil
		}
	case unit == Word:
		batch := make([]shortKey, keyBatch)
		return func(ids []int32, text []byte, _ piece) ([]int32, error) {
			err := eachKey(text, batch, func(keys []shortKey) error {
				ids, _ = v.ids.numbers(ids, keys)
				return nil
			}, func(word []byte) error {
				ids = append(ids, v.ids.find(word))
				return nil
			})
			return ids, err
		}
	}
	table := v.runes()
	return func(ids []int32, text []byte, _ piece) ([]int32, error) {
		for i := 0; i < len(text); {
			r, n := rune(text[i]), 1
			if r >= utf8.RuneSelf {
				r, n = utf8.DecodeRune(text[i:])
			}
			id := int32(0)
			if int(r) < len(table) {
				id = table[r]
			}
			ids, i = append(ids, id), i+n
		}
		return ids, nil
	}
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
