package lm

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"rondo/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spansOf returns the segments 0 to n-1 of two lanes.
func spansOf(n int64) func(func(train.Span) bool) {
	return func(yield func(train.Span) bool) {
		for segment := range n {
			if !yield(train.Span{Segment: segment, Lanes: train.Lanes{First: 3, Count: 2}}) {
				return
			}
		}
	}
}

var errTest = errors.New("it broke")

// Batches come in the order of the spans, and at most one batch is read ahead. An error comes with
// its span.
func TestPrefetch(t *testing.T) {
	var begun atomic.Int64
	read := func(_ context.Context, segment int64, first, count int, in, _ []int32) error {
		begun.Store(segment + 1)
		if segment == 4 {
			return errTest
		}
		in[0], in[1], in[2] = int32(segment), int32(first), int32(count)
		return nil
	}
	a := prefetch(t.Context(), read, 3, spansOf(9))
	defer a.close()
	for segment := range int64(4) {
		b, err := a.next(t.Context())
		if err != nil || b.span.Segment != segment ||
			!slices.Equal(b.inputs, []int32{int32(segment), 3, 2}) {
			t.Fatalf("segment %d: %+v, %v", segment, b, err)
		}
		if ahead := begun.Load() - segment - 1; ahead > 1 {
			t.Errorf("segment %d is computed, and %d more were read", segment, ahead)
		}
	}
	if _, err := a.next(t.Context()); !errors.Is(err, errTest) {
		t.Errorf("%v, want that of the fifth segment", err)
	}
}

// close waits for a read that ignores its context's end; next does not wait.
func TestPrefetchEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var reading atomic.Int64
	started := make(chan struct{})
	read := func(context.Context, int64, int, int, []int32, []int32) error {
		reading.Add(1)
		defer reading.Add(-1)
		close(started)
		<-ctx.Done()
		for range 1000 {
			runtime.Gosched()
		}
		return ctx.Err()
	}
	a := prefetch(ctx, read, 1, spansOf(1))
	<-started
	cancel(errTest)
	if _, err := a.next(ctx); !errors.Is(err, errTest) && !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's cause", err)
	}
	a.close()
	if n := reading.Load(); n != 0 {
		t.Errorf("%d reads go on behind close", n)
	}
}
