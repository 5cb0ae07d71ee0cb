package linktest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/allreduce"
)

// CheckQueuedRounded queues sums of random buffers of the lengths, each with a random element, half
// of the rounding ones with error feedback. Sums and residuals must have the same bits as when each
// sum ends before the next begins.
func CheckQueuedRounded(t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, lengths []int) {
	t.Helper()
	alone := make([][]allreduce.Sum, len(rings)) // by rank, then by length
	for _, n := range lengths {
		e := allreduce.Element(rng.IntN(int(allreduce.Float16) + 1))
		feedback := e != allreduce.Float32 && rng.IntN(2) == 0
		for rank, buf := range draw(rng, len(rings), n).bufs {
			s := allreduce.Sum{Buf: buf, Element: e}
			if feedback {
				s.Residual = make([]float32, n)
				for k := range s.Residual {
					s.Residual[k] = rng.Float32() - 0.5
				}
			}
			alone[rank] = append(alone[rank], s)
		}
	}
	together := make([][]allreduce.Sum, len(rings))
	for rank, sums := range alone {
		for _, s := range sums {
			s.Buf, s.Residual = slices.Clone(s.Buf), slices.Clone(s.Residual)
			together[rank] = append(together[rank], s)
		}
	}
	for rank, err := range Each(len(rings), func(rank int) error {
		for i := range alone[rank] {
			if err := sumAll(rings[rank], alone[rank][i:i+1]); err != nil {
				return err
			}
		}
		return sumAll(rings[rank], together[rank])
	}) {
		if err != nil {
			t.Fatalf("lengths %v, rank %d: %v", lengths, rank, err)
		}
	}
	same := func(a, b []float32) bool {
		return slices.Equal(allreduce.Bytes(a), allreduce.Bytes(b))
	}
	for rank, sums := range together {
		for i, got := range sums {
			want := alone[rank][i]
			if !same(got.Buf, want.Buf) || !same(got.Residual, want.Residual) ||
				!same(got.Buf, together[0][i].Buf) {
				t.Fatalf("%d floats as %v, rank %d of %d: other bits than alone, or than rank 0",
					len(got.Buf), got.Element, rank, len(rings))
			}
		}
	}
}

func sumAll(ring *allreduce.Ring, sums []allreduce.Sum) error {
	ctx := context.Background()
	var pending []*allreduce.Pending
	for _, s := range sums {
		p, err := ring.Start(ctx, s)
		if err != nil {
			return err
		}
		pending = append(pending, p)
	}
	for _, p := range pending {
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
