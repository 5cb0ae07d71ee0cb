// Package lines reads lines of text for a network that is used on them, in batches. It imports
// nothing of this module.
package lines

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

// An Error says what is wrong with a line of text. Lines count from 1.
type Error struct {
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// maxLine bounds a line of text, in bytes.
const maxLine = 1 << 20

// Reader reads lines.
type Reader struct {
	Encode   func(line string) ([]int32, error) // returns a line's tokens
	Most     int                                // tokens of a line
	Together int                                // lines of a batch
	// Blank keeps lines without a token, so that each line of the input has an answer. Without it,
	// empty lines are skipped and other lines without a token are errors.
	Blank bool
}

// Read calls use with batches of lines and their tokens, which it overwrites afterwards. It calls
// use as soon as it would have to wait for input, and before it returns
// an *Error. It ends with ctx, even while it waits for input.
func (r Reader) Read(
	ctx context.Context, in io.Reader, use func(texts []string, tokens [][]int32) error,
) error {
	reader := bufio.NewReaderSize(interruptible(ctx, in), maxLine)
	var texts []string
	var tokens [][]int32
	flush := func() error {
		if len(texts) == 0 {
			return nil
		}
		if err := use(texts, tokens); err != nil {
			return err
		}
		texts, tokens = texts[:0], tokens[:0]
		return context.Cause(ctx)
	}
	for number := 1; ; number++ {
		raw, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = &Error{number, fmt.Errorf("longer than %d bytes: split it", maxLine)}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return cmp.Or(flush(), err)
		}
		text := strings.TrimPrefix(strings.TrimRight(string(raw), "\r\n"), "\ufeff")
		if text != "" || r.Blank && len(raw) > 0 {
			ids, wrong := r.tokens(text)
			if wrong != nil {
				return cmp.Or(flush(), error(&Error{number, wrong}))
			}
			texts, tokens = append(texts, text), append(tokens, ids)
		}
		if len(texts) == r.Together || err != nil || !hasLine(reader) {
			if err := flush(); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// tokens returns the tokens of a line that the network can read.
func (r Reader) tokens(text string) ([]int32, error) {
	ids, err := r.Encode(text)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 && !r.Blank {
		return nil, errors.New("it has no token")
	}
	if len(ids) > r.Most {
		return nil, fmt.Errorf("it has %d tokens, and the network was trained on at most %d "+
			"(--max-length): shorten it", len(ids), r.Most)
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
