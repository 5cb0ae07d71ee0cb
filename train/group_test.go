//go:build unix

package train

import (
	"context"
	"errors"
	"testing"

	"rondo/compute"
	"rondo/sum"
)

// company is a Group in one process. Its members sum the contents of their devices' memory.
type company struct {
	seat
	dev   compute.Device
	fails int  // its number of the sum that fails; 0: none does
	after bool // it fails when the others have their sums
	sums  int
	// missed ends the others' waits when a part has failed before; nil: nobody waits then.
	missed *lapse
}

// lapse is that the others' patience has come to its end.
type lapse struct {
	over context.Context
	end  context.CancelFunc
}

// ofCompany has ranks form Groups, of which one rank's is made to fail by how.
func ofCompany(ranks int, how func(rank int, c *company)) func(int, compute.Device) compute.Group {
	met := newMeeting(ranks)
	return func(rank int, dev compute.Device) compute.Group {
		c := &company{seat: seat{meeting: met, rank: rank}, dev: dev}
		if how != nil {
			how(rank, c)
		}
		return c
	}
}

func (c *company) AllReduce(ctx context.Context, x []float32) error {
	c.sums++
	if c.sums == c.fails && !c.after {
		c.dev.Zero(x)
		if c.missed != nil {
			c.missed.end()
		}
		return errTest
	}
	host := make([]float32, len(x))
	c.dev.Download(host, x)
	if c.missed != nil {
		ctx = c.missed.over
	}
	err := c.seat.AllReduce(ctx, host)
	if err != nil {
		err = &sum.UnmetError{Err: err}
	}
	if err == nil && c.sums == c.fails {
		err = errTest
	}
	c.dev.Upload(x, host)
	return err
}

func (c *company) Close() {}

// A job whose gradients are summed between the devices is, to the bit, the one whose ring sums
// them, and they do not go around its ring.
func TestGroup(t *testing.T) {
	for _, scope := range []ClipScope{ScopeGlobal, ScopeWorker} {
		j := resumable(compute.LSTM, false, compute.AdamW)
		j.config.Clip, j.config.Steps, j.config.SaveEvery = Clip{1, ByNorm, scope}, 26, 10
		spoil := j.device
		want := j.mustRun(t)
		for name, own := range ofItsOwn(t) {
			j.config.HostMemory, j.model.GradientTail = false, 0
			j.device = func(rank int, dev compute.Device) compute.Device {
				return own(spoil(rank, dev))
			}
			j.group = ofCompany(j.ranks, nil)
			var longest int
			j.summed = func(x []float32) { longest = max(longest, len(x)) }
			got := j.mustRun(t)
			for i := range want.saved {
				sameSnapshot(t, got.saved[i], want.saved[i])
			}
			if longest < Tail || longest > 2*Tail || 2*Tail > len(got.params) {
				t.Errorf("%s: of %d gradients %d floats went around the ring; the tail has %d",
					name, len(got.params), longest, Tail)
			}
		}
	}
}

// Whoever has the sum when another rank's Group fails, nobody completes the step, and all go on in
// a ring without Groups.
func TestGroupFails(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for _, after := range []bool{false, true} {
		e := newElastic(t, elasticJob(7), 3)
		e.job.group = ofCompany(3, func(rank int, c *company) {
			if c.after = after; after && rank == 1 || !after { // or nobody's sum would come
				c.fails = 4
			}
		})
		e.ring(breakage{}, 0, 1, 2)
		failed := 3
		if after {
			failed = 1
		}
		for worker, h := range e.hands {
			var lost *sum.GroupError
			own := !after || worker == 1
			if !errors.As(h.err, &lost) || lost.Ranks != failed || lost.Faulty != failed ||
				errors.Is(h.err, errTest) != own || h.result.Progress.Step != 3 {
				t.Errorf("worker %d: %v, after step %d", worker, h.err, h.result.Progress.Step)
			}
		}
		e.groupless(oracle)
	}
}

// groupless has the three go on without a group, to the oracle's end.
func (e *elastic) groupless(oracle *outcome) {
	e.t.Helper()
	e.job.group = nil
	e.ring(breakage{}, 0, 1, 2)
	e.whole(0, 1, 2)
	e.audit()
	e.like(0, oracle)
}

// A rank whose part fails before the others come waits for them in the ring until they have given
// up: all hear that nobody has the sum, and only that rank's part has failed; or nobody's, if all
// have only waited too long for each other.
func TestGroupFailsBefore(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for _, faulty := range []int{0, 1} {
		e := newElastic(t, elasticJob(7), 3)
		missed := &lapse{}
		missed.over, missed.end = context.WithCancel(t.Context())
		e.job.group = ofCompany(3, func(rank int, c *company) {
			if c.missed = missed; rank == 1 {
				c.fails = 4
			}
		})
		if faulty == 0 {
			company := e.job.group
			e.job.group = func(rank int, dev compute.Device) compute.Group {
				return &blameless{company(rank, dev)}
			}
		}
		e.ring(breakage{}, 0, 1, 2)
		for worker, h := range e.hands {
			var lost *sum.GroupError
			own := faulty == 1 && worker == 1
			if !errors.As(h.err, &lost) || lost.Ranks != 3 || lost.Faulty != faulty ||
				(lost.Own != nil) != own || errors.Is(h.err, errTest) != own ||
				h.result.Progress.Step != 3 {
				t.Errorf("worker %d: %v, after step %d", worker, h.err, h.result.Progress.Step)
			}
		}
		e.groupless(oracle)
	}
}

// blameless gives up where another fails.
type blameless struct{ compute.Group }

func (b *blameless) AllReduce(ctx context.Context, x []float32) error {
	if err := b.Group.AllReduce(ctx, x); err != nil {
		return &sum.UnmetError{Err: err}
	}
	return nil
}

// A ring that breaks while the Groups sum is what is told, and not that their sums did not come.
func TestGroupInBrokenRing(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for _, after := range []bool{false, true} {
		e := newElastic(t, elasticJob(7), 2)
		e.job.group = ofCompany(2, func(_ int, c *company) { c.fails, c.after = 4, after })
		e.wrap = func(f *frail) Reducer { return &behind{f} }
		e.ring(breakage{}, 0, 1)
		for worker, h := range e.hands {
			if !errors.Is(h.err, errBroken) || h.result.Progress.Step != 3 {
				t.Errorf("worker %d: %v, after step %d", worker, h.err, h.result.Progress.Step)
			}
		}
		e.job.group, e.wrap = nil, nil
		e.ring(breakage{}, 0, 1)
		e.whole(0, 1)
		e.audit()
		e.like(0, oracle)
	}
}

// behind breaks a ring in the sum of a tail that says that the gradient was not summed.
type behind struct{ *frail }

func (b *behind) AllReduceCarry(ctx context.Context, buf, out, in []float32) error {
	if len(buf) > Tail && buf[Tail] != 0 { // ranks whose group has not summed
		b.ring.smash(errBroken)
	}
	return b.frail.AllReduceCarry(ctx, buf, out, in)
}
