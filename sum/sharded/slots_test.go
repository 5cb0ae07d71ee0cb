package sharded

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/train/agree"
)

func TestEnds(t *testing.T) {
	for _, n := range []int{1, 15, 16, 17, 100, 4096, 4100} {
		for ranks := 1; ranks <= 8; ranks++ {
			ends := endsOf(n, ranks)
			begin, most := 0, (n+unit*ranks-1)/(unit*ranks)*unit
			for _, end := range ends {
				if end < begin || end-begin > most || end != n && end%unit != 0 {
					t.Errorf("%d floats on %d ranks: %v", n, ranks, ends)
				}
				begin = end
			}
			if begin != n {
				t.Errorf("%d floats on %d ranks: %v", n, ranks, ends)
			}
		}
	}
}

// rank returns a rank's part of two slots of n parameters after one update, in a ring.
func rank(t *testing.T, copies, n, rank, ranks int) *Slots {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	params, gradient := dev.Alloc(n), dev.Alloc(n+8)
	s, err := New(copies, agree.SlotsConfig{Device: dev, Params: params, Slots: 2, Compare: true,
		Gradient: compute.NewMirrorInPlace(dev, gradient, n),
		Copy:     func(dst, src []float32) { copy(dst, src) },
		Version:  func() agree.Version { return agree.Version{Step: 3, Ring: 1} },
		Updates:  func() int64 { return 3 }, Replace: func() {}, Notice: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		dev.Close()
	})
	r := agree.Ranks{Rank: rank, LaneEnds: make([]int, ranks), Generation: 1}
	if ranks > 1 {
		r.AllGather = func(context.Context, []float32, []int) error { return nil }
	}
	s.Enter(r)
	if err := s.Fresh(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A rank keeps the slots of its own range, and with two copies also its predecessor's.
func TestSlotsAreParts(t *testing.T) {
	const n = 1000
	for copies := 1; copies <= MaxCopies; copies++ {
		for ranks := 2; ranks <= 4; ranks++ {
			most := (n/unit + ranks) / ranks * unit
			for at := range ranks {
				s := rank(t, copies, n, at, ranks)
				floats := 0
				for _, h := range s.held {
					for _, x := range h.slots {
						floats += len(x)
					}
					if (len(h.log) > 0) != (copies == 2) {
						t.Errorf("rank %d: a log of %d floats", at, len(h.log))
					}
				}
				if floats > 2*copies*most || floats == 0 || len(s.held) != copies {
					t.Errorf("rank %d of %d keeps %d floats of %d in %d ranges", at, ranks, floats,
						2*n, len(s.held))
				}
			}
		}
	}
}

// A single rank has all slots; a rank in a larger ring cannot update alone.
func TestOwn(t *testing.T) {
	if own := rank(t, 2, 100, 0, 1).Own(); len(own) != 2 || len(own[1]) != 100 {
		t.Errorf("%d slots", len(own))
	}
	defer func() {
		if got, want := fmt.Sprint(recover()), "sharded: rank 1 of 3 updates alone"; got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}()
	rank(t, 1, 100, 1, 3).Own()
}

// A rank that has logged a step applies the log once if the others have committed the step.
func TestCatchUp(t *testing.T) {
	before, next := agree.Version{Step: 3, Ring: 1}, agree.Version{Step: 4, Ring: 1}
	for name, c := range map[string]struct {
		skipped bool
		to      agree.Version
		at      agree.Version
		moment  float32 // the first moment, a tenth of the gradient
	}{
		"committed":         {false, next, next, 0.1},
		"skipped":           {true, next, next, 0},
		"not the next step": {false, agree.Version{Step: 5, Ring: 2}, before, 0},
	} {
		s := rank(t, 2, 100, 1, 3)
		s.next, s.skipped = next, c.skipped
		s.rule = compute.Update{Optimizer: compute.Adam, Step: 4, LR: 1, Beta1: 0.9, Beta2: 0.999,
			Epsilon: 1e-8}
		for _, h := range s.held {
			for i := range h.log {
				h.log[i] = 1
			}
		}
		for range 2 {
			s.CatchUp(c.to)
			for _, h := range s.held {
				got := h.slots[0][0]
				if got < c.moment-1e-6 || got > c.moment+1e-6 || s.at != c.at {
					t.Errorf("%s: a moment of %v at %v", name, got, s.at)
				}
			}
		}
		if slices.Max(s.Params) != 0 {
			t.Errorf("%s: the parameters have changed", name)
		}
	}
}

// Slots travel from the lowest rank that has them, if a rank needs them. Slots that differ between
// two ranks have no giver.
func TestPlan(t *testing.T) {
	r := ranges{ends: []int{32, 64, 96}, copies: 2}
	offers := make([]offer, 3)
	for at := range offers {
		for i, span := range r.spans(at) {
			offers[at].Ranges[i] = [2]int64{int64(span[0]), int64(span[1])}
			offers[at].Digests[i] = uint64(span[0])
		}
	}
	stays := []transfer{{0, 32, 0, false}, {32, 64, 1, false}, {64, 96, 0, false}}
	if got := r.plan(offers); !slices.Equal(got, stays) {
		t.Errorf("%v, not %v", got, stays)
	}
	lost := slices.Clone(offers)
	lost[1], lost[2] = offer{}, offer{}
	want := []transfer{{0, 32, 0, true}, {32, 64, -1, false}, {64, 96, 0, true}}
	if got := r.plan(lost); !slices.Equal(got, want) {
		t.Errorf("lost: %v, not %v", got, want)
	}
	offers[1].Digests[0]++
	want = []transfer{{0, 32, 0, false}, {32, 64, -1, false}, {64, 96, 0, false}}
	if got := r.plan(offers); !slices.Equal(got, want) {
		t.Errorf("differing: %v, not %v", got, want)
	}
}
