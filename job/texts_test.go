package job

import (
	"context"
	"errors"
	"slices"
	"testing"

	"rondo/model"
)

// chanting is a generator of the tokens 0, 1, 2...
type chanting struct{}

func (chanting) Generate(
	_ context.Context, _ []int32, n int, how model.Sampling,
) (text []int32, err error) {
	for i := range int32(n) {
		if err := how.Each(i, -1); err != nil {
			return text, err
		}
		text = append(text, i)
	}
	return text, nil
}

func (chanting) Close() {}

// TestOneAtATime: a reader that is slow, or refuses, holds up no other.
func TestOneAtATime(t *testing.T) {
	const n = 20
	g := &oneAtATime{chanting{}, make(chan struct{}, 1)}
	read := func(each func(int32) error) ([]int32, error) {
		return g.Generate(t.Context(), nil, n, model.Sampling{
			Each: func(token int32, _ float64) error { return each(token) }})
	}
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := read(func(token int32) error {
			if token == 0 {
				close(begun)
				<-goOn
			}
			return nil
		})
		ended <- err
	}()
	<-begun
	var heard []int32
	text, err := read(func(token int32) error {
		heard = append(heard, token)
		return nil
	})
	if err != nil || len(text) != n || !slices.Equal(heard, text) {
		t.Errorf("beside a slow reader: %v, heard %v (%v)", text, heard, err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	refusal := errors.New("enough")
	if _, err := read(func(token int32) error {
		if token == 3 {
			return refusal
		}
		return nil
	}); !errors.Is(err, refusal) {
		t.Errorf("%v, want %v", err, refusal)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.turn <- struct{}{} // another text is written
	if _, err := g.Generate(ctx, nil, n, model.Sampling{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}
