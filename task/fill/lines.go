package fill

import (
	"context"
	"fmt"
	"io"
	"strings"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/label"
)

// MaxTokens bounds the tokens of a line whose blanks are filled.
const MaxTokens = 512

// Filler fills the blanks in lines of text.
type Filler struct {
	Predictor  *label.Predictor // from NewPredictor
	Vocabulary *corpus.Vocabulary
	Tokenizer  corpus.Tokenizer
	Mark       string // stands for a blank in a line
}

// NewPredictor makes the predictor of a Filler. It does not predict corpus.Unknown and Blank. Close
// frees it.
func NewPredictor(l *model.Labeller, v *corpus.Vocabulary) *label.Predictor {
	p := label.NewPredictor(l.EachToken(), MaxTokens)
	p.Reserved, p.Blank = int(v.ID(Blank))+1, true
	return p
}

// Line is a line of text with its blanks filled.
type Line struct {
	Text          string    `json:"text"`
	Filled        string    `json:"filled"`
	Tokens        []string  `json:"tokens"` // that fill its blanks; not nil
	Probabilities []float32 `json:"probabilities"`
}

// Lines fills the blanks in the lines of a text: see lines.Reader. Lines without a token stay as
// they are.
func (f Filler) Lines(ctx context.Context, in io.Reader, each func(Line) error) error {
	tokens := f.Vocabulary.Tokens()
	encode := func(line string) ([]int32, error) {
		ids, _, err := f.encode(line)
		return ids, err
	}
	return f.Predictor.Lines(ctx, in, encode, tokens, func(predicted label.Line) error {
		line := Line{Text: predicted.Text, Tokens: []string{}, Probabilities: []float32{}}
		_, blanks, err := f.encode(line.Text)
		if err != nil {
			return err
		}
		rest := line.Text
		for _, at := range blanks {
			before, after, _ := strings.Cut(rest, f.Mark)
			line.Filled, rest = line.Filled+before+predicted.Labels[at], after
			line.Tokens = append(line.Tokens, predicted.Labels[at])
			line.Probabilities = append(line.Probabilities, predicted.Probabilities[at])
		}
		line.Filled += rest
		return each(line)
	})
}

// encode returns a line's tokens, with Blank for each mark, and the blanks' places. A letter, or a
// word of one, stands in for a mark while the text beside it is normalised, which would otherwise
// lose its spaces.
func (f Filler) encode(line string) (ids []int32, blanks []int, err error) {
	standIn := f.Tokenizer.Unit.Separator() + "a" + f.Tokenizer.Unit.Separator()
	pieces := strings.Split(line, f.Mark)
	for i, piece := range pieces {
		if i > 0 {
			piece = standIn + piece
		}
		marked := i < len(pieces)-1
		if marked {
			piece += standIn
		}
		tokens, err := f.Vocabulary.Encode(f.Tokenizer, piece)
		if err != nil {
			return nil, nil, err
		}
		if i > 0 {
			tokens = tokens[1:]
		}
		ids = append(ids, tokens...)
		if marked {
			blanks = append(blanks, len(ids)-1)
			ids[len(ids)-1] = f.Vocabulary.ID(Blank)
		}
	}
	if len(ids) > MaxTokens {
		return nil, nil, fmt.Errorf("it has %d tokens, more than %d: split it", len(ids),
			MaxTokens)
	}
	return ids, blanks, nil
}
