package compress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Ring is the ring that a Summer uses. All ranks call the same methods with buffers of the same
// length in the same order.
type Ring interface {
	// AllReduce replaces buf on every rank by the float32 sum over the ranks, with the same bits on
	// all.
	AllReduce(ctx context.Context, buf []float32) error
	// AllGather gives every rank all ranks' ranges: rank i's bits in buf[ends[i-1]:ends[i]].
	AllGather(ctx context.Context, buf []float32, ends []int) error
	// Start queues a sum like AllReduce's whose numbers may be rounded on their way. residual is
	// nil or as long as buf. Earlier rounding errors in it are added and replaced by the new ones.
	// The ring owns both until Wait. ended receives the time when the sum is done; nil: no time.
	Start(ctx context.Context, buf, residual []float32, ended *time.Time) (Pending, error)
}

// Pending is a sum that has been started.
type Pending interface {
	Wait(ctx context.Context) error
}

// Place is a rank's place in a ring. World and Generation are the same on all ranks.
type Place struct {
	Rank, World int
	Generation  int64
}

// Tensor is a tensor's place in a gradient: [Rows, Columns], row-major; a vector has one row.
type Tensor struct{ Offset, Rows, Columns int }

func (t Tensor) size() int { return t.Rows * t.Columns }

func (t Tensor) of(flat []float32) []float32 { return flat[t.Offset:][:t.size():t.size()] }

// Config describes a Summer. It is the same on all ranks.
type Config struct {
	Length  int      // floats of a gradient
	Tensors []Tensor // ascending by offset; all numbers outside of them are zero

	// At most one of these two is set. If none is, the method is dense.
	TopK     float64 // the share of the numbers that travels: above 0, at most 1
	PowerSGD int     // the rank of a matrix's approximation
	// PerTensor makes top-k send its share of each tensor. Otherwise it sends the largest of all
	// numbers. That is best if the optimizer changes all parameters by the same rate. One that
	// divides by second moments gives small gradients the weight of large ones.
	PerTensor bool
	// Momentum replaces the optimizer's, for top-k. The zero value: the optimizer has its own.
	Momentum Momentum
	// After is the last step in which all numbers travel. The first gradients change most from step
	// to step, so kept numbers would soon be outdated.
	After int64

	Feedback bool    // dense: the ring gets residuals. The other methods always keep errors
	Lookup   *Lookup // dense only; nil: none
	Seed     uint64  // of PowerSGD's first factors

	Now func() time.Time // clock for Busy; nil: Busy is 0
}

// Summer sums gradients. One goroutine at a time uses it.
type Summer struct {
	config Config
	method method
	ring   *timedRing
	place  Place
	kept   feedback
	all    bool          // SendAll was called for this step
	begun  int           // end of the floats that Ready has announced for this step
	busy   time.Duration // of the last Sum
}

// method is a way to sum a gradient.
type method interface {
	// join takes a place in a ring and drops all state of an earlier one.
	join(ring Ring, place Place)
	// ready may start summing g's floats [begin, end), which are final. See Ready for ended.
	ready(ctx context.Context, g gradient, begin, end int, ended *time.Time) error
	// sum sums g from begin on, and waits for all sums.
	sum(ctx context.Context, g gradient, begin int) error
	// settle ends the step of the last sum. skipped: no rank applied it.
	settle(skipped bool)
	// renew drops what earlier steps have left. It follows join and each step that sent all, so
	// that a job that resumes after the step computes the same.
	renew(step int64)
}

// gradient is a rank's gradient with its error feedback. Its sum is replaced by the sum over the
// ranks of sum + scale * kept. The rank's new kept numbers are written to next, whose old content
// is not used. kept and next are nil if nothing is withheld. velocity and nextVelocity are
// Momentum's u before and after the step; nil: no momentum. This rank's u is share times velocity.
type gradient struct {
	sum, kept, next        []float32
	scale                  float32
	velocity, nextVelocity []float32
	share                  float64
}

// New returns a Summer that is in no ring yet.
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
		s.method = newTopK(config)
	case config.PowerSGD > 0:
		s.method = newPowerSGD(config)
	default:
		s.method = &dense{lookup: newTouchedTokens(config.Lookup)}
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

// Join takes a place in a ring. The caller then calls Resume before the first Sum.
func (s *Summer) Join(ring Ring, place Place) {
	s.ring, s.place = &timedRing{ring: ring, now: s.config.Now}, place
}

// Resume says after which step the ring goes on, and which ring completed that step. Numbers kept
// after that step stay, even if this rank has not heard of its completion. All others are dropped.
// skipped: the step was not applied, so the numbers kept before it stay.
func (s *Summer) Resume(step, ring int64, skipped bool) {
	s.begun, s.all = 0, false
	s.kept.resume(stepEnd{step, ring}, skipped)
	s.method.join(s.ring, s.place)
	s.method.renew(step)
}

// Keeps reports whether this rank keeps numbers for later steps.
func (s *Summer) Keeps() bool { return s.kept.kept != nil }

// SendAll makes the next Sum send all numbers, kept ones too, in float32. The ranks then keep
// nothing, and the method starts anew, as in a job that resumes after the step. All ranks call it
// in the same steps, between Resume or Commit and Ready.
func (s *Summer) SendAll() { s.all = true }

// OldMomentum returns memory for the optimizer's momentum, which the caller fills before the next
// Sum. The ranks go on with equal parts of it. It is nil if they have their own.
func (s *Summer) OldMomentum(step int64) []float32 {
	if !s.kept.whole || step-1 <= s.config.After {
		return nil
	}
	return s.kept.velocity
}

// NewMomentum returns the sum of the ranks' momenta after a step of SendAll, which the optimizer is
// to hold until the next step; nil: there is none.
func (s *Summer) NewMomentum() []float32 {
	if !s.kept.nextWhole || s.kept.nextAt.step <= s.config.After {
		return nil
	}
	return s.kept.nextVelocity
}

// Pause returns the number of steps left without an exchange of touched tokens, because the last
// exchange saved nothing.
func (s *Summer) Pause() int64 {
	if d, ok := s.method.(*dense); ok && d.lookup != nil {
		return int64(d.lookup.pause)
	}
	return 0
}

// SetPause sets that number, to the same on all ranks.
func (s *Summer) SetPause(steps int64) {
	if d, ok := s.method.(*dense); ok && d.lookup != nil {
		d.lookup.pause = int(min(steps, pauseSteps))
	}
}

// Overlaps reports whether Ready starts sums. Only the dense method can send parts before it has
// the whole gradient.
func (s *Summer) Overlaps() bool {
	_, ok := s.method.(*dense)
	return ok
}

// Touch adds tokens that this rank has looked up for the next Sum.
func (s *Summer) Touch(ids []int32) {
	if d, ok := s.method.(*dense); ok && d.lookup != nil {
		d.lookup.touch(ids)
	}
}

// Ready says that the floats before end are final in the next Sum's gradient, so the Summer may
// send them. All ranks call it with the same ends. ended receives the time when they are summed, at
// the latest when Sum returns; nil: no time.
func (s *Summer) Ready(ctx context.Context, sum []float32, end int, ended *time.Time) error {
	s.check(sum)
	if s.all {
		return nil
	}
	begin := s.begun
	s.begun = end
	return s.method.ready(ctx, s.kept.of(sum, 1), begin, end, ended)
}

func (s *Summer) check(sum []float32) {
	if len(sum) != s.config.Length {
		panic(fmt.Sprintf("compress: a gradient of %d floats, not %d", len(sum), s.config.Length))
	}
}

// Sum replaces a step's gradient, in host memory, by its sum over the ranks, with the same bits on
// all. rate is the step's factor between the sum and the change of the parameters. If a number is
// not finite, some number of the sum is not. After an error the gradient is undefined, and the
// Summer must Join and Resume before the next Sum.
func (s *Summer) Sum(ctx context.Context, step int64, rate float64, sum []float32) error {
	s.check(sum)
	began := s.config.Now()
	waited := s.ring.waited
	defer func() { s.busy = s.config.Now().Sub(began) - (s.ring.waited - waited) }()
	s.kept.nextAt, s.kept.nextRate = stepEnd{step, s.place.Generation}, rate
	begin := s.begun
	s.begun = 0
	s.kept.nextWhole = s.all || step <= s.config.After
	s.all = false
	g := s.kept.of(sum, s.kept.scale(rate))
	if s.kept.whole { // the velocity is the sum of the ranks'
		g.share = 1 / float64(s.place.World)
	}
	if s.kept.nextWhole {
		return s.sumAll(ctx, step, g)
	}
	return s.method.sum(ctx, g, begin)
}

// sumAll sums all numbers and those kept. After Config.After it sums the ranks' momenta, too.
func (s *Summer) sumAll(ctx context.Context, step int64, g gradient) error {
	momenta := step > s.config.After && s.config.Momentum.On()
	clear(g.nextVelocity)
	if momenta {
		s.config.Momentum.apply(g.sum, g)
	}
	addScaled(g.sum, g.kept, g.scale)
	clear(g.next)
	err := s.ring.AllReduce(ctx, g.sum)
	if err == nil && momenta {
		err = s.ring.AllReduce(ctx, g.nextVelocity)
	}
	return err
}

// Busy returns the time that the last Sum spent outside of the ring.
func (s *Summer) Busy() time.Duration { return s.busy }

// Probe sums buf like a part of a dense gradient, and keeps nothing of it. It serves measurements.
func (s *Summer) Probe(ctx context.Context, buf []float32) error {
	var residual []float32
	if s.kept.kept != nil {
		residual = make([]float32, len(buf))
	}
	started, err := s.ring.Start(ctx, buf, residual, nil)
	if err != nil {
		return err
	}
	return started.Wait(ctx)
}

// Commit ends the step of the last Sum. skipped: the sum was not finite, and no rank applied it.
func (s *Summer) Commit(skipped bool) {
	sent := s.kept.nextWhole
	s.kept.commit(skipped)
	if sent {
		s.method.renew(s.kept.keptAt.step)
	} else {
		s.method.settle(skipped)
	}
}

// feedback holds the numbers that a rank has not sent: kept after the last committed step, next
// after the current one. Both are nil if nothing is withheld.
//
// A kept number is part of a change of the parameters at its own step's rate. When it is sent at
// another rate it is scaled, so that it changes them by the same amount (Karimireddy et al.,
// Algorithm 1, where the error is of the change and not of the gradient).
type feedback struct {
	kept, next             []float32
	velocity, nextVelocity []float32 // likewise, Momentum's u; nil: no momentum
	keptAt, nextAt         stepEnd
	whole, nextWhole       bool    // nothing is kept, since that step sent all or is unknown
	keptRate, nextRate     float64 // rates of kept and next
}

// scale returns the factor of kept at a rate. It is 1 if a rate is unknown.
func (f *feedback) scale(rate float64) float32 {
	if !(f.keptRate > 0 && rate > 0) {
		return 1
	}
	return float32(min(f.keptRate/rate, maxScale))
}

// maxScale bounds the ratio of the two rates. A larger ratio can only come from different jobs.
const maxScale = 1e3

// stepEnd is the end of a step, in the ring that completed it.
type stepEnd struct{ step, ring int64 }

func newFeedback(n int, momentum bool) feedback {
	f := feedback{kept: make([]float32, n), next: make([]float32, n)}
	if momentum {
		f.velocity, f.nextVelocity = make([]float32, n), make([]float32, n)
	}
	return f
}

func (f *feedback) of(sum []float32, scale float32) gradient {
	return gradient{sum, f.kept, f.next, scale, f.velocity, f.nextVelocity, 1}
}

// drop forgets the kept numbers.
func (f *feedback) drop() {
	clear(f.kept)
	clear(f.velocity)
	f.whole = true
}

// commit makes next the kept numbers. After a skipped step next may be NaN, so kept stays. If that
// step was to send all, kept is dropped, since a job that resumes after it has none.
func (f *feedback) commit(skipped bool) {
	switch {
	case !skipped:
		f.kept, f.next = f.next, f.kept
		f.velocity, f.nextVelocity = f.nextVelocity, f.velocity
		f.keptRate, f.whole = f.nextRate, f.nextWhole
	case f.nextWhole:
		f.drop()
	}
	f.keptAt = f.nextAt
	f.nextAt = stepEnd{}
}

func (f *feedback) resume(at stepEnd, skipped bool) {
	switch {
	case at == f.keptAt:
	case at == f.nextAt && at != (stepEnd{}):
		f.commit(skipped)
	default:
		f.drop()
		f.keptAt = at
	}
	f.nextAt = stepEnd{}
}
