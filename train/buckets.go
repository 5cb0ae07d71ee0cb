package train

import (
	"context"
	"time"

	"rondo/compute"
)

// Pending is a sum over the ranks that goes on while its buffer's owner does other things.
type Pending interface {
	// Wait waits for the sum. After an error the buffer may be anything, and may be used until the
	// ring is left.
	Wait(ctx context.Context) error
}

// The gradient is summed in buckets: each is a range that begins where the one before ends, and is
// handed to the ring as soon as the backward pass has finished it. The last one travels with the
// tail, after all others, and whoever completes it has them all: the ring's collectives pass each
// rank in their order, so that the step is committed by one sum as it is without buckets.
//
// When a bucket is handed over is each rank's own affair; where the buckets end is the same on all.

const floatBytes = 4

// bucketsOf cuts a gradient at points that backward finishes it up to, the last of which is its
// end: into the most buckets of at least so many floats each, but for the last, which is the rest.
func bucketsOf(points []int, least int) (ends []int) {
	begin := 0
	for i, end := range points {
		if i == len(points)-1 || end-begin >= least {
			ends = append(ends, end)
			begin = end
		}
	}
	return ends
}

// bucketed says whether buckets may travel while backward goes on: not where a rank must know its
// gradient's norm before it is summed, not where the ring does not sum it, or not by itself, and
// not where a Summer needs the whole or each rank has the sum of a range only.
func (t *Trainer) bucketed() bool {
	return t.ring.Reducer != nil && t.ring.Group == nil && !t.clipsEach() &&
		t.cfg.LaneGroups == 0 && t.shards == nil &&
		(t.ring.Summer == nil || t.ring.Summer.Overlaps())
}

// cut has the gradient travel in buckets of at least so many floats in this ring; 0: in one.
func (t *Trainer) cut(least int) {
	points := t.finishes
	if least == 0 || !t.bucketed() {
		points = points[len(points)-1:]
	}
	t.exchange.ends = bucketsOf(points, least)
}

// finished is what a step's last run is to call when a part of the gradient is there; nil where it
// cannot.
func (t *Trainer) finished(ctx context.Context) func(end int) {
	x := t.exchange
	if !x.inPlace || t.records || !t.bucketed() || t.spoil.NaN ||
		len(x.ends) == 1 && x.points.ends == nil {
		return nil
	}
	return func(end int) {
		t.fold.addSegmentsUpTo(end)
		x.handOver(ctx, end)
	}
}

// enter readies the exchange for a ring.
func (x *exchange) enter(r Ring) {
	x.reducer, x.group, x.rank, x.ranks = r.Reducer, r.Group, r.Rank, len(r.LaneEnds)
	x.err, x.summer, x.busy = nil, r.Summer, 0
	x.forgetPending()
}

func (x *exchange) forgetPending() {
	clear(x.pending)
	x.pending, x.handed = x.pending[:0], x.handed[:0]
}

// begun is how far the buckets that are on their way reach.
func (x *exchange) begun() int {
	if n := len(x.pending); n > 0 {
		return x.ends[n-1]
	}
	return 0
}

// handOver notes that the gradient is finished up to end, and begins to sum the buckets that are,
// but for the last. What fails is told by sum.
func (x *exchange) handOver(ctx context.Context, end int) {
	if x.points.ends != nil {
		x.points.pass(end, x.now())
	}
	for n := len(x.pending); n < len(x.ends)-1 && x.ends[n] <= end && x.err == nil; n++ {
		p, err := x.start(ctx, x.ends[n])
		if err != nil {
			x.err = err
			return
		}
		x.pending = append(x.pending, p)
		if x.laps.tracer != nil {
			x.handed = append(x.handed, x.now())
		}
	}
}

// handOverAll brings the whole gradient to host memory, part by part where a run has staged it, and
// begins to sum all buckets but the last.
func (x *exchange) handOverAll(ctx context.Context) {
	n := len(x.grads)
	if x.inPlace {
		x.handOver(ctx, n)
		return
	}
	if x.stager != nil && len(x.staged) == 0 {
		x.staged = []compute.Staged{{End: n, Wait: x.stager.StartDownload(x.wire[:n], x.grads)}}
	}
	if x.stager == nil {
		x.dev.Download(x.wire[:n], x.grads)
	}
	for _, part := range x.staged {
		part.Wait()
		x.handOver(ctx, part.End)
	}
	x.staged = nil
	x.handOver(ctx, n)
}

// collect waits until all buckets that are on their way have been summed.
func (x *exchange) collect(ctx context.Context, byRing bool) error {
	defer x.forgetPending()
	var before time.Time
	for i, p := range x.pending {
		if err := p.Wait(ctx); err != nil {
			return err
		}
		before = x.traceBucket(i, p, before)
	}
	if byRing {
		x.traceBucket(len(x.pending), nil, before)
	}
	return nil
}
