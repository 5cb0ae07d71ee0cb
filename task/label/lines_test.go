package label

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"rondo/corpus"
	"rondo/model"
)

// service labels lines with the network of a task.
type service struct {
	*Predictor
	labels []string
	encode func(string) ([]int32, error)
}

func newService(t *testing.T, pool model.Pool) service {
	t.Helper()
	set := openSet(t, pool)
	p, err := NewPredictor(newLabeller(t, set, pool), 9)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	words := corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None}
	return service{p, set.Labels(), func(line string) ([]int32, error) {
		return set.Vocabulary().Encode(words, line)
	}}
}

// lines returns the lines that were labelled.
func (s service) lines(ctx context.Context, in io.Reader) (all []Line, err error) {
	err = s.Lines(ctx, in, s.encode, s.labels, func(line Line) error {
		all = append(all, line)
		return nil
	})
	return all, err
}

// Lines come out in order, however many there are and however they end. Empty ones are skipped, and
// the labels of a line depend on it alone.
func TestLines(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			s := newService(t, pool)
			var texts []string
			for i := range 2*MaxTogether + 3 {
				texts = append(texts, strings.Repeat("a b ", i%4)+"d unknown"[:1+i%2*8])
			}
			for _, in := range []io.Reader{
				strings.NewReader(strings.Join(texts, "\n")),
				strings.NewReader("\n\n" + strings.Join(texts, "\r\n\n") + "\n"),
				iotest.OneByteReader(strings.NewReader(strings.Join(texts, "\n"))),
				iotest.DataErrReader(strings.NewReader(strings.Join(texts, "\n"))),
			} {
				all, err := s.lines(t.Context(), in)
				if err != nil || len(all) != len(texts) {
					t.Fatalf("%d lines of %d: %v", len(all), len(texts), err)
				}
				for i, line := range all {
					s.checkLine(t, pool, line, texts[i])
				}
			}
			if all, err := s.lines(t.Context(), strings.NewReader("")); err != nil || all != nil {
				t.Errorf("of nothing: %v, %v", all, err)
			}
		})
	}
}

// checkLine holds a line to what is predicted of it alone.
func (s service) checkLine(t *testing.T, pool model.Pool, got Line, text string) {
	t.Helper()
	tokens, err := s.encode(text)
	if err != nil {
		t.Fatal(err)
	}
	predicted, err := s.Predict([][]int32{tokens})
	if err != nil {
		t.Fatal(err)
	}
	n := 1
	if pool == model.PoolNone {
		n = len(strings.Fields(text))
	}
	if got.Text != text || len(got.Labels) != n || len(got.Probabilities) != n {
		t.Fatalf("%+v, want %d labels of %q", got, n, text)
	}
	for i, number := range predicted[0].Labels {
		p := got.Probabilities[i]
		if got.Labels[i] != s.labels[number] || !(p >= 1/float32(len(s.labels)) && p <= 1) ||
			math.Abs(float64(p-predicted[0].Probabilities[i])) > 1e-5 {
			t.Errorf("%+v, want %+v", got, predicted[0])
		}
	}
}

// A wrong line is an error that names it, after the labels of the lines before it.
func TestWrongLines(t *testing.T) {
	s := newService(t, model.PoolLast)
	for text, want := range map[string]string{
		"a\nb\n" + strings.Repeat("a ", 10): "line 3: it has 10 tokens, and the network was " +
			"trained on at most 9 (--max-length)",
		"a\nb\n \t":   "line 3: it has no token",
		"a\nb\nc\xff": "line 3: invalid UTF-8",
		"a\nb\n" + strings.Repeat("b", maxLine) + "\nc": "line 3: longer than 1048576 bytes: split it",
	} {
		all, err := s.lines(t.Context(), strings.NewReader(text))
		var wrong *LineError
		if !errors.As(err, &wrong) || wrong.Line != 3 || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
		if len(all) != 2 || all[1].Text != "b" {
			t.Errorf("%q: the lines before are %v", want, all)
		}
	}
}

var errBroken = errors.New("it broke")

// Errors of input and output are not wrong lines. What was read before is labelled; nothing follows
// an output that fails.
func TestBrokenPipes(t *testing.T) {
	s := newService(t, model.PoolLast)
	var wrong *LineError
	all, err := s.lines(t.Context(),
		io.MultiReader(strings.NewReader("a\nb\nc"), iotest.ErrReader(errBroken)))
	if !errors.Is(err, errBroken) || errors.As(err, &wrong) || len(all) != 2 {
		t.Errorf("input: %v after %v", err, all)
	}
	calls := 0
	err = s.Lines(t.Context(), strings.NewReader("a\nb\nc\n"), s.encode, s.labels,
		func(Line) error {
			calls++
			return fmt.Errorf("write: %w", io.ErrClosedPipe)
		})
	if !errors.Is(err, io.ErrClosedPipe) || errors.As(err, &wrong) || calls != 1 {
		t.Errorf("output: %v after %d calls", err, calls)
	}
}

// A line is labelled when it has ended, not when the next one has, nor when others have come.
func TestInteractiveLines(t *testing.T) {
	s := newService(t, model.PoolNone)
	in, typed := io.Pipe()
	labelled, done := make(chan Line), make(chan error)
	go func() {
		done <- s.Lines(t.Context(), in, s.encode, s.labels, func(line Line) error {
			labelled <- line
			return nil
		})
	}()
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
		if _, err := io.WriteString(typed, keys.text); err != nil {
			t.Fatal(err)
		}
		for _, want := range keys.want {
			if line := <-labelled; line.Text != want {
				t.Errorf("%q after %q was typed, want %q", line.Text, keys.text, want)
			}
		}
	}
	if err := typed.Close(); err != nil {
		t.Fatal(err)
	}
	if line := <-labelled; line.Text != "d" {
		t.Errorf("%q, want the last line, which has no end", line.Text)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Lines ends when its context does, also while it waits for the rest of a line.
func TestInterruptedLines(t *testing.T) {
	s := newService(t, model.PoolLast)
	in, typed := io.Pipe()
	defer typed.Close() // ends the read that goes on
	ctx, interrupt := context.WithCancelCause(t.Context())
	labelled, done := make(chan string), make(chan error)
	go func() {
		done <- s.Lines(ctx, in, s.encode, s.labels, func(line Line) error {
			labelled <- line.Text
			return nil
		})
	}()
	if _, err := io.WriteString(typed, "a\n"); err != nil || <-labelled != "a" {
		t.Fatal(err)
	}
	if _, err := io.WriteString(typed, "b"); err != nil {
		t.Fatal(err)
	}
	interrupt(errBroken)
	if err := <-done; !errors.Is(err, errBroken) {
		t.Errorf("%v, want the reason of the interruption", err)
	}
}
