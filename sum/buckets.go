package sum

import (
	"context"
	"fmt"
	"time"

	"rondo/compute"
)

// Config is what a ring's sum is made with. All ranks' are the same but for the memory and the
// callbacks.
type Config struct {
	Gradient *compute.Mirror
	// Finishes are up to where backward finishes the gradient, in order. The last is all of it.
	Finishes []int
	// Overlaps says that the gradient may travel while backward goes on: no rank has to know its
	// norm before.
	Overlaps bool
	// BucketBytes is how large a bucket is at least, but for the last; 0: it is measured.
	BucketBytes int64
	Ranks       int

	Now   func() time.Time
	Tuned func(Tuning)                                // hears what was measured; nil: nobody
	Trace func(bucket string, began, ended time.Time) // hears of each bucket's sum; nil: nobody
}

const floatBytes = 4

// buckets sums a gradient in buckets. Each is a range that begins where the one before ends, and
// its sum begins as soon as backward has finished it. When that is differs from rank to rank; where
// the buckets end is the same on all.
//
// The last bucket waits for the whole gradient, and for whoever embeds buckets to sum it.
type buckets struct {
	Config
	ring  Ring
	ready func(ctx context.Context, end int)                         // Ready, made once
	begin func(ctx context.Context, first, end int) (Pending, error) // begins to sum a range
	probe func(ctx context.Context, buf []float32) error             // sums as a range is summed

	ends    []int     // of the buckets
	pending []Pending // those that are on their way
	handed  []time.Time
	loaded  time.Time
	err     error // of one that could not be begun
	points  profile
	tuning  tuning
}

func newBuckets(c Config, ring Ring) *buckets {
	b := &buckets{Config: c, ring: ring, probe: ring.AllReduce}
	b.begin = func(ctx context.Context, first, end int) (Pending, error) {
		return ring.Start(ctx, c.Gradient.Host[first:end])
	}
	b.ready = b.Ready
	least := int(c.BucketBytes / floatBytes)
	if c.BucketBytes > 0 {
		least = max(least, 1)
	}
	b.cut(least)
	b.tuning.wanted = least == 0 && c.Overlaps && len(c.Gradient.Device) >= leastTuned &&
		len(c.Finishes) > 1
	return b
}

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

// cut has the gradient travel in buckets of at least so many floats; 0: in one.
func (b *buckets) cut(least int) {
	points := b.Finishes
	if least == 0 || !b.Overlaps {
		points = points[len(points)-1:]
	}
	b.ends = bucketsOf(points, least)
}

// Begin implements train.Sum.
func (b *buckets) Begin(ctx context.Context, _ int64, _ float64) (met bool, err error) {
	return b.tune(ctx)
}

// Resume implements train.Sum.
func (b *buckets) Resume(int64, int64, bool) {}

// Early implements train.Sum.
func (b *buckets) Early() bool { return len(b.ends) > 1 || b.points.ends != nil }

// Touch implements train.Sum.
func (b *buckets) Touch([]int32) {}

// Rule implements train.Sum.
func (b *buckets) Rule(_ int64, u compute.Update) compute.Update { return u }

// Stage implements train.Sum.
func (b *buckets) Stage() []float32 { return b.Gradient.Stage() }

// Begun implements train.Sum.
func (b *buckets) Begun() int {
	if n := len(b.pending); n > 0 {
		return b.ends[n-1]
	}
	return 0
}

// Ready implements train.Sum. It begins to sum the buckets that are finished, but for the last.
// What fails is told by Sum.
func (b *buckets) Ready(ctx context.Context, end int) {
	if b.points.ends != nil {
		b.points.pass(end, b.Now())
	}
	for n := len(b.pending); n < len(b.ends)-1 && b.ends[n] <= end && b.err == nil; n++ {
		p, err := b.begin(ctx, b.Begun(), b.ends[n])
		if err != nil {
			b.err = err
			return
		}
		b.pending = append(b.pending, p)
		if b.Trace != nil {
			b.handed = append(b.handed, b.Now())
		}
	}
}

// Load implements train.Sum.
func (b *buckets) Load(ctx context.Context) {
	b.Gradient.Download(ctx, b.ready)
	b.loaded = b.Now()
}

// Sum implements train.Sum: the last bucket is left to Finish.
func (b *buckets) Sum(context.Context) (busy time.Duration, err error) { return 0, b.err }

// collect waits until the buckets that are on their way have been summed, and with them all those
// that the caller has waited for.
func (b *buckets) collect(ctx context.Context) error {
	defer func() {
		clear(b.pending)
		b.pending, b.handed = b.pending[:0], b.handed[:0]
	}()
	var before time.Time
	for i, p := range b.pending {
		if err := p.Wait(ctx); err != nil {
			return err
		}
		before = b.trace(i, p, before)
	}
	for i := len(b.pending); i < len(b.ends); i++ {
		before = b.trace(i, nil, before)
	}
	return nil
}

// trace tells of a bucket that has been summed, or is now. The ring sums one at a time: before it
// has done with the one before, a bucket waits for its turn.
func (b *buckets) trace(bucket int, p Pending, before time.Time) (ended time.Time) {
	if b.Trace == nil {
		return before
	}
	began := b.loaded
	if bucket < len(b.handed) {
		began = b.handed[bucket]
	}
	ended = b.Now()
	if e, ok := p.(Ender); ok {
		ended = e.Ended()
	}
	if began.Before(before) {
		began = before
	}
	first := 0
	if bucket > 0 {
		first = b.ends[bucket-1]
	}
	b.Trace(fmt.Sprintf("bucket %d of %d, %d KiB", bucket+1, len(b.ends),
		(b.ends[bucket]-first)*floatBytes>>10), began, ended)
	return ended
}

// Around sums around the ring. The last bucket travels with the tail.
type Around struct{ *buckets }

// NewAround returns the sum around a ring.
func NewAround(c Config, ring Ring) Around { return Around{newBuckets(c, ring)} }

// Finish implements train.Sum.
func (a Around) Finish(ctx context.Context, out, in []float32) error {
	if err := a.ring.AllReduceCarry(ctx, a.Gradient.Host[a.Begun():], out, in); err != nil {
		return err
	}
	if err := a.collect(ctx); err != nil {
		return err
	}
	a.Gradient.Upload()
	return nil
}

// finishApart sums the tail alone. The gradient was summed before, in one piece or in buckets.
func (b *buckets) finishApart(ctx context.Context, out, in []float32) error {
	if err := b.ring.AllReduceCarry(ctx, b.Gradient.Behind(), out, in); err != nil {
		return err
	}
	if err := b.collect(ctx); err != nil {
		return err
	}
	b.Gradient.Upload()
	return nil
}
