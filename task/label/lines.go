package label

import (
	"bufio"
	"bytes"
	"cmp"
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

// A LineError says what is wrong with a line of text. Lines count from 1.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// maxLine bounds a line of text, in bytes.
const maxLine = 1 << 20

// Lines predicts the labels of the lines of a text. encode returns a line's tokens; labels are the
// network's. Empty lines are skipped. It predicts as soon as it would have to wait for input, and
// before it returns a *LineError. It ends with ctx, even while it waits for input.
func (p *Predictor) Lines(
	ctx context.Context, in io.Reader, encode func(line string) ([]int32, error), labels []string,
	each func(Line) error,
) error {
	reader := bufio.NewReaderSize(interruptible(ctx, in), maxLine)
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
		return context.Cause(ctx)
	}
	for number := 1; ; number++ {
		raw, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = &LineError{number, fmt.Errorf("longer than %d bytes: split it", maxLine)}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return cmp.Or(flush(), err)
		}
		if text := strings.TrimRight(string(raw), "\r\n"); text != "" {
			ids, wrong := p.tokens(text, encode)
			if wrong != nil {
				return cmp.Or(flush(), error(&LineError{number, wrong}))
			}
			lines, tokens = append(lines, Line{Text: text}), append(tokens, ids)
		}
		if len(lines) == MaxTogether || err != nil || !hasLine(reader) {
			if err := flush(); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// tokens returns the tokens of a line that the network can label.
func (p *Predictor) tokens(text string, encode func(string) ([]int32, error)) ([]int32, error) {
	ids, err := encode(text)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errors.New("it has no token")
	}
	if len(ids) > p.most {
		return nil, fmt.Errorf("it has %d tokens, and the network was trained on at most %d "+
			"(--max-length): shorten it", len(ids), p.most)
	}
	return ids, nil
}

// hasLine reports whether a whole line can be read without waiting.
func hasLine(r *bufio.Reader) bool {
	rest, _ := r.Peek(r.Buffered()) // as much as there is: no error
	return bytes.IndexByte(rest, '\n') >= 0
}

type readFunc func(into []byte) (int, error)

func (f readFunc) Read(into []byte) (int, error) { return f(into) }

// interruptible returns a reader that fails once ctx ends. A read that blocks then goes on in a
// goroutine, with memory of its own.
func interruptible(ctx context.Context, in io.Reader) io.Reader {
	type result struct {
		n   int
		err error
	}
	own := make([]byte, 1<<16)
	return readFunc(func(into []byte) (int, error) {
		done := make(chan result, 1)
		go func() {
			n, err := in.Read(own[:min(len(own), len(into))])
			done <- result{n, err}
		}()
		select {
		case got := <-done:
			return copy(into, own[:got.n]), got.err
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
}
