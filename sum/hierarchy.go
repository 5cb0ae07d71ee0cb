package sum

import (
	"context"
	"time"
)

// Hierarchy sums within hosts first, and then across hosts. The tail goes around the ring of all
// ranks.
type Hierarchy struct{ *buckets }

// NewHierarchy returns a sum that starts each range by start. All ranks start the ranges in the
// same order.
func NewHierarchy(
	c Config, ring Ring,
	start func(ctx context.Context, buf []float32, ended *time.Time) (Pending, error),
) Hierarchy {
	b := newBuckets(c, ring)
	b.begin = func(ctx context.Context, first, end int, ended *time.Time) (Pending, error) {
		return start(ctx, c.Gradient.Host[first:end], ended)
	}
	b.probe = func(ctx context.Context, buf []float32) error {
		p, err := start(ctx, buf, nil)
		if err != nil {
			return err
		}
		return p.Wait(ctx)
	}
	return Hierarchy{b}
}

// Sum implements train.Sum.
func (h Hierarchy) Sum(ctx context.Context) (busy time.Duration, err error) {
	if h.err != nil {
		return 0, h.err
	}
	p, err := h.begin(ctx, h.Begun(), len(h.Gradient.Device), h.ended(len(h.ends)-1))
	if err != nil {
		return 0, err
	}
	return 0, p.Wait(ctx)
}

// Finish implements train.Sum.
func (h Hierarchy) Finish(ctx context.Context, out, in [][]float32) error {
	return h.finishApart(ctx, out, in)
}
