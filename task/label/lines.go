package label

import (
	"context"
	"io"

	"rondo/task/lines"
)

// Line is a line of text with its labels.
type Line struct {
	Text   string   `json:"text"`
	Tokens []string `json:"tokens,omitempty"` // where they are not the words of the text
	Labels []string `json:"labels"`
	Tree   string   `json:"tree,omitempty"` // with all labels: see examples.ParseTree
	// Probabilities are the labels'; nil: unknown.
	Probabilities []float32 `json:"probabilities,omitempty"`
}

// Lines predicts the labels of the lines of a text: see lines.Reader. encode returns a line's
// tokens; labels are the network's.
func (p *Predictor) Lines(
	ctx context.Context, in io.Reader, encode func(line string) ([]int32, error), labels []string,
	each func(Line) error,
) error {
	reader := lines.Reader{Encode: encode, Most: p.most, Together: MaxTogether,
		Blank: p.Blank}
	return reader.Read(ctx, in, func(texts []string, tokens [][]int32) error {
		predicted, err := p.Predict(tokens)
		if err != nil {
			return err
		}
		for i, text := range texts {
			line := Line{Text: text, Probabilities: predicted[i].Probabilities}
			for _, number := range predicted[i].Labels {
				line.Labels = append(line.Labels, labels[number])
			}
			if err := each(line); err != nil {
				return err
			}
		}
		return nil
	})
}
