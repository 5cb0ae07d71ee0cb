package train

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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

// Rank 0 may look for a snapshot for much longer than the ranks wait for each other.
func TestRestoreTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oracle := elasticJob(6).mustRun(t)
		e := newElastic(t, elasticJob(6), 3)
		e.wrap = func(f *frail) Reducer { return &impatient{*f, 3 * lookSigns / 2} }
		e.restore = func(ctx context.Context, _ RestoreReason) (*Snapshot, error) {
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
		if got.From != FromCheckpoint || got.Step != 4 || got.Took < time.Hour {
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
					time.AfterFunc(time.Minute, func() { stop(errTest) })
				}
				ended := false // not atomic: Join returns after Restore
				e.restore = func(ctx context.Context, _ RestoreReason) (*Snapshot, error) {
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
