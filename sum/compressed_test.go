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

// pair is a ring whose other rank has the same numbers.
type pair struct {
	Ring
	passed *time.Duration // a second for each sum
	heard  *[]float32     // what travels
}

func (p pair) AllReduce(_ context.Context, buf []float32) error {
	*p.heard = append((*p.heard)[:0], buf...)
	*p.passed += time.Second
	for i := range buf {
		buf[i] += buf[i]
	}
	return nil
}

func (p pair) AllReduceCarry(ctx context.Context, buf, _, _ []float32) error {
	return p.AllReduce(ctx, buf)
}

// compressed is the pair as a compress.Ring, whose sums take another second to compute.
type compressed struct{ pair }

func (c compressed) Start(
	ctx context.Context, buf, _ []float32,
) (compress.Pending, error) {
	return handed{}, c.AllReduce(ctx, buf)
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
		*p.passed += time.Millisecond // each look at the clock is something computed
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

// sumOnce does one step.
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

// The gradient travels times the scale, and the sum is as without one. Waiting for the ring is not
// counted as computing.
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

// From a step on the optimizer's second moment stays, and the momentum is the ranks' own. The decay
// of the weights then counts as often as if it were in the momentum.
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
