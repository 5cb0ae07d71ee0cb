package train

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rondo/compute"
	"rondo/train/agree"
)

// lookSigns is after how long the ranks meet again while rank 0 looks for a snapshot.
const lookSigns = time.Second

// impatient is a rank's Reducer in a ring whose ranks wait for each other for so long only.
type impatient struct {
	frail
	patience time.Duration
}

func (i *impatient) AllGather(ctx context.Context, buf []float32, ends []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, i.patience, errBroken)
	defer cancel()
	return i.frail.AllGather(ctx, buf, ends)
}

func (i *impatient) AllReduceCarry(ctx context.Context, buf, out, in []float32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, i.patience, errBroken)
	defer cancel()
	return i.frail.AllReduceCarry(ctx, buf, out, in)
}

// Rank 0 may look for a snapshot for much longer than the ranks wait for each other.
func TestRestoreTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oracle := elasticJob(6).mustRun(t)
		e := newElastic(t, elasticJob(6), 3)
		e.wrap = func(f *frail) Reducer { return &impatient{*f, 3 * lookSigns / 2} }
		e.restore = func(ctx context.Context, _ agree.Reason) (*Snapshot, error) {
			select {
			case <-time.After(time.Hour):
				return oracle.saved[0], nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		e.ring(breakage{}, 0, 1, 2)
		e.whole(0, 1, 2)
		e.like(2, oracle)
		got := e.hands[2].joined
		if got.From != agree.FromCheckpoint || got.Step != 4 || got.Took < time.Hour {
			t.Errorf("%+v", got)
		}
	})
}

// While rank 0 looks, the end of its ctx ends the Join with its cause, and so does a ring that
// breaks; Restore has ended then.
func TestRestoreIsBrokenOff(t *testing.T) {
	for name, how := range map[string]breakage{
		"the caller": {},
		"a rank":     {call: 5, dead: []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newElastic(t, elasticJob(6), 2)
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				if how.call == 0 {
					time.AfterFunc(time.Minute+lookSigns/2, func() { stop(errTest) })
				}
				ended := false // not atomic: Join returns after Restore
				e.restore = func(ctx context.Context, _ agree.Reason) (*Snapshot, error) {
					<-ctx.Done()
					ended = true
					return nil, errors.New("the storage has been left")
				}
				e.ringUntil(ctx, how, 0, 1)
				err, want := e.hands[0].err, errBroken
				if how.call == 0 {
					want = errTest
				}
				if !ended || !errors.Is(err, want) || e.hands[0].trainer.HasState() {
					t.Errorf("%v, and Restore has ended: %v", err, ended)
				}
			})
		})
	}
}

// leaky is the Reducer of a rank to which a bit of long gatherings comes flipped.
type leaky struct {
	frail
	least int // how long they are
	flips int // how many come so yet
}

func (l *leaky) AllGather(ctx context.Context, buf []float32, ends []int) error {
	err := l.frail.AllGather(ctx, buf, ends)
	if err == nil && len(buf) >= l.least && l.flips > 0 {
		l.flips--
		middle := &buf[len(buf)/2]
		*middle = math.Float32frombits(math.Float32bits(*middle) ^ 1<<12)
	}
	return err
}

// A state that comes as another one is copied again.
func TestCopyIsVerified(t *testing.T) {
	for _, host := range []bool{true, false} {
		for _, flips := range []int{1, 3, 4, 6} { // a copy is of three tensors
			j := elasticJob(7)
			j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.AdamW, 0.005
			if j.config.HostMemory = host; !host {
				j.model.GradientTail = 0
			}
			oracle := j.mustRun(t)
			e := newElastic(t, j, 2)
			regroupAt(e, 1, 1)
			e.ring(breakage{}, 0, 1)
			newcomer := e.hire()
			e.wrap = func(f *frail) Reducer {
				if f.rank != 1 {
					return f
				}
				return &leaky{*f, len(e.hands[0].model.Params()), flips}
			}
			e.ring(breakage{}, 0, newcomer, 1)
			e.whole(0, newcomer, 1)
			e.like(newcomer, oracle)
			if got := e.hands[1].joined; !slices.Equal(got.Copied, []int{1}) || got.Step != 2 {
				t.Errorf("%+v", got)
			}
		}
	}
}

// Whoever never gets what the donor has is out; the others say who it is, and keep theirs.
func TestCopyNeverArrives(t *testing.T) {
	e := newElastic(t, elasticJob(7), 2)
	regroupAt(e, 1, 1)
	e.ring(breakage{}, 0, 1)
	newcomer := e.hire()
	e.wrap = func(f *frail) Reducer {
		if f.rank != 2 {
			return f
		}
		return &leaky{*f, len(e.hands[0].model.Params()), math.MaxInt}
	}
	e.ring(breakage{}, 1, 0, newcomer)
	for worker, h := range e.hands {
		var corrupt *agree.CorruptError
		var others *agree.PeerCorruptError
		found := worker == newcomer && errors.As(h.err, &corrupt) && corrupt.Rank == 2 ||
			worker != newcomer && errors.As(h.err, &others) && slices.Equal(others.Ranks, []int{2})
		if !found || h.trainer.HasState() != (worker != newcomer) {
			t.Errorf("worker %d: %v", worker, h.err)
		}
	}
	e.wrap = nil
	e.ring(breakage{}, 1, 0)
	e.whole(1, 0)
}

// What is corrupt is not copied: the ranks that have a state agree on it before.
func TestCorruptDonor(t *testing.T) {
	j := elasticJob(8)
	j.config.SaveEvery, j.config.CheckEvery = 0, 7
	e := newElastic(t, j, 3)
	e.hands[0].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
		return Spoil{Flip: step == 2}
	}}
	regroupAt(e, 1, 2)
	e.ring(breakage{}, 0, 1, 2)
	newcomer := e.hire()
	e.ring(breakage{}, 0, 1, newcomer, 2)
	var corrupt *agree.CorruptError
	if !errors.As(e.hands[0].err, &corrupt) || e.hands[0].trainer.HasState() {
		t.Error(e.hands[0].err)
	}
	for _, worker := range []int{1, 2, newcomer} {
		var others *agree.PeerCorruptError
		if err := e.hands[worker].err; !errors.As(err, &others) ||
			!slices.Equal(others.Ranks, []int{0}) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	e.ring(breakage{}, 1, 2, newcomer)
	if got := e.hands[1].joined; got.Step != 3 || !slices.Equal(got.Copied, []int{2}) {
		t.Errorf("%+v", got)
	}
	e.whole(1, 2, newcomer)
}
