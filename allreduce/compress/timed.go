package compress

import (
	"context"
	"time"
)

// timedRing is a Ring that adds up the time spent in its calls.
type timedRing struct {
	ring   Ring
	now    func() time.Time
	waited time.Duration
}

func (r *timedRing) since(began time.Time) { r.waited += r.now().Sub(began) }

// AllReduce implements Ring.
func (r *timedRing) AllReduce(ctx context.Context, buf []float32) error {
	defer r.since(r.now())
	return r.ring.AllReduce(ctx, buf)
}

// AllGather implements Ring.
func (r *timedRing) AllGather(ctx context.Context, buf []float32, ends []int) error {
	defer r.since(r.now())
	return r.ring.AllGather(ctx, buf, ends)
}

// Start implements Ring.
func (r *timedRing) Start(
	ctx context.Context, buf, residual []float32, ended *time.Time,
) (Pending, error) {
	defer r.since(r.now())
	p, err := r.ring.Start(ctx, buf, residual, ended)
	return timedPending{r, p}, err
}

// timedPending is a sum of a timedRing.
type timedPending struct {
	ring    *timedRing
	pending Pending
}

// Wait implements Pending.
func (p timedPending) Wait(ctx context.Context) error {
	defer p.ring.since(p.ring.now())
	return p.pending.Wait(ctx)
}
