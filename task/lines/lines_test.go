package lines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBad = errors.New("the line is bad")

// reader makes a word a token, and refuses the word bad.
var reader = Reader{Most: 9, Together: 4, Encode: func(line string) (ids []int32, err error) {
	for range strings.Fields(line) {
		ids = append(ids, 1)
	}
	if line == "bad" {
		err = errBad
	}
	return ids, err
}}

// read returns the batches of lines.
func read(ctx context.Context, in io.Reader) (all [][]string, err error) {
	err = reader.Read(ctx, in, func(texts []string, tokens [][]int32) error {
		for i, text := range texts {
			if len(tokens[i]) != len(strings.Fields(text)) {
				return fmt.Errorf("%q has %d tokens", text, len(tokens[i]))
			}
		}
		all = append(all, slices.Clone(texts))
		return nil
	})
	return all, err
}

// Lines come in order, however many there are and however they end, in batches if they are there.
// Empty ones are skipped.
func TestRead(t *testing.T) {
	const text = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj"
	all, err := read(t.Context(), strings.NewReader(text+"\n"))
	if want := "[[a b c d] [e f g h] [i j]]"; err != nil || fmt.Sprint(all) != want {
		t.Errorf("%v, %v, want %s", all, err, want)
	}
	for _, in := range []string{text, text + "\n",
		"\n\n" + strings.ReplaceAll(text, "\n", "\r\n\n")} {
		for _, from := range []io.Reader{strings.NewReader(in),
			iotest.OneByteReader(strings.NewReader(in)),
			iotest.DataErrReader(strings.NewReader(in))} {
			all, err := read(t.Context(), from)
			if got := slices.Concat(all...); err != nil || strings.Join(got, "\n") != text {
				t.Errorf("%q: %v, %v", in, all, err)
			}
		}
	}
	if all, err := read(t.Context(), strings.NewReader("")); err != nil || all != nil {
		t.Errorf("of nothing: %v, %v", all, err)
	}
}

// With Blank there is an answer for each line, also for those without a token.
func TestBlankLines(t *testing.T) {
	const in = "\ufeff\r\na\n \n\nb b\n\n"
	blank, got := reader, ""
	blank.Blank = true
	err := blank.Read(t.Context(), strings.NewReader(in),
		func(texts []string, tokens [][]int32) error {
			for i, text := range texts {
				got += fmt.Sprintf("%q %d, ", text, len(tokens[i]))
			}
			return nil
		})
	if want := `"" 0, "a" 1, " " 0, "" 0, "b b" 2, "" 0, `; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// A wrong line is an error that names it, after the lines before it.
func TestWrongLines(t *testing.T) {
	for _, c := range [][2]string{
		{strings.Repeat("a ", 10), "line 3: it has 10 tokens, and the network was trained on at " +
			"most 9 (--max-length): shorten it"},
		{" \t", "line 3: it has no token"},
		{"bad\na", "line 3: the line is bad"},
		{strings.Repeat("b", maxLine) + "\nc", "line 3: longer than 1048576 bytes: split it"},
	} {
		text, want := c[0], c[1]
		all, err := read(t.Context(), strings.NewReader("a\nb\n"+text))
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Line != 3 || err.Error() != want {
			t.Errorf("%v; want %q", err, want)
		}
		if fmt.Sprint(all) != "[[a b]]" {
			t.Errorf("%q: the lines before are %v", want, all)
		}
	}
}

var errBroken = errors.New("it broke")

// Errors of input and output are not wrong lines. What was read before is used; nothing follows an
// output that fails.
func TestBrokenPipes(t *testing.T) {
	var wrong *Error
	all, err := read(t.Context(),
		io.MultiReader(strings.NewReader("a\nb\nc"), iotest.ErrReader(errBroken)))
	if !errors.Is(err, errBroken) || errors.As(err, &wrong) || fmt.Sprint(all) != "[[a b]]" {
		t.Errorf("input: %v after %v", err, all)
	}
	calls := 0
	err = reader.Read(t.Context(), strings.NewReader(strings.Repeat("a\n", 9)),
		func([]string, [][]int32) error {
			calls++
			return fmt.Errorf("write: %w", io.ErrClosedPipe)
		})
	if !errors.Is(err, io.ErrClosedPipe) || errors.As(err, &wrong) || calls != 1 {
		t.Errorf("output: %v after %d calls", err, calls)
	}
}

// follow reads lines in a goroutine, and sends each, and at last the error.
func follow(ctx context.Context, in io.Reader) (lines <-chan string, done <-chan error) {
	each, end := make(chan string), make(chan error)
	go func() {
		end <- reader.Read(ctx, in, func(texts []string, _ [][]int32) error {
			for _, text := range texts {
				each <- text
			}
			return nil
		})
	}()
	return each, end
}

func typeText(t *testing.T, to io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(to, text); err != nil {
		t.Fatal(err)
	}
}

// A line is used when it has ended, not when the next one has, nor when a batch is full.
func TestInteractiveLines(t *testing.T) {
	in, typed := io.Pipe()
	lines, done := follow(t.Context(), in)
	for _, keys := range []struct {
		text string
		want []string
	}{
		{"a b\n", []string{"a b"}},
		{"c\nd", []string{"c"}}, // half a line waits
		{" a\nb\nc\n", []string{"d a", "b", "c"}},
		{"\n", nil},
		{"d", nil},
	} {
		typeText(t, typed, keys.text)
		for _, want := range keys.want {
			if line := <-lines; line != want {
				t.Errorf("%q after %q was typed, want %q", line, keys.text, want)
			}
		}
	}
	if err := typed.Close(); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; line != "d" {
		t.Errorf("%q, want the last line, which has no end", line)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Read ends when its context does, also while it waits for the rest of a line.
func TestInterruptedLines(t *testing.T) {
	in, typed := io.Pipe()
	defer typed.Close() // ends the read that goes on
	ctx, interrupt := context.WithCancelCause(t.Context())
	lines, done := follow(ctx, in)
	typeText(t, typed, "a\n")
	if line := <-lines; line != "a" {
		t.Errorf("%q", line)
	}
	typeText(t, typed, "b")
	interrupt(errBroken)
	if err := <-done; !errors.Is(err, errBroken) {
		t.Errorf("%v, want the reason of the interruption", err)
	}
}
