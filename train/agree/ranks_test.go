package agree

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errTest = errors.New("it broke")

// meeting is a gather in one process. The last rank to come copies for all.
type meeting struct {
	mu      sync.Mutex
	bufs    [][]float32
	arrived int
	met     chan struct{} // closed when all have come
}

// meet is one rank's AllGather. A rank writes nothing where its bits are the owner's.
func (m *meeting) meet(ctx context.Context, rank int, buf []float32, ends []int) error {
	m.mu.Lock()
	met := m.met
	m.bufs[rank] = buf
	if m.arrived++; m.arrived == len(m.bufs) {
		begin := 0
		for owner, end := range ends {
			for _, b := range m.bufs {
				copy(b[begin:end], m.bufs[owner][begin:end])
			}
			begin = end
		}
		m.arrived, m.met = 0, make(chan struct{})
		close(met)
	}
	m.mu.Unlock()
	select {
	case <-met:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-met: // it was over before another rank failed
		return nil
	default:
		return context.Cause(ctx)
	}
}

// together runs do on n ranks, which share the lanes evenly. The first failure ends the others'
// gathers. It returns the results of all.
func together(t *testing.T, n, lanes int, do func(ctx context.Context, r Ranks) error) []error {
	t.Helper()
	m := &meeting{bufs: make([][]float32, n), met: make(chan struct{})}
	group, ctx := errgroup.WithContext(t.Context())
	errs := make([]error, n)
	ends := make([]int, n)
	for rank := range ends {
		ends[rank] = lanes * (rank + 1) / n
	}
	for rank := range n {
		r := Ranks{Rank: rank, LaneEnds: ends, Generation: 2}
		if n > 1 {
			r.AllGather = func(ctx context.Context, buf []float32, ends []int) error {
				return m.meet(ctx, rank, buf, ends)
			}
		}
		group.Go(func() error {
			errs[rank] = do(ctx, r)
			return errs[rank]
		})
	}
	_ = group.Wait() // each rank's error is in errs
	return errs
}

// Every bit of a value arrives, on any number of ranks.
func TestGather(t *testing.T) {
	type value struct {
		Yes  bool
		Bits uint64
		Real float64
		Pair [2]int32
	}
	of := func(rank int) value {
		return value{rank%2 == 1, math.MaxUint64 - uint64(rank), math.Inf(-rank),
			[2]int32{-1, int32(rank)}}
	}
	for _, n := range []int{1, 2, 3, 7} {
		errs := together(t, n, n, func(ctx context.Context, r Ranks) error {
			all, err := Gather(ctx, r, of(r.Rank))
			for rank, got := range all {
				if got != of(rank) {
					t.Errorf("%d ranks: rank %d has %+v of rank %d", n, r.Rank, got, rank)
				}
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
	if _, err := Gather(t.Context(), Ranks{LaneEnds: []int{1, 2}, AllGather: func(
		context.Context, []float32, []int) error {
		return nil
	}}, "of no fixed size"); err == nil {
		t.Error("a string was gathered")
	}
}

func TestNamesAndLanes(t *testing.T) {
	r := Ranks{LaneEnds: []int{4, 5, 12}}
	if got := r.Name(1); got != "rank 1" {
		t.Error(got)
	}
	r.Names = []string{"a", "b", "c"}
	if got := r.Name(1); got != "rank 1 (b)" {
		t.Error(got)
	}
	got := []Lanes{r.Lanes(0), r.Lanes(1), r.Lanes(2)}
	if !slices.Equal(got, []Lanes{{0, 4}, {4, 1}, {5, 7}}) {
		t.Error(got)
	}
}
