package corpus

import (
	"context"
	"errors"
	"fmt"
)

// Batches is what a Prefetcher reads ahead from: a Reader or an Evaluation.
type Batches interface {
	Fill(ctx context.Context, step int64, first, count int, inputs, targets []int32) error
}

// maxPrefetch bounds the batches that are read ahead.
const maxPrefetch = 64

// PrefetchConfig says what is read ahead.
type PrefetchConfig struct {
	BPTT         int   // T
	First, Count int   // the lanes [First, First+Count)
	From, To     int64 // the steps [From, To)
	Depth        int   // batches read ahead of the caller, 1 to 64
}

// Batch is one step's segments.
type Batch struct {
	Step            int64
	Inputs, Targets []int32 // [T, Count]
	err             error
}

// ErrNoMoreSteps is what Next returns after the last step.
var ErrNoMoreSteps = errors.New("no more steps")

// Prefetcher reads batches, step by step, in a goroutine of its own. Its buffers go round, so
// that nothing is allocated after the start.
type Prefetcher struct {
	ready chan *Batch
	free  chan *Batch
	last  *Batch // in the caller's hands
	stop  context.CancelFunc
	done  chan struct{}
}

// NewPrefetcher starts to read from the batches, which are its own until Close.
func NewPrefetcher(from Batches, cfg PrefetchConfig) (*Prefetcher, error) {
	if cfg.Depth < 1 || cfg.Depth > maxPrefetch {
		return nil, fmt.Errorf("prefetch: depth %d is not in [1, %d]", cfg.Depth, maxPrefetch)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Prefetcher{
		ready: make(chan *Batch, cfg.Depth+1),
		free:  make(chan *Batch, cfg.Depth+1),
		stop:  stop,
		done:  make(chan struct{}),
	}
	size := cfg.BPTT * cfg.Count
	for range cfg.Depth + 1 { // the caller holds one while Depth are read ahead
		p.free <- &Batch{Inputs: make([]int32, size), Targets: make([]int32, size)}
	}
	go p.run(ctx, from, cfg)
	return p, nil
}

// run reads until the last step, an error or the end of ctx, and then closes ready.
func (p *Prefetcher) run(ctx context.Context, from Batches, cfg PrefetchConfig) {
	defer close(p.done)
	defer close(p.ready)
	for step := cfg.From; step < cfg.To; step++ {
		var batch *Batch
		select {
		case batch = <-p.free:
		case <-ctx.Done():
			return
		}
		batch.Step = step
		batch.err = from.Fill(ctx, step, cfg.First, cfg.Count, batch.Inputs, batch.Targets)
		p.ready <- batch // has room for every batch there is
		if batch.err != nil {
			return
		}
	}
}

// Next returns the next step's batch, which is valid until the next call. It waits until ctx
// ends. After the last step, or an error, it returns ErrNoMoreSteps.
func (p *Prefetcher) Next(ctx context.Context) (*Batch, error) {
	if p.last != nil {
		p.free <- p.last
		p.last = nil
	}
	select {
	case batch, ok := <-p.ready:
		if !ok {
			return nil, ErrNoMoreSteps
		}
		if batch.err != nil {
			return nil, batch.err
		}
		p.last = batch
		return batch, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close stops reading and waits for the goroutine.
func (p *Prefetcher) Close() {
	p.stop()
	<-p.done
}
