package label

import (
	"context"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"rondo/compute/cpu"
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
	p := NewPredictor(newLabeller(t, set, pool), 9)
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

// A predictor takes memory for the lines that it reads, not for the longest that it may read.
func TestPredictorGrows(t *testing.T) {
	l := newLabeller(t, openSet(t, model.PoolNone), model.PoolNone)
	device := l.Device().(*cpu.Device)
	p := NewPredictor(l, 1<<20)
	defer p.Close()
	model, _ := device.Bytes()
	for _, n := range []int{3, 2, 40} {
		found, err := p.Predict([][]int32{make([]int32, n)})
		if err != nil || len(found[0].Labels) != n {
			t.Fatalf("%d tokens: %+v, %v", n, found, err)
		}
		if now, _ := device.Bytes(); now-model > 16<<20 {
			t.Errorf("%d tokens take %d bytes", n, now-model)
		}
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
