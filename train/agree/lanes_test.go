package agree

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
)

// LaneStates keeps the entry that a step is computed from, and reuses older entries.
func TestLaneStates(t *testing.T) {
	s := NewLaneStates(3, 2)
	s.Open(Version{4, 1}, 3).Know(Lanes{0, 3})
	next := s.Open(Version{5, 1}, 4)
	next.Know(Lanes{1, 2})
	if got := next.Lost(); !slices.Equal(got, []int{0}) {
		t.Errorf("lanes %v are lost", got)
	}
	if got := s.At(Version{4, 1}).Lost(); got != nil {
		t.Errorf("after step 4 the lanes %v are lost", got)
	}
	again := s.Open(Version{5, 2}, 4) // the step is done again, in another ring
	if got := again.Lost(); again != next || len(got) != 3 {
		t.Errorf("lanes %v are lost", got)
	}
	if got := s.At(Version{5, 1}).Lost(); len(got) != 3 { // of a ring that does not count
		t.Errorf("lanes %v are lost", got)
	}
	s.Forget()
	if got := s.At(Version{4, 1}).Lost(); len(got) != 3 {
		t.Errorf("lanes %v are lost after Forget", got)
	}
}

func TestHeal(t *testing.T) {
	s := NewLaneStates(4, 2)
	e := s.At(Version{3, 1})
	e.Know(Lanes{0, 3})
	copy(e.States, []float32{1, 2, 3, float32(math.Inf(1)), float32(math.NaN()), 6,
		float32(math.Inf(-1)), 8})
	if e.Heal(Lanes{0, 1}) || !slices.Equal(e.States[:6], []float32{1, 2, 0, 0, 0, 0}) ||
		e.States[7] != 8 { // whose lane is not known
		t.Errorf("%v", e.States)
	}
	if e.States[3] = float32(math.NaN()); !e.Heal(Lanes{1, 2}) {
		t.Error("an own lane was healed, and that was not said")
	}
}

// dealt deals 40 lanes to three ranks, each of which knows some.
func dealt(t *testing.T, knows func(rank, lane int) bool) (entries [3]*Entry, lost [3][]int) {
	t.Helper()
	const lanes = 40 // more than one float of a mask stands for
	errs := together(t, 3, lanes, func(ctx context.Context, r Ranks) (err error) {
		s := NewLaneStates(lanes, 2)
		e := s.At(Version{7, 1})
		for lane := range lanes {
			if knows(r.Rank, lane) {
				copy(e.Lanes(Lanes{lane, 1}), []float32{float32(lane), float32(-lane)})
				e.Know(Lanes{lane, 1})
			}
		}
		lost[r.Rank], err = e.Deal(ctx, r)
		entries[r.Rank] = e
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return entries, lost
}

// After a deal every rank has the states of all lanes that any rank knew.
func TestDeal(t *testing.T) {
	entries, lost := dealt(t, func(rank, lane int) bool {
		return lane%4 == rank || lane == 17 && rank == 2 || lane == 39 && rank != 1
	})
	for rank, e := range entries {
		for lane := range e.Known {
			known := lane%4 != 3 || lane == 39
			x := e.Lanes(Lanes{lane, 1})
			if e.Known[lane] != known || known && (x[0] != float32(lane) || x[1] != -x[0]) ||
				slices.Contains(lost[rank], lane) == known {
				t.Fatalf("rank %d, lane %d: %v, %v lost", rank, lane, x, lost[rank])
			}
		}
	}
}

// A deal that fails keeps the known lanes, and marks no others as known.
func TestDealBreaks(t *testing.T) {
	s := NewLaneStates(4, 1)
	e := s.At(Version{7, 1})
	copy(e.States, []float32{1, 2, 3, 4})
	e.Know(Lanes{0, 2})
	calls := 0
	r := Ranks{LaneEnds: []int{2, 4}, AllGather: func(_ context.Context, buf []float32,
		ends []int) error {
		if calls++; calls == 1 {
			buf[ends[0]] = 12 // the other rank knows lanes 2 and 3
			return nil
		}
		for i := range buf {
			buf[i] = float32(math.NaN())
		}
		return errTest
	}}
	if _, err := e.Deal(t.Context(), r); !errors.Is(err, errTest) {
		t.Error(err)
	}
	if !slices.Equal(e.States, []float32{1, 2, 3, 4}) || !slices.Equal(e.Lost(), []int{2, 3}) {
		t.Errorf("%+v", e)
	}
	if e.Zero(); e.Gather(t.Context(), r) != nil || e.Lost() != nil || calls != 2 {
		t.Errorf("%+v after %d gatherings", e, calls)
	}
}

func TestRunsOf(t *testing.T) {
	got := runsOf([]int{0, 2, 3, 4, 6, 7, 9}, Lanes{3, 5})
	if !slices.Equal(got, []Lanes{{3, 2}, {6, 2}}) {
		t.Error(got)
	}
}
