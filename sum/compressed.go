package sum

import (
	"context"
	"time"

	"rondo/allreduce/compress"
	"rondo/compute"
)

// Update is what a compressed sum changes of the optimizer's rule, because of what it sums.
type Update struct {
	// Scale is what a gradient is multiplied by while it travels: a power of two, for numbers that
	// have a narrow range on their way; 0: 1.
	Scale float32
	// HoldAfter is the last step whose gradient the optimizer's second moment takes in: gradients
	// that arrive in bursts would spoil it. See compute.Update.Held. 0: it takes in all.
	HoldAfter int64
	// MomentumAfter is the last step with the momentum in the optimizer. From then on each rank has
	// that of its own gradients (compress.Momentum), and the momenta are summed. 0: it always is.
	MomentumAfter int64
	// Decay is that momentum's.
	Decay float64
}

// Compressed sums with fewer bytes, as a compress.Summer does. That lasts from ring to ring with
// what it keeps.
type Compressed struct {
	*buckets
	summer  *compress.Summer
	update  Update
	resumed bool    // in this ring
	step    int64   // in hand, from 1
	rate    float64 // that its sum changes the parameters at
}

// handed is a range that the Summer waits for with all others.
type handed struct{}

func (handed) Wait(context.Context) error { return nil }

// NewCompressed returns a sum by a Summer that has joined the ring.
func NewCompressed(c Config, ring Ring, summer *compress.Summer, update Update) *Compressed {
	c.Overlaps = c.Overlaps && summer.Overlaps()
	s := &Compressed{buckets: newBuckets(c, ring), summer: summer, update: update}
	s.begin = func(ctx context.Context, _, end int) (Pending, error) {
		return handed{}, summer.Ready(ctx, c.Gradient.Gradient(), end)
	}
	s.probe = summer.Probe
	return s
}

// Resume implements train.Sum. In a ring's first step the Summer may have to drop what it keeps;
// later the step before is the one that it has summed.
func (c *Compressed) Resume(step, ring int64, skipped bool) {
	if c.resumed {
		c.summer.Commit(skipped)
	} else {
		c.summer.Resume(step, ring, skipped)
	}
	c.resumed = true
}

// Begin implements train.Sum.
func (c *Compressed) Begin(ctx context.Context, step int64, rate float64) (met bool, err error) {
	c.step, c.rate = step, rate
	return c.tune(ctx)
}

// Touch implements train.Sum.
func (c *Compressed) Touch(rows []int32) { c.summer.Touch(rows) }

// Rule implements train.Sum. The weights' decay is not in the summed momenta. It counts as often as
// if it were.
func (c *Compressed) Rule(step int64, u compute.Update) compute.Update {
	if after := c.update.HoldAfter; after > 0 && step > after && u.Held == 0 {
		u.Held = u.Step - 1
	}
	if after := c.update.MomentumAfter; after > 0 && step > after {
		if u.Optimizer == compute.Momentum || u.Optimizer == compute.Nesterov {
			u.WeightDecay = float32(float64(u.WeightDecay) / (1 - c.update.Decay))
		}
		u.Momentum, u.Beta1 = 0, 0
	}
	return u
}

// Sum implements train.Sum.
func (c *Compressed) Sum(ctx context.Context) (busy time.Duration, err error) {
	if c.err != nil {
		return 0, c.err
	}
	gradient := c.Gradient.Gradient()
	if s := c.update.Scale; s != 0 {
		scale(gradient, s)
	}
	if err := c.summer.Sum(ctx, c.step, c.rate, gradient); err != nil {
		return 0, err
	}
	if s := c.update.Scale; s != 0 {
		scale(gradient, 1/s)
	}
	return c.summer.Busy(), nil
}

// scale multiplies by a power of two.
func scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// Finish implements train.Sum.
func (c *Compressed) Finish(ctx context.Context, out, in []float32) error {
	return c.finishApart(ctx, out, in)
}
