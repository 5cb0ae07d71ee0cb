package lm

import (
	"context"
	"iter"

	"rondo/train"
)

// fill is Batches.Fill.
type fill func(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error

// batch is the tokens of one span, [T, B] each.
type batch struct {
	span            train.Span
	inputs, targets []int32
	err             error
}

func newBatch(tokens int) *batch {
	return &batch{inputs: make([]int32, tokens), targets: make([]int32, tokens)}
}

// prefetcher reads batches in a goroutine, one ahead of the batch in use.
type prefetcher struct {
	ready, free chan *batch
	current     *batch // in use by the caller
	cancel      context.CancelFunc
	done        chan struct{}
}

// prefetch starts to read batches of size tokens, one per span. close stops it.
func prefetch(ctx context.Context, read fill, size int, spans iter.Seq[train.Span]) *prefetcher {
	const batches = 2 // one being read, one in use
	ctx, cancel := context.WithCancel(ctx)
	a := &prefetcher{ready: make(chan *batch, batches), free: make(chan *batch, batches),
		cancel: cancel, done: make(chan struct{})}
	for range batches {
		a.free <- newBatch(size)
	}
	go func() {
		defer close(a.done)
		for span := range spans {
			select {
			case b := <-a.free:
				b.span = span
				b.err = read(ctx, span.Segment, span.Lanes.First, span.Lanes.Count, b.inputs,
					b.targets)
				a.ready <- b // never blocks: it has room for every batch
				if b.err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return a
}

// next returns the next batch. The caller may use it until the next call. next must not be called
// more often than there are spans, nor after an error.
func (a *prefetcher) next(ctx context.Context) (*batch, error) {
	if a.current != nil {
		a.free <- a.current
		a.current = nil
	}
	select {
	case b := <-a.ready:
		a.current = b
		return b, b.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close stops the goroutine and waits for it.
func (a *prefetcher) close() {
	a.cancel()
	<-a.done
}
