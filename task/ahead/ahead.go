// Package ahead reads a task's batches in a goroutine, one ahead of the batch in use. It may import
// train alone.
package ahead

import (
	"context"
	"fmt"
	"iter"

	"rondo/train"
)

// Ledger records what is read, before the gradients are summed.
type Ledger interface {
	// Intend records a read for a step, from 1: the inputs [T, count] of the lanes [first,
	// first+count), in the step's segment, from 0. It must not keep inputs.
	Intend(step int64, segment, first, count int, inputs []int32) error
}

// Reader reads batches of type B.
type Reader[B any] struct {
	At          train.Span // of the batch that Next returned
	ledger      Ledger
	ready, free chan *batch[B]
	current     *batch[B] // in use by the caller
	cancel      context.CancelFunc
	done        chan struct{}
}

type batch[B any] struct {
	data   *B
	at     train.Span
	inputs []int32
	err    error
}

// batches are in use at a time: one that is read, one that the caller has.
const batches = 2

// Read starts to read a batch for each span, in order. newBatch makes a batch; read fills it and
// returns its inputs for the ledger, which may be nil. Close stops the reading.
func Read[B any](
	ctx context.Context, spans iter.Seq[train.Span], ledger Ledger, newBatch func() *B,
	read func(ctx context.Context, at train.Span, into *B) (inputs []int32, err error),
) *Reader[B] {
	ctx, cancel := context.WithCancel(ctx)
	a := &Reader[B]{ledger: ledger, ready: make(chan *batch[B], batches),
		free: make(chan *batch[B], batches), cancel: cancel, done: make(chan struct{})}
	for range batches {
		a.free <- &batch[B]{data: newBatch()}
	}
	go func() {
		defer close(a.done)
		for at := range spans {
			select {
			case b := <-a.free:
				b.at = at
				var err error
				b.inputs, err = read(ctx, at, b.data)
				b.err = err
				a.ready <- b // never blocks: it has room for every batch; it is Next's now
				if err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return a
}

// Next returns the next batch and tells the ledger of it. The caller may use it until the next
// call. Next must not be called more often than there are spans, nor after an error.
func (a *Reader[B]) Next(ctx context.Context) (*B, error) {
	if a.current != nil {
		a.free <- a.current
		a.current = nil
	}
	select {
	case b := <-a.ready:
		a.current, a.At = b, b.at
		if b.err == nil && a.ledger != nil {
			lanes := b.at.Lanes
			b.err = a.ledger.Intend(b.at.Step, b.at.Part, lanes.First, lanes.Count, b.inputs)
			if b.err != nil {
				b.err = fmt.Errorf("noting what was read: %w", b.err)
			}
		}
		return b.data, b.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close stops the goroutine and waits for it.
func (a *Reader[B]) Close() {
	a.cancel()
	<-a.done
}
