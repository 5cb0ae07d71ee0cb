package train

import (
	"context"
	"time"
)

// Summer sums a gradient over the ranks in another way than the Reducer does, such as with fewer
// bytes. All ranks have one, or none. It lasts from ring to ring with what it keeps, which belongs
// to the last step that was committed; the step in hand has its own until then.
type Summer interface {
	// Resume begins a ring, which goes on after a step that was completed in the ring completed.
	// Skipped: the step was not applied.
	Resume(step, completed int64, skipped bool)
	// Overlaps says whether Ready begins anything: all ranks' say the same.
	Overlaps() bool
	// Touch adds token ids to those that this rank's inputs have in the step.
	Touch(ids []int32)
	// Ready says that the gradient, in host memory, is finished up to end: so much may be summed.
	// All ranks call it with the same ends.
	Ready(ctx context.Context, gradient []float32, end int) error
	// Sum replaces the gradient by its sum over the ranks, the same bits on all, and waits for it.
	// Step is the one that it completes, and rate what the sum is multiplied by when it changes the
	// parameters. The Reducer's part comes behind it: whoever completes that knows that every rank
	// has the sum.
	Sum(ctx context.Context, step int64, rate float64, gradient []float32) error
	// Busy is how long the last Sum computed, and did not wait for the ring.
	Busy() time.Duration
	// Probe sums buf as a part of a gradient is summed, and keeps nothing of it: only how long that
	// takes is asked.
	Probe(ctx context.Context, buf []float32) error
	// Commit ends the step of the last Sum.
	Commit(skipped bool)
}

// handed is a bucket that a Summer has, and which is waited for with all others.
type handed struct{}

func (handed) Wait(context.Context) error { return nil }

// start begins to sum the floats of the gradient that are behind the buckets begun, up to end.
func (x *exchange) start(ctx context.Context, end int) (Pending, error) {
	if x.summer == nil {
		return x.reducer.Start(ctx, x.wire[x.begun():end])
	}
	return handed{}, x.summer.Ready(ctx, x.wire[:len(x.grads)], end)
}

// resumeSummer says after which step a ring begins.
func (t *Trainer) resumeSummer() {
	if t.exchange.summer != nil {
		t.exchange.summer.Resume(t.progress.Step, t.committed, t.progress.NonfiniteRun > 0)
	}
}
