package allreduce_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

// sumOn sums value(rank) over the ranks, in each rank's Sum of s, and returns the first number of
// rank 0's sum.
func sumOn(
	t *testing.T, rings []*allreduce.Ring, value func(rank int) float32, s []allreduce.Sum,
) float32 {
	t.Helper()
	errs := linktest.Each(len(rings), func(rank int) error {
		for i := range s[rank].Buf {
			s[rank].Buf[i] = value(rank)
		}
		p, err := rings[rank].Start(context.Background(), s[rank])
		if err != nil {
			return err
		}
		return p.Wait(context.Background())
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return s[0].Buf[0]
}

// TestErrorFeedback: without a residual, a number smaller than the rounding is lost in every step.
// With one, the mean over many steps keeps it.
func TestErrorFeedback(t *testing.T) {
	const world, steps = 3, 256
	for e, small := range map[allreduce.Element]float32{
		allreduce.BFloat16: 0x1p-11, allreduce.Float16: 0x1p-14,
	} {
		rings := linktest.Rings(t, connect(world), generation, 64, time.Minute)
		value := func(rank int) float32 { return float32(rank+1) * (1 + small) }
		exact := 6 * (1 + float64(small))
		sums := make([]allreduce.Sum, world)
		for rank := range sums {
			sums[rank] = allreduce.Sum{Buf: make([]float32, 7), Element: e}
		}
		if got := sumOn(t, rings, value, sums); got != 6 {
			t.Errorf("%v without a residual: %v, want 6: nothing is shown", e, got)
		}
		for rank := range sums {
			sums[rank].Residual = make([]float32, 7)
		}
		mean := 0.0
		for range steps {
			mean += float64(sumOn(t, rings, value, sums)) / steps
		}
		// A rank withholds at most half a last place in the end.
		limit := world * 8 * float64(small) * 2 / steps
		if off := math.Abs(mean - exact); off > limit {
			t.Errorf("%v: the mean of %d sums is %v, want %v within %v",
				e, steps, mean, exact, limit)
		}
	}
}

// TestNotFinite: an overflow or NaN reaches all ranks and is not withheld.
func TestNotFinite(t *testing.T) {
	const world = 4
	for _, test := range []struct {
		element allreduce.Element
		value   float32
		want    float64
	}{
		{allreduce.Float16, 30000, math.Inf(1)},
		{allreduce.Float16, float32(math.Inf(-1)), math.Inf(-1)},
		{allreduce.BFloat16, float32(math.NaN()), math.NaN()},
		{allreduce.BFloat16, math.MaxFloat32, math.Inf(1)},
	} {
		rings := linktest.Rings(t, connect(world), generation, 64, time.Minute)
		sums := make([]allreduce.Sum, world)
		for rank := range sums {
			sums[rank] = allreduce.Sum{Buf: make([]float32, 9), Element: test.element,
				Residual: make([]float32, 9)}
		}
		got := sumOn(t, rings, func(int) float32 { return test.value }, sums)
		if float64(got) != test.want && !(math.IsNaN(test.want) && got != got) {
			t.Errorf("%v of each of %d as %v: %v, want %v", test.value, world, test.element, got,
				test.want)
		}
		for rank, s := range sums {
			if !slices.Equal(allreduce.Bytes(s.Buf), allreduce.Bytes(sums[0].Buf)) {
				t.Errorf("rank %d has %v, rank 0 %v", rank, s.Buf, sums[0].Buf)
			}
			for _, withheld := range s.Residual {
				if withheld-withheld != 0 {
					t.Errorf("rank %d withholds %v", rank, s.Residual)
				}
			}
		}
	}
}

// TestRoundedWithoutAllocations: the ring reuses its memory for rounded payloads.
func TestRoundedWithoutAllocations(t *testing.T) {
	rings := linktest.Rings(t, connect(2), generation, 64, time.Minute)
	sums := make([]allreduce.Sum, 2)
	for rank := range sums {
		sums[rank] = allreduce.Sum{Buf: make([]float32, 300), Element: allreduce.BFloat16,
			Residual: make([]float32, 300)}
	}
	both := func(rank int) error {
		p, err := rings[rank].Start(context.Background(), sums[rank])
		if err != nil {
			return err
		}
		return p.Wait(context.Background())
	}
	checkAllocations(t, "a sum of two ranks", both)
}

func TestWrongSums(t *testing.T) {
	ring := linktest.Rings(t, connect(2), generation, 0, time.Minute)[0]
	for _, test := range []struct {
		sum  allreduce.Sum
		want string
	}{
		{allreduce.Sum{Element: 9}, "all-reduce: unknown element 9: want fp32, bf16 or fp16"},
		{allreduce.Sum{Buf: make([]float32, 3), Residual: make([]float32, 3)},
			"all-reduce: a residual beside fp32, which rounds nothing"},
		{allreduce.Sum{Buf: make([]float32, 3), Residual: make([]float32, 4),
			Element: allreduce.BFloat16}, "all-reduce: a residual of 4 floats beside 3"},
	} {
		_, err := ring.Start(context.Background(), test.sum)
		if err == nil || err.Error() != test.want || ring.Err() != nil {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}
