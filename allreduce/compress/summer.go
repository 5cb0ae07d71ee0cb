package compress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Ring is what a Summer asks of the ranks. All ranks call the same methods with buffers of the same
// length in the same order.
type Ring interface {
	// AllReduce replaces buf on every rank by the float32 sum over the ranks, the same bits on all.
	AllReduce(ctx context.Context, buf []float32) error
	// AllGather gives every rank exactly the bits that rank i has in buf[ends[i-1]:ends[i]].
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// Start begins to do to buf what AllReduce does, behind what was started before; but numbers
	// may be rounded on their way. Residual is nil, or as long as buf: what rounding has withheld
	// before is added, and replaced by what it withholds now. Both are the ring's until Wait.
	Start(ctx context.Context, buf, residual []float32) (Pending, error)
}

// Pending is a sum that was started.
type Pending interface {
	Wait(ctx context.Context) error
}

// Place is a rank's place in a ring, all of it the same on all ranks but for Rank.
type Place struct {
	Rank, World int
	Generation  int64
}

// Tensor is where a tensor of a gradient lies: [Rows, Columns], row-major; a vector has one row.
type Tensor struct{ Offset, Rows, Columns int }

func (t Tensor) size() int { return t.Rows * t.Columns }

// of returns the tensor's part of flat.
func (t Tensor) of(flat []float32) []float32 { return flat[t.Offset:][:t.size():t.size()] }

// Config is what a Summer is for, the same on all ranks.
type Config struct {
	Length  int      // floats of a gradient
	Tensors []Tensor // in it, in order of their offsets; all else in it is zeros

	// At most one of these two is set; neither is the dense way.
	TopK     float64 // the share of the numbers that travels, above 0 to 1
	PowerSGD int     // the rank of a matrix's approximation
	// PerTensor has top-k send its share of each tensor. Otherwise it sends the largest of all,
	// which is best where all change the parameters by the same rate; an optimizer that divides by
	// second moments makes small gradients count as much as large ones.
	PerTensor bool
	// Momentum is what top-k takes from the optimizer; none: the optimizer has its own.
	Momentum Momentum
	// After is the last step before these begin: until then all numbers travel. The first gradients
	// change the most from step to step, and what waits of them is soon of the past.
	After int64

	Feedback bool    // of the dense way: the ring is given residuals. The others always have it
	Lookup   *Lookup // of the dense way; nil: none
	Seed     uint64  // of PowerSGD's first factors

	Now func() time.Time // what Busy is told by; nil: Busy is 0
}

// Summer sums gradients. One goroutine at a time uses it.
type Summer struct {
	config Config
	way    way
	ring   *timedRing
	place  Place
	kept   feedback
	whole  bool          // in the step of the last Sum all numbers travelled
	begun  int           // floats of the step's gradient that Ready was told of
	busy   time.Duration // of the last Sum
}

// way is how a gradient is summed.
type way interface {
	// join takes a place in a ring, with nothing left from another.
	join(ring Ring, place Place)
	// ready may begin to sum g's floats from begin to end, which are what they will be.
	ready(ctx context.Context, g gradient, begin, end int) error
	// sum sums what ready was not told of, and waits for all.
	sum(ctx context.Context, g gradient, begin int) error
	// settle ends the step of the last sum: it counts, or it was skipped on all ranks.
	settle(skipped bool)
}

// gradient is a rank's gradient, to be replaced by the sum over the ranks of it and of what each
// has kept, scale times. What the rank keeps then is written to next, which has anything in it
// before. Both are nil where nothing is withheld, and so are speed and nextSpeed, u of Momentum
// before and after, without that.
type gradient struct {
	sum, kept, next  []float32
	scale            float32
	speed, nextSpeed []float32
}

// New returns a Summer, which is in no ring.
func New(config Config) (*Summer, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if config.Now == nil {
		config.Now = func() time.Time { return time.Time{} }
	}
	s := &Summer{config: config}
	switch {
	case config.TopK > 0:
		s.way = newTopK(config)
	case config.PowerSGD > 0:
		s.way = newPowerSGD(config)
	default:
		s.way = &dense{lookup: newLooked(config.Lookup)}
	}
	if config.TopK > 0 || config.PowerSGD > 0 || config.Feedback {
		s.kept = newFeedback(config.Length, config.Momentum.On())
	}
	return s, nil
}

func (c Config) validate() error {
	switch {
	case !(c.TopK >= 0 && c.TopK <= 1):
		return fmt.Errorf("compress: top-k of a share of %v, want above 0, at most 1", c.TopK)
	case c.PowerSGD < 0:
		return fmt.Errorf("compress: PowerSGD of rank %d", c.PowerSGD)
	case c.TopK > 0 && c.PowerSGD > 0:
		return errors.New("compress: both top-k and PowerSGD")
	case c.After != 0 && c.TopK == 0 && c.PowerSGD == 0:
		return errors.New("compress: a dense sum begins with the first step")
	case c.Momentum.On() && c.TopK == 0:
		return errors.New("compress: only top-k takes the optimizer's momentum")
	case !c.Momentum.valid():
		return fmt.Errorf("compress: a momentum of %+v", c.Momentum)
	case c.Lookup != nil && (c.TopK > 0 || c.PowerSGD > 0):
		return errors.New("compress: only a dense sum has a lookup")
	case c.Length < 0 || c.Length > math.MaxInt32:
		return fmt.Errorf("compress: a gradient of %d floats, want at most %d", c.Length,
			math.MaxInt32)
	}
	at := 0
	for _, t := range c.Tensors {
		if t.Rows < 1 || t.Columns < 1 || t.Offset < at || t.Offset+t.size() > c.Length {
			return fmt.Errorf("compress: a tensor of %d rows and %d columns at %d, behind %d and "+
				"in %d floats", t.Rows, t.Columns, t.Offset, at, c.Length)
		}
		at = t.Offset + t.size()
	}
	if c.Lookup != nil {
		return c.Lookup.validate(c.Length)
	}
	return nil
}

// Join takes a place in a ring. Resume follows, before the first Sum in it.
func (s *Summer) Join(ring Ring, place Place) {
	s.ring, s.place = &timedRing{ring: ring, now: s.config.Now}, place
}

// Resume says after which step the ring goes on, and in which ring that step was completed. What
// was kept after it goes on too, also if this rank has not heard that it was completed; all else
// is dropped. Skipped: the step was not applied, so that what was kept before it goes on.
func (s *Summer) Resume(step, ring int64, skipped bool) {
	s.begun = 0
	s.kept.resume(moment{step, ring}, skipped)
	s.way.join(s.ring, s.place)
}

// Overlaps says whether Ready begins anything: only the dense way knows what to send before it has
// seen the whole gradient.
func (s *Summer) Overlaps() bool {
	_, ok := s.way.(*dense)
	return ok
}

// Touch says which tokens this rank has looked up for the next Sum; each call adds to the last.
func (s *Summer) Touch(ids []int32) {
	if d, ok := s.way.(*dense); ok && d.lookup != nil {
		d.lookup.touch(ids)
	}
}

// Ready says that of the next Sum's gradient the first floats, up to end, are what they will be:
// the Summer may begin with them. All ranks call it with the same ends.
func (s *Summer) Ready(ctx context.Context, sum []float32, end int) error {
	s.check(sum)
	begin := s.begun
	s.begun = end
	return s.way.ready(ctx, s.kept.of(sum, 1), begin, end)
}

func (s *Summer) check(sum []float32) {
	if len(sum) != s.config.Length {
		panic(fmt.Sprintf("compress: a gradient of %d floats, not %d", len(sum), s.config.Length))
	}
}

// Sum replaces a gradient, of a step and in host memory, by its sum over the ranks: the same bits
// on all. Rate is what the sum is multiplied by when it changes the parameters. Numbers that are
// not finite leave some in the sum. After an error the gradient may be anything; before the next
// Sum the Summer must Join and Resume.
func (s *Summer) Sum(ctx context.Context, step int64, rate float64, sum []float32) error {
	s.check(sum)
	began := s.config.Now()
	waited := s.ring.waited
	defer func() { s.busy = s.config.Now().Sub(began) - (s.ring.waited - waited) }()
	s.kept.nextAt, s.kept.nextRate = moment{step, s.place.Generation}, rate
	begin := s.begun
	s.begun = 0
	if s.whole = step <= s.config.After; s.whole {
		addScaled(sum, s.kept.kept, s.kept.scale(rate)) // of a run in which it was no such step
		clear(s.kept.next)
		clear(s.kept.nextSpeed)
		return s.ring.AllReduce(ctx, sum)
	}
	return s.way.sum(ctx, s.kept.of(sum, s.kept.scale(rate)), begin)
}

// Busy is how long the last Sum computed, and did not wait for the ring.
func (s *Summer) Busy() time.Duration { return s.busy }

// Probe sums buf as a part of a gradient that nothing is known of but that it is dense, and keeps
// nothing of it: for those who measure how long that takes.
func (s *Summer) Probe(ctx context.Context, buf []float32) error {
	var residual []float32
	if s.kept.kept != nil {
		residual = make([]float32, len(buf))
	}
	started, err := s.ring.Start(ctx, buf, residual)
	if err != nil {
		return err
	}
	return started.Wait(ctx)
}

// Commit says that the step of the last Sum is done. Skipped: its sum was not finite on any rank,
// and was not applied.
func (s *Summer) Commit(skipped bool) {
	s.kept.commit(skipped)
	if !s.whole {
		s.way.settle(skipped)
	}
}

// feedback is what a rank has not sent: as of the last step that was committed, and as the step in
// hand would leave it. Both are nil where nothing is withheld.
//
// What waits is part of a change of the parameters, by the rate of the step that it is from: when
// it travels at another rate it is scaled, so that it changes them by as much (Karimireddy et al.,
// Algorithm 1, where the error is of the change and not of the gradient).
type feedback struct {
	kept, next         []float32
	speed, nextSpeed   []float32 // likewise, of Momentum; nil: none
	keptAt, nextAt     moment
	keptRate, nextRate float64 // that kept and next are of
}

// scale is what kept counts at a rate. Where one of the rates is none, it counts as it is.
func (f *feedback) scale(rate float64) float32 {
	if !(f.keptRate > 0 && rate > 0) {
		return 1
	}
	return float32(min(f.keptRate/rate, maxScale))
}

// maxScale bounds what the rates of two steps can do to what is kept: further apart they are two
// jobs'.
const maxScale = 1e3

// moment is the end of a step, in the ring that completed it.
type moment struct{ step, ring int64 }

func newFeedback(n int, momentum bool) feedback {
	f := feedback{kept: make([]float32, n), next: make([]float32, n)}
	if momentum {
		f.speed, f.nextSpeed = make([]float32, n), make([]float32, n)
	}
	return f
}

// of is a gradient with what is kept, which counts so many times.
func (f *feedback) of(sum []float32, scale float32) gradient {
	return gradient{sum, f.kept, f.next, scale, f.speed, f.nextSpeed}
}

// commit makes what the step in hand leaves what is kept; of one that was skipped it may not be
// numbers, and what was kept before is whole.
func (f *feedback) commit(skipped bool) {
	if !skipped {
		f.kept, f.next = f.next, f.kept
		f.speed, f.nextSpeed = f.nextSpeed, f.speed
		f.keptRate = f.nextRate
	}
	f.keptAt = f.nextAt
	f.nextAt = moment{}
}

func (f *feedback) resume(at moment, skipped bool) {
	switch {
	case at == f.keptAt:
	case at == f.nextAt && at != (moment{}):
		f.commit(skipped)
	default:
		clear(f.kept)
		clear(f.speed)
		f.keptAt = at
	}
	f.nextAt = moment{}
}
