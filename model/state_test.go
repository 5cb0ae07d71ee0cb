package model

import (
	"errors"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// copying counts the host's copies from and to the device.
type copying struct {
	compute.Device
	down, up int
}

func (c *copying) Download(dst, src []float32) { c.down++; c.Device.Download(dst, src) }
func (c *copying) Upload(dst, src []float32)   { c.up++; c.Device.Upload(dst, src) }

// stateCase is a segment on a device that counts copies.
type stateCase struct {
	*testing.T
	segment *Segment
	copies  *copying
}

// state returns the segment's state. It expects this many downloads, however often it asks.
func (c stateCase) state(downloads int) []float32 {
	c.Helper()
	c.copies.down = 0
	got := make([]float32, c.segment.B*c.segment.model.config.StateSize())
	for range 2 {
		if err := c.segment.State(got); err != nil {
			c.Fatal(err)
		}
	}
	if c.copies.down != downloads {
		c.Errorf("the state took %d downloads, want %d", c.copies.down, downloads)
	}
	return got
}

// set sets the state, and expects one upload.
func (c stateCase) set(state []float32) {
	c.Helper()
	c.copies.up = 0
	if err := c.segment.SetState(state); err != nil || c.copies.up != 1 {
		c.Errorf("the state was set by %d uploads: %v", c.copies.up, err)
	}
}

// TestStateIsOneCopy checks that the state of two layers of two tensors takes one copy, or none
// after a run on a device that copies asynchronously. It is the state of the last completed run, or
// the state set since.
func TestStateIsOneCopy(t *testing.T) {
	const T, B = 5, 3
	for _, k := range []int{0, 2} {
		cfg := shapes()["lstm/2/embed"]
		cfg.Recompute = k
		plain, beneath := &copying{Device: newDevice(t)}, &copying{Device: newDevice(t)}
		recorder := devicetest.NewRecorder(beneath)
		a := stateCase{t, newSegment(t, newModelOn(t, cfg, plain), T, B), plain}
		b := stateCase{t, newSegment(t, newModelOn(t, cfg, recorder), T, B), beneath}
		same := func(what string, want []float32, downloads int) {
			t.Helper()
			devicetest.SameBits(t, what, b.state(downloads), want)
		}
		same("the first state", a.state(1), 1)
		rng, broken := rand.New(rand.NewPCG(5, 6)), errors.New("it broke")
		var before []float32
		for range 5 { // some of these are recorded
			in := randomInput(rng, T, B, cfg.Vocab)
			run(t, a.segment, in)
			run(t, b.segment, in)
			before = a.state(1)
			same("after a run", before, 0)
		}
		halted := randomInput(rng, T, B, cfg.Vocab)
		halted.BeforeBackward = func() error { return broken }
		for _, s := range []*Segment{a.segment, b.segment} {
			if _, err := s.Run(halted); !errors.Is(err, broken) {
				t.Errorf("a run that was ended: %v", err)
			}
		}
		same("after a run that was ended", before, 1)
		before[7] = -5
		b.set(before)
		same("after it was set", before, 0)
		b.segment.ZeroState()
		same("zero", make([]float32, len(before)), 1)
		for range 2 { // the state is not read in between, and another is set
			run(t, b.segment, randomInput(rng, T, B, cfg.Vocab))
		}
		b.set(before)
		a.set(before)
		in := randomInput(rng, T, B, cfg.Vocab)
		run(t, a.segment, in)
		run(t, b.segment, in)
		same("after all", a.state(1), 0)
	}
}

// faulty is a device whose last operator, the embedding's, fails.
type faulty struct {
	*devicetest.Stager
	fails bool
}

func (f *faulty) EmbedBackward(dtable, dy []float32, ids []int32) {
	if f.fails {
		panic(&compute.MemoryError{What: "an embedding"})
	}
	f.Stager.EmbedBackward(dtable, dy, ids)
}

// TestStateOutlivesAFailure lets a run fail after its state was copied, in the last chunk or in an
// earlier one: the state is still the one before the run.
func TestStateOutlivesAFailure(t *testing.T) {
	const T, B = 5, 3
	for _, k := range []int{0, 2} {
		cfg := shapes()["gru/2/embed"]
		cfg.Recompute = k
		dev := &faulty{Stager: devicetest.NewStager(newDevice(t))}
		c := stateCase{t, newSegment(t, newModelOn(t, cfg, dev), T, B), &copying{}}
		rng := rand.New(rand.NewPCG(5, 6))
		run(t, c.segment, randomInput(rng, T, B, cfg.Vocab))
		want := c.state(0)
		dev.fails = true
		_, err := c.segment.Run(randomInput(rng, T, B, cfg.Vocab))
		if _, lack := errors.AsType[*compute.MemoryError](err); !lack {
			t.Errorf("recompute %d: %v", k, err)
		}
		devicetest.SameBits(t, "the state", c.state(0), want)
	}
}
