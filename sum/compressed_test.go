package sum

import (
	"context"
	"slices"
	"testing"
	"time"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/compute/cpu"
)

// pair is a ring of two ranks with the same numbers.
type pair struct {
	Ring
	passed *time.Duration // grows by a second per sum
	heard  *[]float32     // the last buffer that was sent
}

func (p pair) AllReduce(_ context.Context, buf []float32) error {
	*p.heard = append((*p.heard)[:0], buf...)
	*p.passed += time.Second
	for i := range buf {
		buf[i] += buf[i]
	}
	return nil
}

func (p pair) AllReduceCarry(ctx context.Context, buf []float32, _, _ [][]float32) error {
	return p.AllReduce(ctx, buf)
}

// compressed is the pair as a compress.Ring.
type compressed struct{ pair }

func (c compressed) Start(
	ctx context.Context, buf, _ []float32, ended *time.Time,
) (compress.Pending, error) {
	err := c.AllReduce(ctx, buf)
	if ended != nil {
		*ended = time.Time{}.Add(*c.passed)
	}
	return alreadyHanded{}, err
}

// newPair returns a compressed sum of four floats and a tail of one.
func newPair(t *testing.T, update Update) (s *Compressed, p pair, memory []float32) {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dev.Close)
	p = pair{passed: new(time.Duration), heard: new([]float32)}
	now := func() time.Time {
		*p.passed += time.Millisecond // each reading of the clock stands for some computing
		return time.Time{}.Add(*p.passed)
	}
	summer, err := compress.New(compress.Config{Length: 4, Now: now,
		Tensors: []compress.Tensor{{Rows: 1, Columns: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	summer.Join(compressed{p}, compress.Place{World: 2})
	memory = []float32{1, 2, 3, 4, 5}
	return NewCompressed(Config{Gradient: compute.NewMirrorInPlace(dev, memory, 4),
		Finishes: []int{4}, Ranks: 2, Now: now}, p, summer, update), p, memory
}

// sumOnce runs one step.
func sumOnce(t *testing.T, s *Compressed) (busy time.Duration) {
	t.Helper()
	s.Resume(0, 1, false)
	if _, err := s.Begin(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	s.Load(t.Context())
	busy, err := s.Sum(t.Context())
	if err == nil {
		err = s.Finish(t.Context(), nil, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return busy
}

// The gradient is multiplied by Scale on the wire, and the sum is the same as without it. Waiting
// for the ring does not count as computing.
func TestCompressedScale(t *testing.T) {
	s, p, memory := newPair(t, Update{Scale: 1 << 15})
	var travelled []float32
	s.summer.Join(compressed{pair{passed: p.passed, heard: &travelled}}, compress.Place{World: 2})
	busy := sumOnce(t, s)
	if want := []float32{1 << 15, 2 << 15, 3 << 15, 4 << 15}; !slices.Equal(travelled, want) {
		t.Errorf("%v travels, want %v", travelled, want)
	}
	if want := []float32{2, 4, 6, 8, 10}; !slices.Equal(memory, want) {
		t.Errorf("the sum and its tail are %v, want %v", memory, want)
	}
	if busy <= 0 || busy >= time.Second {
		t.Errorf("busy for %v, and the ring took a second", busy)
	}
}

// After HoldAfter the second moment is held. After MomentumAfter the momentum is the ranks' own,
// and the weight decay is scaled up as if it were in that momentum.
func TestCompressedRule(t *testing.T) {
	s, _, _ := newPair(t, Update{HoldAfter: 4, MomentumAfter: 6, Decay: 0.75})
	nesterov := compute.Update{Optimizer: compute.Nesterov, Step: 5, Momentum: 0.75,
		WeightDecay: 1}
	adam := compute.Update{Optimizer: compute.Adam, Step: 7, Beta1: 0.75, WeightDecay: 1}
	held := adam
	held.Held = 3
	for _, c := range []struct {
		step int64
		u    compute.Update
		held int64
		keep bool // the momentum
		wd   float32
	}{
		{4, nesterov, 0, true, 1}, {5, nesterov, 4, true, 1}, {7, nesterov, 4, false, 4},
		{7, adam, 6, false, 1}, {7, held, 3, false, 1}, {3, held, 3, true, 1},
	} {
		got := s.Rule(c.step, c.u)
		if got.Held != c.held || (got.Momentum+got.Beta1 == 0.75) != c.keep ||
			got.WeightDecay != c.wd {
			t.Errorf("step %d of %+v: %+v", c.step, c.u, got)
		}
	}
}

// A bucket's span ends when its sum has ended, and not after the tail. The pair takes a second for
// each sum.
func TestCompressedSpans(t *testing.T) {
	s, p, _ := newPair(t, Update{})
	s.Finishes, s.Overlaps = []int{2, 4}, true
	s.cut(1)
	var ends []time.Duration // since the step's begin
	s.Trace = func(_ string, _, ended time.Time) {
		ends = append(ends, ended.Sub(time.Time{}).Truncate(time.Second))
	}
	s.Resume(0, 1, false)
	s.Ready(t.Context(), 2)
	sumOnce(t, s)
	if want := []time.Duration{time.Second, 2 * time.Second}; !slices.Equal(ends, want) {
		t.Errorf("buckets end after %v, want %v; all ended after %v", ends, want, *p.passed)
	}
}
