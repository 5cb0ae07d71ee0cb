package ahead

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"rondo/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSpan() *train.Span { return &train.Span{} }

var errTest = errors.New("it broke")

// Batches come in the order of the spans, and at most one batch is read ahead. An error comes with
// its span.
func TestRead(t *testing.T) {
	lanes := train.Lanes{First: 3, Count: 2}
	var begun atomic.Int64
	read := func(_ context.Context, at train.Span, into *train.Span) ([]int32, error) {
		begun.Store(at.Segment + 1)
		if at.Segment == 4 {
			return nil, errTest
		}
		*into = at
		return nil, nil
	}
	a := Read(t.Context(), train.Spans(9, lanes), nil, newSpan, read)
	defer a.Close()
	for segment := range int64(4) {
		b, err := a.Next(t.Context())
		want := train.Span{Segment: segment, Lanes: lanes}
		if err != nil || *b != want || a.At != want {
			t.Fatalf("segment %d: %+v, %v", segment, b, err)
		}
		if ahead := begun.Load() - segment - 1; ahead > 1 {
			t.Errorf("segment %d is computed, and %d more were read", segment, ahead)
		}
	}
	if _, err := a.Next(t.Context()); !errors.Is(err, errTest) {
		t.Errorf("%v, want that of the fifth segment", err)
	}
}

// Close waits for a read that ignores its context's end; Next does not wait.
func TestReadEnds(t *testing.T) {
	lanes := train.Lanes{Count: 1}
	ctx, cancel := context.WithCancelCause(t.Context())
	var reading atomic.Int64
	started := make(chan struct{})
	read := func(context.Context, train.Span, *train.Span) ([]int32, error) {
		reading.Add(1)
		defer reading.Add(-1)
		close(started)
		<-ctx.Done()
		for range 1000 {
			runtime.Gosched()
		}
		return nil, ctx.Err()
	}
	a := Read(ctx, train.Spans(1, lanes), nil, newSpan, read)
	<-started
	cancel(errTest)
	if _, err := a.Next(ctx); !errors.Is(err, errTest) && !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's cause", err)
	}
	a.Close()
	if n := reading.Load(); n != 0 {
		t.Errorf("%d reads go on behind Close", n)
	}
}
