package train

import (
	"context"
	"iter"
)

// Batches are the token ids to train on, in segments of T tokens of each lane. Which those are is a
// function of the segment, an index from 0, and the lane alone. A step reads the next K segments.
type Batches interface {
	// Fill reads a segment of the lanes [first, first+count): inputs and targets, each [T, count].
	// It is called by one goroutine, which is not Run's.
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
	// Reset says whether the state of all lanes is zero before a segment.
	Reset(segment int64) bool
	// SegmentsPerEpoch is the same for every epoch, at least 1. Unlike Fill it and Reset may be
	// called while Fill runs.
	SegmentsPerEpoch() int64
}

// fill is Batches.Fill.
type fill func(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error

// span is a segment of the text, of some lanes.
type span struct {
	segment int64
	lanes   laneGroup
}

// batch is the tokens of one span, [T, B] each.
type batch struct {
	inputs, targets []int32
	err             error
}

// ahead reads batches in a goroutine, one ahead of that which is computed.
type ahead struct {
	ready, free chan *batch
	current     *batch // in the caller's hands
	cancel      context.CancelFunc
	done        chan struct{}
}

// readAhead starts to read, of so many tokens each time; close ends it.
func readAhead(ctx context.Context, read fill, size int, spans iter.Seq[span]) *ahead {
	const batches = 2 // one that is read, one that is computed
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{ready: make(chan *batch, batches), free: make(chan *batch, batches),
		cancel: cancel, done: make(chan struct{})}
	for range batches {
		a.free <- &batch{inputs: make([]int32, size), targets: make([]int32, size)}
	}
	go func() {
		defer close(a.done)
		for r := range spans {
			select {
			case b := <-a.free:
				b.err = read(ctx, r.segment, r.lanes.first, r.lanes.count, b.inputs, b.targets)
				a.ready <- b // has room for all there are
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

// next returns the next batch, which is the caller's until the next call. It must not be called
// more often than there are spans, nor after an error.
func (a *ahead) next(ctx context.Context) (*batch, error) {
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
func (a *ahead) close() {
	a.cancel()
	<-a.done
}
