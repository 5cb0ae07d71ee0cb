package corpus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestPrefetchGivesEveryStepInOrder(t *testing.T) {
	defer goleak.VerifyNone(t)
	ids := make(IDs, 1000)
	for i := range ids {
		ids[i] = int32(i)
	}
	s := sampler(t, SamplerConfig{1000, 4, 5, 1, Random})
	want := NewReader(ids, s)
	inputs, targets := make([]int32, 10), make([]int32, 10)
	for _, depth := range []int{1, 2, 7, maxPrefetch} {
		p, err := NewPrefetcher(NewReader(ids, s), PrefetchConfig{5, 1, 2, 3, 100, depth})
		if err != nil {
			t.Fatal(err)
		}
		for step := int64(3); step < 100; step++ {
			got, err := p.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := want.Fill(t.Context(), step, 1, 2, inputs, targets); err != nil {
				t.Fatal(err)
			}
			if got.Step != step || !slices.Equal(got.Inputs, inputs) ||
				!slices.Equal(got.Targets, targets) {
				t.Fatalf("depth %d, step %d: %+v", depth, step, got)
			}
		}
		for range 2 {
			if _, err := p.Next(t.Context()); !errors.Is(err, ErrNoMoreSteps) {
				t.Errorf("after the last step: %v", err)
			}
		}
		p.Close()
	}
}

// failing fails at one step.
type failing struct{ at int64 }

func (f failing) Fill(_ context.Context, step int64, _, _ int, _, _ []int32) error {
	if step == f.at {
		return fmt.Errorf("step %d fails", step)
	}
	return nil
}

func TestPrefetchEnds(t *testing.T) {
	defer goleak.VerifyNone(t)
	// Closed while the queue is full, and nobody takes from it.
	p, err := NewPrefetcher(failing{-1}, PrefetchConfig{1, 0, 1, 0, 1 << 60, 2})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	// Closed by a caller that holds a batch.
	if p, err = NewPrefetcher(failing{-1}, PrefetchConfig{1, 0, 1, 0, 1 << 60, 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Close()
	// An error comes in its turn.
	if p, err = NewPrefetcher(failing{2}, PrefetchConfig{1, 0, 1, 0, 9, 8}); err != nil {
		t.Fatal(err)
	}
	for step := range 2 {
		if _, err := p.Next(t.Context()); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	if _, err := p.Next(t.Context()); err == nil || err.Error() != "step 2 fails" {
		t.Errorf("step 2: %v", err)
	}
	p.Close()
	for _, depth := range []int{0, maxPrefetch + 1} {
		if _, err := NewPrefetcher(failing{}, PrefetchConfig{1, 0, 1, 0, 9, depth}); err == nil {
			t.Errorf("depth %d is no error", depth)
		}
	}
}

// blocked fills nothing until its context ends.
type blocked struct{}

func (blocked) Fill(ctx context.Context, _ int64, _, _ int, _, _ []int32) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestNextWaitsNoLongerThanItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	p, err := NewPrefetcher(blocked{}, PrefetchConfig{1, 0, 1, 0, 9, 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
