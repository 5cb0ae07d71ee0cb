package agree

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/compute/cpu"
)

// rank is a State of one rank: tensors that hold its step, and 6 lanes of two floats, which hold
// the step and the lane.
type rank struct {
	standing Standing[int64] // whose progress is the step
	tensors  [3][]float32
	memory   Memory
	states   LaneStates
	gaps     int // the result of Meet
	dealt    bool
	notices  []string
	record   Record
}

const (
	lanes   = 6
	longest = 1000 // floats of a tensor; no other gathering is as long
)

// newRank has a state after a step, if that is not 0, and knows some lanes.
func newRank(step int64, known ...int) *rank {
	r := &rank{states: NewLaneStates(lanes, 2)}
	for i := range r.tensors {
		r.tensors[i] = make([]float32, longest-i)
	}
	if step > 0 {
		r.set(Version{step, 1}, known)
	}
	return r
}

func (r *rank) set(v Version, known []int) {
	r.standing = Standing[int64]{Has: true, Joined: 1, Version: v, Progress: v.Step}
	for _, x := range r.tensors {
		for i := range x {
			x[i] = float32(v.Step)
		}
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

func (r *rank) Check(s Standing[int64]) error {
	if s.Progress != s.Version.Step || s.Progress > 1000 {
		return fmt.Errorf("step %d, with the progress of step %d", s.Version.Step, s.Progress)
	}
	return nil
}

func (r *rank) Drop(split Version) { r.standing = Standing[int64]{Split: split} }

func (r *rank) Overwrite(Version) { r.standing.Has = false }
func (r *rank) Lanes() *Entry     { return r.states.At(r.standing.Version) }

func (r *rank) Adopt(from Standing[int64]) {
	if r.standing = from; from.Found {
		r.gaps = 0
	}
}

func (r *rank) Meet(context.Context) (gaps int, err error) { return r.gaps, nil }

func (r *rank) Deal(context.Context) error {
	r.dealt = true
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
	t *testing.T, look func(context.Context, Reason, int64) (func() error, error),
	wrap func(r Ranks) Ranks, ranks ...*rank,
) ([]Joined, []error) {
	t.Helper()
	joined := make([]Joined, len(ranks))
	errs := together(t, len(ranks), lanes, func(ctx context.Context, r Ranks) (err error) {
		if wrap != nil {
			r = wrap(r)
		}
		own := ranks[r.Rank]
		j := Join[int64]{Ranks: r, State: own, Tensors: own.tensors[:], Memory: own.memory,
			Shards: own, Compare: true, Look: look, Replayer: own, SegmentsPerStep: 2,
			Record: own.record,
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
		if r.standing.Progress != step || !r.standing.Has {
			t.Errorf("rank %d: %+v", n, r.standing)
		}
		for i, x := range r.tensors {
			for at, got := range x {
				if got != float32(step) {
					t.Fatalf("rank %d: element %d of tensor %d is %v", n, at, i, got)
				}
			}
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

// All ranks get the furthest rank's state, and the lanes from the ranks that know them.
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
	ranks[0].tensors[1][2]++
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

// Tensors that arrive changed are copied again, copyTries times at most. A rank that never gets the
// donor's is corrupt, and the others say which it is.
func TestJoinCopiesAgain(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	const most = 3 * (copyTries - 1) // of three tensors
	for _, host := range []bool{true, false} {
		for _, flips := range []int{1, 3, 4, most, math.MaxInt} {
			ranks := []*rank{newRank(7, 0, 1, 2, 3, 4, 5), newRank(0), newRank(7)}
			for _, r := range ranks[:2] {
				if !host {
					r.memory = Memory{Device: dev, Piece: make([]float32, longest)}
				}
			}
			wrap := func(r Ranks) Ranks {
				whole, left := r.AllGather, flips
				r.AllGather = func(ctx context.Context, buf []float32, ends []int) error {
					err := whole(ctx, buf, ends)
					if r.Rank == 1 && len(buf) >= longest-2 && left > 0 {
						left--
						buf[len(buf)/2] = math.Nextafter32(buf[len(buf)/2], 0)
					}
					return err
				}
				return r
			}
			joined, errs := join(t, nil, wrap, ranks...)
			if flips <= most {
				if err := errors.Join(errs...); err != nil ||
					!slices.Equal(joined[2].Copied, []int{1}) {
					t.Errorf("%d flips: %v, %+v", flips, err, joined[2])
				}
				alike(t, 7, func(int) float32 { return 7 }, ranks)
				continue
			}
			var corrupt *CorruptError
			if !errors.As(errs[1], &corrupt) || corrupt.Rank != 1 || ranks[1].standing.Has {
				t.Error(errs[1])
			}
			for _, n := range []int{0, 2} {
				var others *PeerCorruptError
				if !errors.As(errs[n], &others) || !slices.Equal(others.Ranks, []int{1}) ||
					!ranks[n].standing.Has {
					t.Error(errs[n])
				}
			}
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
			look := func(_ context.Context, why Reason, _ int64) (func() error, error) {
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
				if !ranks[1].dealt || joined[0].Replayed != 11 ||
					!strings.Contains(ranks[0].notices[0], "replaying the last 11 segments") {
					t.Errorf("%+v, %q", joined[0], ranks[0].notices)
				}
			}
		})
	}
}

// A ring with none of these ranks may have gone further and saved its state: a later snapshot
// replaces theirs; an earlier one does not. Nobody looks for a snapshot after a ring that one of
// them was in.
func TestJoinTakesALaterSnapshot(t *testing.T) {
	for _, c := range []struct {
		generation, snapshot int64 // 0: none
		want                 int64
		from                 string
	}{{3, 9, 9, FromCheckpoint}, {3, 0, 7, ""}, {2, 9, 7, ""}} {
		ranks := []*rank{newRank(6, 0, 1, 2), newRank(7, 0, 1, 2, 3, 4, 5)}
		asked := false
		look := func(_ context.Context, why Reason, after int64) (func() error, error) {
			asked = true
			if why != Behind || after != 7 {
				t.Errorf("asked for because of %v, after step %d", why, after)
			}
			if c.snapshot == 0 {
				return nil, nil
			}
			return func() error {
				ranks[0].set(Version{c.snapshot, 3}, []int{0, 1, 2, 3, 4, 5})
				return nil
			}, nil
		}
		joined, errs := join(t, look, func(r Ranks) Ranks {
			r.Generation = c.generation
			return r
		}, ranks...)
		if err := errors.Join(errs...); err != nil || asked != (c.generation == 3) {
			t.Errorf("%+v: asked %v, %v", c, asked, err)
		}
		for _, j := range joined {
			if j.From != c.from || j.Step != c.want {
				t.Errorf("%+v: %+v", c, j)
			}
		}
		alike(t, c.want, func(int) float32 { return float32(c.want) }, ranks)
	}
}

// What others have completed is on record: the ranks look for a later snapshot although all of them
// were in the ring before this one, and say what is done again if there is none.
func TestJoinBehindTheRecord(t *testing.T) {
	for _, c := range []struct {
		record   Version
		snapshot int64 // 0: none
		want     int64
		redone   int64
		from     string
	}{
		{Version{9, 1}, 9, 9, 0, FromCheckpoint}, {Version{9, 1}, 8, 8, 0, FromCheckpoint},
		{Version{9, 1}, 0, 7, 2, ""}, {Version{7, 1}, 9, 7, 0, ""}, {Version{6, 1}, 9, 7, 0, ""},
		{Version{5, 2}, 9, 9, 0, FromCheckpoint}, {Version{9, 0}, 9, 7, 0, ""},
	} {
		ranks := []*rank{newRank(6, 0, 1, 2), newRank(7, 0, 1, 2, 3, 4, 5)}
		ranks[0].record = Record{Version: c.record}
		look := func(_ context.Context, why Reason, after int64) (func() error, error) {
			if why != Behind || after != 7 {
				t.Errorf("asked for because of %v, after step %d", why, after)
			}
			if c.snapshot == 0 {
				return nil, nil
			}
			return func() error {
				ranks[0].set(Version{c.snapshot, 3}, []int{0, 1, 2, 3, 4, 5})
				return nil
			}, nil
		}
		joined, errs := join(t, look, func(r Ranks) Ranks {
			r.Generation = 2
			return r
		}, ranks...)
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		for _, j := range joined {
			told := strings.Contains(j.String(), "2 completed steps are done again")
			if j.From != c.from || j.Step != c.want || j.Redone != c.redone ||
				told != (c.redone == 2) {
				t.Errorf("%+v: %+v, %s", c, j, j)
			}
		}
		alike(t, c.want, func(int) float32 { return float32(c.want) }, ranks)
	}
}

// A rank whose parameters are not those on record is corrupt, whatever most ranks have. A digest
// that nobody had compared proves nothing, nor does one of another step or ring.
func TestJoinHoldsTheRecord(t *testing.T) {
	for _, c := range []struct {
		record  Record
		corrupt []int
	}{
		{Record{Version{7, 1}, 70}, []int{1, 2}}, {Record{Version{7, 1}, 71}, []int{0}},
		{Record{Version{7, 1}, 0}, nil}, {Record{Version{6, 1}, 72}, nil},
		{Record{Version{7, 2}, 72}, nil},
	} {
		ranks := []*rank{newRank(7, 0, 1), newRank(7, 2, 3), newRank(7, 4, 5), newRank(0)}
		for n, r := range ranks[:3] {
			r.standing.Digest = 70 + uint64(min(n, 1))
		}
		ranks[0].record = c.record
		_, errs := join(t, nil, nil, ranks...)
		for n, err := range errs {
			var corrupt *CorruptError
			var others *PeerCorruptError
			is := slices.Contains(c.corrupt, n)
			if errors.As(err, &corrupt) != is ||
				errors.As(err, &others) != (c.corrupt != nil && !is) ||
				others != nil && !slices.Equal(others.Ranks, c.corrupt) {
				t.Errorf("%+v: rank %d: %v", c, n, err)
			}
		}
	}
}

// A snapshot that cannot be found or loaded ends the Join.
func TestJoinCannotRestore(t *testing.T) {
	for _, load := range []func() error{nil, func() error { return errTest }} {
		_, errs := join(t, func(context.Context, Reason, int64) (func() error, error) {
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

// Rank 0 may look for a snapshot for much longer than the ranks wait for each other in the ring.
func TestLookTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ranks := []*rank{newRank(0), newRank(0), newRank(0)}
		look := func(ctx context.Context, _ Reason, _ int64) (func() error, error) {
			select {
			case <-time.After(time.Hour):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return func() error {
				ranks[0].set(Version{4, 2}, []int{0, 1, 2, 3, 4, 5})
				return nil
			}, nil
		}
		impatient := func(r Ranks) Ranks {
			whole := r.AllGather
			r.AllGather = func(ctx context.Context, buf []float32, ends []int) error {
				ctx, cancel := context.WithTimeoutCause(ctx, 3*lookSigns/2, errTest)
				defer cancel()
				return whole(ctx, buf, ends)
			}
			return r
		}
		began := time.Now()
		joined, errs := join(t, look, impatient, ranks...)
		if err := errors.Join(errs...); err != nil || joined[2].From != FromCheckpoint ||
			time.Since(began) < time.Hour {
			t.Errorf("%v, %+v after %v", err, joined[2], time.Since(began))
		}
		alike(t, 4, func(int) float32 { return 4 }, ranks)
	})
}

// While rank 0 looks, the end of its ctx ends the Join with its cause, and so does a ring that
// breaks. Look has ended then.
func TestLookIsBrokenOff(t *testing.T) {
	for _, byRing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ended := false // not atomic: Run returns after Look
			look := func(ctx context.Context, _ Reason, _ int64) (func() error, error) {
				<-ctx.Done()
				ended = true
				return nil, errors.New("the storage has been left")
			}
			errs := together(t, 2, lanes, func(ctx context.Context, r Ranks) error {
				own := newRank(0)
				j := Join[int64]{Ranks: r, State: own, Shards: own, Look: look}
				if r.Rank == 0 && !byRing {
					var stop context.CancelCauseFunc
					ctx, stop = context.WithCancelCause(ctx)
					defer stop(nil)
					time.AfterFunc(time.Minute+lookSigns/2, func() { stop(errTest) })
				}
				if calls := 0; byRing {
					j.Ranks.AllGather = func(ctx context.Context, b []float32, ends []int) error {
						if calls++; calls == 5 {
							return errTest
						}
						return r.AllGather(ctx, b, ends)
					}
				}
				_, err := j.Run(ctx)
				return err
			})
			if !ended || !errors.Is(errs[0], errTest) {
				t.Errorf("%v, and Look has ended: %v", errs[0], ended)
			}
		})
	}
}
