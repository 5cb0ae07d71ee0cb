package sum

import (
	"context"
	"fmt"
	"time"

	"rondo/compute"
)

// Config configures a ring's sum. It is the same on all ranks, but for the memory and the
// callbacks.
type Config struct {
	Gradient *compute.Mirror
	// Finishes are the ends of the gradient prefixes that backward finishes, in order. The last is
	// the whole gradient.
	Finishes []int
	// Overlaps: buckets may travel during the backward pass, since no rank needs the gradient's
	// norm first.
	Overlaps bool
	// BucketBytes is the least size of a bucket, except the last; 0: found by measurement.
	BucketBytes int64
	Ranks       int

	Now   func() time.Time
	Tuned func(Tuning)                                // receives how it is cut; nil: none
	Trace func(bucket string, began, ended time.Time) // receives each bucket's sum; nil: none
}

const floatBytes = 4

// buckets sums a gradient in consecutive ranges. The sum of a bucket begins when backward has
// finished it. That time differs from rank to rank, but all ranks cut the same buckets.
//
// The last bucket waits for the whole gradient. The type that embeds buckets sums it.
type buckets struct {
	Config
	ring  Ring
	ready func(ctx context.Context, end int)             // the method Ready, made once
	probe func(ctx context.Context, buf []float32) error // sums like begin
	// begin starts the sum of a range. ended is nil, or receives the time when it is done.
	begin func(ctx context.Context, first, end int, ended *time.Time) (Pending, error)

	least     int       // size of a bucket but the last; 0: there is one bucket
	ends      []int     // of the buckets
	pending   []Pending // sums that have started
	startedAt []time.Time
	endedAt   []time.Time // of each bucket; zero: when the step's sum has ended
	loaded    time.Time
	err       error // error of a bucket that could not start
	points    profile
	tuning    tuning
}

func newBuckets(c Config, ring Ring) *buckets {
	b := &buckets{Config: c, ring: ring, probe: ring.AllReduce}
	b.begin = func(ctx context.Context, first, end int, ended *time.Time) (Pending, error) {
		return ring.Start(ctx, c.Gradient.Host[first:end], ended)
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

// bucketsOf cuts a gradient at some of points, the ends of its finished prefixes. Each bucket but
// the last has at least this many floats; there are as many buckets as possible.
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

// cut sets buckets of at least this many floats; 0: one bucket.
func (b *buckets) cut(least int) {
	points := b.Finishes
	if least == 0 || !b.Overlaps {
		points = points[len(points)-1:]
	}
	b.least, b.ends = least, bucketsOf(points, least)
	b.endedAt = make([]time.Time, len(b.ends))
}

// Begin implements train.Sum.
func (b *buckets) Begin(ctx context.Context, _ int64, _ float64) (measured bool, err error) {
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

// Ready implements train.Sum. It starts the sums of finished buckets, except the last. Sum returns
// its error.
func (b *buckets) Ready(ctx context.Context, end int) {
	if b.points.ends != nil {
		b.points.pass(end, b.Now())
	}
	for n := len(b.pending); n < len(b.ends)-1 && b.ends[n] <= end && b.err == nil; n++ {
		if b.Trace != nil {
			b.startedAt = append(b.startedAt, b.Now()) // before it begins: it may end at once
		}
		p, err := b.begin(ctx, b.Begun(), b.ends[n], b.ended(n))
		if err != nil {
			b.err = err
			return
		}
		b.pending = append(b.pending, p)
	}
}

// ended returns where the time is kept at which a bucket's sum ends; nil: it is not traced.
func (b *buckets) ended(bucket int) *time.Time {
	if b.Trace == nil {
		return nil
	}
	return &b.endedAt[bucket]
}

// lastEnded records that all is summed but the tail.
func (b *buckets) lastEnded() { b.endedAt[len(b.ends)-1] = b.Now() }

// Load implements train.Sum.
func (b *buckets) Load(ctx context.Context) {
	b.Gradient.Download(ctx, b.ready)
	b.loaded = b.Now()
}

// Sum implements train.Sum: the last bucket is left to Finish.
func (b *buckets) Sum(context.Context) (busy time.Duration, err error) { return 0, b.err }

// collect waits for the sums that have started, and traces all buckets.
func (b *buckets) collect(ctx context.Context) error {
	defer func() {
		clear(b.pending)
		b.pending, b.startedAt = b.pending[:0], b.startedAt[:0]
	}()
	for _, p := range b.pending {
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	if b.Trace != nil {
		b.trace()
	}
	return nil
}

// trace reports the buckets, whose sums have ended. The ring sums one bucket at a time, so a
// bucket's span starts after the one before has ended.
func (b *buckets) trace() {
	var before time.Time
	first := 0
	for i, end := range b.ends {
		began, ended := b.loaded, b.endedAt[i]
		if i < len(b.startedAt) {
			began = b.startedAt[i]
		}
		if began.Before(before) {
			began = before
		}
		if ended.IsZero() {
			ended = b.Now()
		}
		b.Trace(fmt.Sprintf("bucket %d of %d, %d KiB", i+1, len(b.ends),
			(end-first)*floatBytes>>10), began, ended)
		before, first = ended, end
	}
	clear(b.endedAt)
}

// Around sums around the ring. The last bucket travels with the tail.
type Around struct{ *buckets }

// NewAround returns the sum around a ring.
func NewAround(c Config, ring Ring) Around { return Around{newBuckets(c, ring)} }

// Finish implements train.Sum.
func (a Around) Finish(ctx context.Context, out, in [][]float32) error {
	if err := a.ring.AllReduceCarry(ctx, a.Gradient.Host[a.Begun():], out, in); err != nil {
		return err
	}
	if err := a.collect(ctx); err != nil {
		return err
	}
	a.Gradient.Upload()
	return nil
}

// finishApart sums only the tail. The gradient has been summed before, in one piece or in buckets.
func (b *buckets) finishApart(ctx context.Context, out, in [][]float32) error {
	if err := b.ring.AllReduceCarry(ctx, b.Gradient.Behind(), out, in); err != nil {
		return err
	}
	if err := b.collect(ctx); err != nil {
		return err
	}
	b.Gradient.Upload()
	return nil
}
