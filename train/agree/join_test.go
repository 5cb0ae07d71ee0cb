package agree

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rank is a State of one rank: a tensor that holds its step, and 6 lanes of two floats, which hold
// the step and the lane.
type rank struct {
	standing Standing[int64] // whose progress is the step
	tensor   []float32
	states   LaneStates
	gaps     int // what Meet says
	dealt    int // the gaps that Deal heard of; -1: not called
	notices  []string
}

const lanes = 6

// newRank has a state after a step, if that is not 0, and knows some lanes.
func newRank(step int64, known ...int) *rank {
	r := &rank{tensor: make([]float32, 5), states: NewLaneStates(lanes, 2), dealt: -1}
	if step > 0 {
		r.set(Version{step, 1}, known)
	}
	return r
}

func (r *rank) set(v Version, known []int) {
	r.standing = Standing[int64]{Has: true, Joined: 1, Version: v, Progress: v.Step}
	for i := range r.tensor {
		r.tensor[i] = float32(v.Step)
	}
	e := r.states.At(v)
	for _, lane := range known {
		copy(e.Lanes(Lanes{lane, 1}), []float32{float32(v.Step), float32(lane)})
		e.Know(Lanes{lane, 1})
	}
}

func (r *rank) Standing() Standing[int64] { return r.standing }

func (r *rank) StartFresh() error {
	r.set(Version{0, 2}, nil)
	r.Lanes().Zero()
	return nil
}

func (r *rank) Overwrite(Version) { r.standing.Has = false }
func (r *rank) Lanes() *Entry     { return r.states.At(r.standing.Version) }

func (r *rank) Adopt(from Standing[int64]) {
	if r.standing = from; from.Found {
		r.gaps = 0
	}
}

func (r *rank) Meet(context.Context) (gaps int, err error) { return r.gaps, nil }

func (r *rank) Deal(_ context.Context, gaps int) error {
	r.dealt = gaps
	return nil
}

func (r *rank) Reset(segment int64) bool           { return segment == 3 }
func (r *rank) Replay(lanes Lanes) (Replay, error) { return &segments{lanes: lanes}, nil }

// segments counts the segments that lanes were advanced over.
type segments struct {
	lanes Lanes
	n     int
}

func (s *segments) Advance(context.Context, int64) error {
	s.n++
	return nil
}

func (s *segments) State(dst []float32) error {
	for i := range s.lanes.Count {
		dst[2*i], dst[2*i+1] = float32(-s.n), float32(s.lanes.First+i)
	}
	return nil
}

func (s *segments) Close() {}

// join has ranks join a ring, in which look is rank 0's, and wrap changes a rank's gather.
func join(
	t *testing.T, look func(context.Context, Reason) (func() error, error),
	wrap func(r Ranks) Ranks, ranks ...*rank,
) ([]Joined, []error) {
	t.Helper()
	joined := make([]Joined, len(ranks))
	errs := together(t, len(ranks), lanes, func(ctx context.Context, r Ranks) (err error) {
		if wrap != nil {
			r = wrap(r)
		}
		own := ranks[r.Rank]
		j := Join[int64]{Ranks: r, State: own, Tensors: [][]float32{own.tensor}, Shards: own,
			Compare: true, Look: look, Replayer: own, SegmentsPerStep: 2,
			Notice: func(text string) { own.notices = append(own.notices, text) }}
		joined[r.Rank], err = j.Run(ctx)
		return err
	})
	return joined, errs
}

// alike fails unless all ranks are at a step, and know all lanes with this first float.
func alike(t *testing.T, step int64, first func(lane int) float32, ranks []*rank) {
	t.Helper()
	for n, r := range ranks {
		if r.standing.Progress != step || !r.standing.Has || r.tensor[4] != float32(step) {
			t.Errorf("rank %d: %+v, tensor %v", n, r.standing, r.tensor)
		}
		for lane := range lanes {
			want := []float32{first(lane), float32(lane)}
			if got := r.Lanes().Lanes(Lanes{lane, 1}); !slices.Equal(got, want) ||
				r.Lanes().Lost() != nil {
				t.Errorf("rank %d, lane %d: %v, want %v", n, lane, got, want)
			}
		}
	}
}

// The furthest rank's state is everybody's, and the lanes come from those who know them.
func TestJoinCopies(t *testing.T) {
	ranks := []*rank{newRank(0), newRank(7, 0, 1, 2), newRank(6, 0, 1), newRank(7, 2, 3, 4, 5)}
	joined, errs := join(t, nil, nil, ranks...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	alike(t, 7, func(int) float32 { return 7 }, ranks)
	for _, got := range joined {
		if got.Donor != 1 || got.From != "" || !slices.Equal(got.Copied, []int{0, 2}) ||
			got.LostLanes != nil {
			t.Errorf("%+v", got)
		}
	}
}

// Of three ranks at one step, the one whose tensor differs is found before it is copied.
func TestJoinComparesBeforeItCopies(t *testing.T) {
	ranks := []*rank{newRank(7, 0, 1), newRank(7, 2, 3), newRank(7, 4, 5), newRank(0)}
	ranks[0].tensor[2]++
	_, errs := join(t, nil, nil, ranks...)
	var corrupt *CorruptError
	if !errors.As(errs[0], &corrupt) || corrupt.Rank != 0 {
		t.Error(errs[0])
	}
	for _, err := range errs[1:] {
		var others *PeerCorruptError
		if !errors.As(err, &others) || !slices.Equal(others.Ranks, []int{0}) {
			t.Error(err)
		}
	}
}

// A tensor that arrives changed is copied again, copyTries times at most.
func TestJoinCopiesAgain(t *testing.T) {
	for spoils, want := range map[int]bool{copyTries - 1: true, copyTries: false} {
		ranks := []*rank{newRank(7, 0, 1, 2, 3, 4, 5), newRank(0)}
		wrap := func(r Ranks) Ranks {
			whole, left := r.AllGather, spoils
			r.AllGather = func(ctx context.Context, buf []float32, ends []int) error {
				err := whole(ctx, buf, ends)
				if r.Rank == 1 && len(buf) == 5 && left > 0 {
					left--
					buf[1]++
				}
				return err
			}
			return r
		}
		_, errs := join(t, nil, wrap, ranks...)
		var corrupt *CorruptError
		if got := errors.Join(errs...) == nil; got != want ||
			!got && !errors.As(errs[1], &corrupt) {
			t.Errorf("%d times another tensor: %v", spoils, errs)
		}
	}
}

// Without a state, or without a lane, the ranks take a snapshot; without that they begin anew, or
// replay the lanes since they were zero.
func TestJoinRestores(t *testing.T) {
	const snapshot = 5
	for _, c := range []struct {
		why   Reason
		found bool
		from  string
		step  int64
	}{
		{NoState, true, FromCheckpoint, snapshot}, {NoState, false, FromScratch, 0},
		{LostLanes, true, FromCheckpoint, snapshot}, {LostLanes, false, FromReplay, 7},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			ranks := []*rank{newRank(0), newRank(0)}
			if c.why == LostLanes {
				ranks = []*rank{newRank(7, 0, 1), newRank(7, 2, 5)}
				ranks[0].gaps, ranks[1].gaps = 4, 4
			}
			look := func(_ context.Context, why Reason) (func() error, error) {
				if why != c.why {
					t.Errorf("asked for because of %v", why)
				}
				if !c.found {
					return nil, nil
				}
				return func() error {
					ranks[0].set(Version{snapshot, 2}, []int{0, 1, 2, 3, 4, 5})
					return nil
				}, nil
			}
			joined, errs := join(t, look, nil, ranks...)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, got := range joined {
				if got.From != c.from || c.why == LostLanes && (got.LostSlots != 4 ||
					!slices.Equal(got.LostLanes, []int{3, 4})) {
					t.Errorf("%+v", got)
				}
			}
			switch c.from {
			case FromCheckpoint:
				alike(t, snapshot, func(int) float32 { return snapshot }, ranks)
			case FromReplay: // of the segments [3, 14), from zeros at 3
				alike(t, 7, func(lane int) float32 {
					if lane == 3 || lane == 4 {
						return -11
					}
					return 7
				}, ranks)
				if ranks[1].dealt != 4 || joined[0].Replayed != 11 ||
					!strings.Contains(ranks[0].notices[0], "replaying the last 11 segments") {
					t.Errorf("%+v, %q", joined[0], ranks[0].notices)
				}
			}
		})
	}
}

// A snapshot that cannot be found or loaded ends the Join.
func TestJoinCannotRestore(t *testing.T) {
	for _, load := range []func() error{nil, func() error { return errTest }} {
		_, errs := join(t, func(context.Context, Reason) (func() error, error) {
			if load == nil {
				return nil, errTest
			}
			return load, nil
		}, nil, newRank(0), newRank(0))
		if !errors.Is(errs[0], errTest) || errs[1] == nil {
			t.Error(errs)
		}
	}
}
