package sum

import (
	"context"
	"time"

	"rondo/allreduce/compress"
	"rondo/compute"
)

// Update says how a compressed sum changes the optimizer's rule.
type Update struct {
	// Scale multiplies the gradient while it travels, for number formats with a narrow range. It is
	// a power of two; 0: 1.
	Scale float32
	// HoldAfter is the last step whose gradient enters the optimizer's second moment; later
	// gradients arrive in bursts, which would spoil it. See compute.Update.Held. 0: all steps.
	HoldAfter int64
	// MomentumAfter is the last step in which the optimizer applies the momentum. Later each rank
	// keeps the momentum of its own gradients (compress.Momentum), and the momenta are summed. 0:
	// the optimizer always applies it.
	MomentumAfter int64
	// Decay is the decay of that momentum.
	Decay float64
}

// Compressed sums with fewer bytes, by a compress.Summer. The Summer and its residuals outlive the
// ring.
type Compressed struct {
	*buckets
	summer  *compress.Summer
	update  Update
	resumed bool    // Resume was called in this ring
	step    int64   // current step, from 1
	rate    float64 // the parameters change by rate times the sum
}

// alreadyHanded is a range whose sum the Summer waits for itself.
type alreadyHanded struct{}

func (alreadyHanded) Wait(context.Context) error { return nil }

// NewCompressed returns a sum by a Summer that has joined the ring.
func NewCompressed(c Config, ring Ring, summer *compress.Summer, update Update) *Compressed {
	c.Overlaps = c.Overlaps && summer.Overlaps() && update.Scale == 0 // Sum scales all of it
	s := &Compressed{buckets: newBuckets(c, ring), summer: summer, update: update}
	s.begin = func(ctx context.Context, _, end int, ended *time.Time) (Pending, error) {
		return alreadyHanded{}, summer.Ready(ctx, c.Gradient.Gradient(), end, ended)
	}
	s.probe = summer.Probe
	return s
}

// Resume implements train.Sum. In a ring's first step the Summer may drop its residuals. In later
// steps it commits the step before, which it has summed itself.
func (c *Compressed) Resume(step, ring int64, skipped bool) {
	if c.resumed {
		c.summer.Commit(skipped)
	} else {
		c.summer.Resume(step, ring, skipped)
	}
	c.resumed = true
}

// Keeps implements train.Keeper.
func (c *Compressed) Keeps() bool { return c.summer.Keeps() }

// SendAll implements train.Keeper.
func (c *Compressed) SendAll() { c.summer.SendAll() }

// Pause implements train.Pauser.
func (c *Compressed) Pause() int64 { return c.summer.Pause() }

// SetPause implements train.Pauser.
func (c *Compressed) SetPause(steps int64) { c.summer.SetPause(steps) }

// OldMomentum implements train.Keeper.
func (c *Compressed) OldMomentum() []float32 { return c.summer.OldMomentum(c.step) }

// NewMomentum implements train.Keeper.
func (c *Compressed) NewMomentum() []float32 { return c.summer.NewMomentum() }

// Begin implements train.Sum.
func (c *Compressed) Begin(ctx context.Context, step int64, rate float64) (bool, error) {
	c.step, c.rate = step, rate
	return c.tune(ctx)
}

// Touch implements train.Sum.
func (c *Compressed) Touch(rows []int32) { c.summer.Touch(rows) }

// Rule implements train.Sum. The summed momenta do not contain the weight decay. It is scaled up to
// have the effect that it would have within the momentum.
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
	c.lastEnded()
	if s := c.update.Scale; s != 0 {
		scale(gradient, 1/s)
	}
	return c.summer.Busy(), nil
}

// scale multiplies x by a power of two.
func scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// Finish implements train.Sum.
func (c *Compressed) Finish(ctx context.Context, out, in [][]float32) error {
	return c.finishApart(ctx, out, in)
}
