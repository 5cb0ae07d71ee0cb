package train

import "context"

// Batches are the token ids to train on. Which a step reads is a function of the step and the
// lane alone.
type Batches interface {
	// Fill reads what the lanes [first, first+count) read at a step, an index from 0: inputs and
	// targets, each [T, count]. It is called by one goroutine, which is not Run's.
	Fill(ctx context.Context, step int64, first, count int, inputs, targets []int32) error
	// Reset says whether the state of all lanes is zero before a step.
	Reset(step int64) bool
	// StepsPerEpoch is the same for every epoch, at least 1. Unlike Fill it and Reset may be
	// called while Fill runs.
	StepsPerEpoch() int64
}

// fill is Batches.Fill.
type fill func(ctx context.Context, step int64, first, count int, inputs, targets []int32) error

// batch is one step's tokens, [T, B] each.
type batch struct {
	inputs, targets []int32
	err             error
}

// ahead reads batches in a goroutine, one ahead of the step that is computed.
type ahead struct {
	ready, free chan *batch
	current     *batch // in the caller's hands
	cancel      context.CancelFunc
	done        chan struct{}
}

// readAhead starts to read the steps [from, to); close ends it.
func readAhead(ctx context.Context, read fill, size, first, count int, from, to int64) *ahead {
	const batches = 2 // one that is read, one that is computed
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{ready: make(chan *batch, batches), free: make(chan *batch, batches),
		cancel: cancel, done: make(chan struct{})}
	for range batches {
		a.free <- &batch{inputs: make([]int32, size), targets: make([]int32, size)}
	}
	go func() {
		defer close(a.done)
		for step := from; step < to; step++ {
			select {
			case b := <-a.free:
				b.err = read(ctx, step, first, count, b.inputs, b.targets)
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

// next returns the next step's batch, which is the caller's until the next call. It must not be
// called more often than there are steps, nor after an error.
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
