package lm

import (
	"context"
	"errors"
	"strings"

	"rondo/corpus"
	"rondo/model"
)

// Writer generates text with a language model.
type Writer struct {
	vocabulary *corpus.Vocabulary
	tokenizer  corpus.Tokenizer
	prefix     []int32 // start of the text; empty: none
	first      int32   // read by the model if the prefix is empty
	tokens     int
	how        model.Sampling
}

// NewWriter makes a writer that continues the prefix by this many tokens. An empty prefix stands
// for the start of a line. It fails if t cannot split the prefix.
func NewWriter(
	v *corpus.Vocabulary, t corpus.Tokenizer, prefix string, tokens int, how model.Sampling,
) (*Writer, error) {
	ids, err := v.Encode(t, prefix)
	return &Writer{v, t, ids, firstToken(v, t.Unit), tokens, how}, err
}

// With returns the writer of another text after the same prefix.
func (w Writer) With(tokens int, how model.Sampling) Writer {
	w.tokens, w.how = tokens, how
	return w
}

// At returns the writer of a step's sample, whose draws depend on its seed and the step alone.
func (w Writer) At(step int64) Writer {
	w.how.Seed += uint64(step)
	return w
}

// Generator continues tokens: a model.Generator or a model.LabelGenerator.
type Generator interface {
	Generate(ctx context.Context, prefix []int32, n int, how model.Sampling) ([]int32, error)
	Close()
}

// Continue writes a text of so many tokens after a prefix, and passes it piece by piece.
type Continue func(ctx context.Context, tokens int, how model.Sampling,
	each func(Piece) error) error

// Piece is a part of a generated text: the prefix, what a token adds to it, or the incomplete
// character of subwords at its end.
type Piece struct {
	Text   string
	Tokens int // of the prefix; 1 of a token; 0 at the end
	// LogProbability is the natural logarithm of the probability that the model gives the token; 0
	// for the prefix.
	LogProbability float64
}

// Write returns the prefix and the text that g generates, and closes g. If ctx's deadline passes,
// the text is shorter.
func (w Writer) Write(ctx context.Context, g Generator) (string, error) {
	defer g.Close()
	var text strings.Builder
	err := w.Stream(ctx, g, func(p Piece) error {
		text.WriteString(p.Text)
		return nil
	})
	return text.String(), err
}

// Stream passes the prefix, and then each token's text as soon as g generates it.
func (w Writer) Stream(ctx context.Context, g Generator, each func(Piece) error) error {
	decoder := w.vocabulary.NewDecoder(w.tokenizer)
	var start strings.Builder
	for _, id := range w.prefix {
		start.WriteString(decoder.Next(id))
	}
	if err := each(Piece{Text: start.String(), Tokens: len(w.prefix)}); err != nil {
		return err
	}
	read := w.prefix
	if len(read) == 0 {
		read = []int32{w.first}
	}
	how := w.how
	how.Each = func(token int32, logProbability float64) error {
		return each(Piece{decoder.Next(token), 1, logProbability})
	}
	_, err := g.Generate(ctx, read, w.tokens, how)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if rest := decoder.End(); rest != "" {
		return each(Piece{Text: rest})
	}
	return nil
}

// firstToken stands for an empty prefix: the end of a line, or a space, or the most frequent token.
func firstToken(v *corpus.Vocabulary, unit corpus.Unit) int32 {
	if end, ok := v.End(); ok {
		return end
	}
	var ends []string
	switch unit {
	case corpus.Char:
		ends = []string{"\n", " "}
	case corpus.Subword: // as byte-level tokenizers write a line feed
		ends = []string{"\u010a", "\n"}
	case corpus.Word:
	}
	for _, token := range ends {
		if id := v.ID(token); id != 0 {
			return id
		}
	}
	return int32(min(1, v.Len()-1))
}

// maxRows is how many rows a scored text is cut into. Each row but the first starts without its
// preceding context; few rows limit that effect.
const maxRows = 8
