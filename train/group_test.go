//go:build unix

package train

import (
	"context"
	"errors"
	"testing"

	"rondo/compute"
	"rondo/sum"
	"rondo/train/optim"
)

// testGroup is a Group in one process. Its members sum the contents of their devices' memory.
type testGroup struct {
	localRank
	dev   compute.Device
	fails int  // number of the sum that fails; 0: none
	after bool // it fails after the others have their sums
	sums  int
	// missed ends the others' waits when this part has failed; nil: they do not wait.
	missed *waitLimit
}

// waitLimit ends the other members' waits.
type waitLimit struct {
	over context.Context
	end  context.CancelFunc
}

// testGroups makes the ranks' Groups. how may make one of them fail.
func testGroups(
	ranks int, how func(rank int, c *testGroup),
) func(int, compute.Device) compute.Group {
	met := newLocalRing(ranks)
	return func(rank int, dev compute.Device) compute.Group {
		c := &testGroup{localRank: localRank{localRing: met, rank: rank}, dev: dev}
		if how != nil {
			how(rank, c)
		}
		return c
	}
}

func (c *testGroup) AllReduce(ctx context.Context, x []float32) error {
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
	err := c.localRank.AllReduce(ctx, host)
	if err != nil {
		err = &sum.UnmetError{Err: err}
	}
	if err == nil && c.sums == c.fails {
		err = errTest
	}
	c.dev.Upload(x, host)
	return err
}

func (c *testGroup) Close() {}

// A Group's sums give the same bits as the ring's, and the gradients do not go around the ring.
func TestGroup(t *testing.T) {
	for _, scope := range []optim.ClipScope{optim.ScopeGlobal, optim.ScopeWorker} {
		j := resumable(compute.LSTM, false, compute.AdamW)
		j.config.Clip, j.config.Steps, j.config.SaveEvery = byNorm(1, scope), 26, 10
		spoil := j.device
		want := j.mustRun(t)
		for name, own := range ofItsOwn(t) {
			j.config.HostMemory, j.model.GradientTail = false, 0
			j.device = func(rank int, dev compute.Device) compute.Device {
				return own(spoil(rank, dev))
			}
			j.group = testGroups(j.ranks, nil)
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

// If one rank's Group fails, no rank completes the step, even if others have the sum. All go on in
// a ring without Groups.
func TestGroupFails(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for _, after := range []bool{false, true} {
		e := newElastic(t, elasticJob(7), 3)
		e.job.group = testGroups(3, func(rank int, c *testGroup) {
			if c.after = after; after && rank == 1 || !after { // else no rank's sum completes
				c.fails = 4
			}
		})
		e.ring(breakage{}, 0, 1, 2)
		failed := 3
		if after {
			failed = 1
		}
		for worker, h := range e.workers {
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

// groupless lets the three workers go on without a Group, to the oracle's result.
func (e *elastic) groupless(oracle *outcome) {
	e.t.Helper()
	e.job.group = nil
	e.ring(breakage{}, 0, 1, 2)
	e.allDone(0, 1, 2)
	e.audit()
	e.matches(0, oracle)
}

// If one rank's Group fails early, that rank waits in the ring until the others have given up. All
// learn that no rank has the sum, and that one part has failed, or none if all only waited too long
// for each other.
func TestGroupFailsBefore(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for _, faulty := range []int{0, 1} {
		e := newElastic(t, elasticJob(7), 3)
		missed := &waitLimit{}
		missed.over, missed.end = context.WithCancel(t.Context())
		e.job.group = testGroups(3, func(rank int, c *testGroup) {
			if c.missed = missed; rank == 1 {
				c.fails = 4
			}
		})
		if faulty == 0 {
			testGroup := e.job.group
			e.job.group = func(rank int, dev compute.Device) compute.Group {
				return &unmetGroup{testGroup(rank, dev)}
			}
		}
		e.ring(breakage{}, 0, 1, 2)
		for worker, h := range e.workers {
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

// unmetGroup returns UnmetError where another Group fails.
type unmetGroup struct{ compute.Group }

func (b *unmetGroup) AllReduce(ctx context.Context, x []float32) error {
	if err := b.Group.AllReduce(ctx, x); err != nil {
		return &sum.UnmetError{Err: err}
	}
	return nil
}

// If the ring breaks while the Groups sum, the error is the ring's, not the missing sums.
func TestGroupInBrokenRing(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for _, after := range []bool{false, true} {
		e := newElastic(t, elasticJob(7), 2)
		e.job.group = testGroups(2, func(_ int, c *testGroup) { c.fails, c.after = 4, after })
		e.wrap = func(f *breakingRing) sumRing { return &behind{f} }
		e.ring(breakage{}, 0, 1)
		for worker, h := range e.workers {
			if !errors.Is(h.err, errBroken) || h.result.Progress.Step != 3 {
				t.Errorf("worker %d: %v, after step %d", worker, h.err, h.result.Progress.Step)
			}
		}
		e.job.group, e.wrap = nil, nil
		e.ring(breakage{}, 0, 1)
		e.allDone(0, 1)
		e.audit()
		e.matches(0, oracle)
	}
}

// behind breaks a ring in the sum of a tail that reports a failed Group.
type behind struct{ *breakingRing }

func (b *behind) AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error {
	if len(buf) > Tail && buf[Tail] != 0 { // ranks whose group has not summed
		b.ring.smash(errBroken)
	}
	return b.breakingRing.AllReduceCarry(ctx, buf, out, in)
}
