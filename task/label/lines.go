package label

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Line is a line of text with its labels.
type Line struct {
	Text          string    `json:"text"`
	Labels        []string  `json:"labels"`
	Probabilities []float32 `json:"probabilities"`
}

// maxLine bounds a line of text, in bytes.
const maxLine = 1 << 20

// Lines predicts the labels of the lines of a text. encode returns a line's tokens; labels are the
// network's. Empty lines are skipped. It predicts as soon as it would have to wait for input.
func (p *Predictor) Lines(
	ctx context.Context, in io.Reader, encode func(line string) ([]int32, error), labels []string,
	each func(Line) error,
) error {
	reader := bufio.NewReaderSize(in, maxLine)
	var lines []Line
	var tokens [][]int32
	flush := func() error {
		if len(lines) == 0 {
			return nil
		}
		predicted, err := p.Predict(tokens)
		if err != nil {
			return err
		}
		for i, line := range lines {
			for _, number := range predicted[i].Labels {
				line.Labels = append(line.Labels, labels[number])
			}
			line.Probabilities = predicted[i].Probabilities
			if err := each(line); err != nil {
				return err
			}
		}
		lines, tokens = lines[:0], tokens[:0]
		return ctx.Err()
	}
	for number := 1; ; number++ {
		raw, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = fmt.Errorf("it is longer than %d bytes", maxLine)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if text := strings.TrimRight(string(raw), "\r\n"); text != "" {
			ids, wrong := encode(text)
			if wrong == nil && len(ids) == 0 {
				wrong = errors.New("it has no token")
			}
			if wrong == nil && len(ids) > p.most {
				wrong = fmt.Errorf("it has %d tokens, and the network was trained on at most %d "+
					"(--max-length)", len(ids), p.most)
			}
			if wrong != nil {
				return errors.Join(flush(), fmt.Errorf("line %d: %w", number, wrong))
			}
			lines, tokens = append(lines, Line{Text: text}), append(tokens, ids)
		}
		if len(lines) == MaxTogether || err != nil || reader.Buffered() == 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}
