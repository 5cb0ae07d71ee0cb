package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/train/agree"
)

// rehearse gives a trainer that is in a ring a Rehearsal.
func rehearse(t *Trainer, r Rehearsal) {
	t.cfg.Rehearsal = r
	t.path = t.newUpdatePath()
}

// rehearsed is a Rehearsal that notes what it hears.
type rehearsed struct {
	at    func(phase string, step int64) error // nil: nothing
	spoil func(step int64) Spoil               // nil: nothing
	heard []string
}

// failsAt fails in a phase of a step, as "update 3" names it.
func failsAt(place string) *rehearsed {
	return &rehearsed{at: func(phase string, step int64) error {
		if fmt.Sprint(phase, " ", step) == place {
			return errTest
		}
		return nil
	}}
}

func (r *rehearsed) At(_ context.Context, phase string, step int64) error {
	r.heard = append(r.heard, fmt.Sprint(phase, " ", step))
	if r.at == nil {
		return nil
	}
	return r.at(phase, step)
}

func (r *rehearsed) Again(ctx context.Context, phase string, step int64, n int) error {
	return r.At(ctx, fmt.Sprintf("%s (pass %d)", phase, n), step)
}

func (r *rehearsed) Spoil(_ context.Context, step int64) Spoil {
	if r.spoil == nil {
		return Spoil{}
	}
	return r.spoil(step)
}

// A rank whose parameters are not the others' is found at the next roll call, by all at once. It
// is given the state of the others, and the job is what it would have been.
func TestCorruptRankIsFound(t *testing.T) {
	for _, host := range []bool{true, false} {
		j := elasticJob(9)
		j.config.CheckEvery, j.config.SaveEvery = 3, 3
		if j.config.HostMemory = host; !host {
			j.model.GradientTail = 0
		}
		oracle := j.mustRun(t)
		// Found at 6: the bit flips in step 4, of two evaluations and saves only that of step 3 has
		// been.
		e := newElastic(t, j, 3)
		for _, h := range e.hands[1:2] {
			h.trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
				return Spoil{Flip: step == 4}
			}}
		}
		e.ring(breakage{}, 0, 1, 2)
		var corrupt *agree.CorruptError
		var others *agree.PeerCorruptError
		for worker, h := range e.hands {
			found := worker == 1 && errors.As(h.err, &corrupt) && corrupt.Rank == 1 ||
				worker != 1 && errors.As(h.err, &others) && slices.Equal(others.Ranks, []int{1})
			if !found || h.trainer.Progress().Step != 6 || len(h.evals) != 1 ||
				h.trainer.HasState() != (worker != 1) {
				t.Fatalf("worker %d at step %d: %v", worker, h.trainer.Progress().Step, h.err)
			}
		}
		if n := len(e.hands[0].saved); n != 1 {
			t.Errorf("%d saved: one of what is corrupt", n)
		}
		e.ring(breakage{}, 1, 2, 0)
		if got := e.hands[0].joined; !slices.Equal(got.Copied, []int{0}) || got.Step != 6 {
			t.Errorf("%+v", got)
		}
		e.whole(1, 2, 0)
		e.audit()
		// Steps 5 and 6 had the corrupt rank's gradients, by one bit of one parameter.
		e.like(1, oracle)
	}
}

// What is saved was agreed on: a bit that flips between a roll call and a save is found before the
// save, whether most ranks are right, or nobody can say who is.
func TestNothingCorruptIsSaved(t *testing.T) {
	for _, ranks := range [][]int{{0, 1, 2}, {0, 1}} {
		for _, flipped := range []int64{5, 8} { // before the save of step 6, and of the last
			j := elasticJob(8)
			j.config.CheckEvery, j.config.SaveEvery, j.config.EvalEvery = 100, 3, 4
			oracle := j.mustRun(t)
			e := newElastic(t, j, len(ranks))
			e.hands[0].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
				return Spoil{Flip: step == flipped}
			}}
			e.ring(breakage{}, ranks...)
			var split *agree.SplitError
			var corrupt *agree.CorruptError
			var others *agree.PeerCorruptError
			for worker, h := range e.hands {
				found := len(ranks) == 2 && errors.As(h.err, &split) ||
					worker == 0 && errors.As(h.err, &corrupt) ||
					worker != 0 && errors.As(h.err, &others)
				if want := flipped/8*2 + 6; !found || h.trainer.Progress().Step != want {
					t.Errorf("worker %d of %d at step %d: %v", worker, len(ranks),
						h.trainer.Progress().Step, h.err)
				}
			}
			saved := e.hands[0].saved
			for i, s := range saved {
				sameProgress := s.Progress.Step == oracle.saved[i].Progress.Step
				for k, p := range s.Params {
					if d := p - oracle.saved[i].Params[k]; !sameProgress || d > 1e-5 || d < -1e-5 {
						t.Fatalf("saved %+v; parameter %d is off by %v", s.Progress, k, d)
					}
				}
			}
			if len(saved) != int(flipped)/4 { // of step 3, and of step 6
				t.Errorf("%d saved", len(saved))
			}
		}
	}
}

// Where no more than half agree, nobody is right, and all say so. They may then forget, and begin
// again from a snapshot, in the same ring.
func TestSplitRanks(t *testing.T) {
	j := elasticJob(5)
	e := newElastic(t, j, 2)
	e.hands[1].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
		return Spoil{Flip: step == 1}
	}}
	e.ring(breakage{}, 0, 1)
	for worker, h := range e.hands {
		var split *agree.SplitError
		if !errors.As(h.err, &split) || split.Step != 2 {
			t.Errorf("worker %d: %v", worker, h.err)
		}
		h.trainer.Forget()
	}
	e.hands[1].trainer.cfg.Rehearsal = nil
	e.rings--
	e.ring(breakage{}, 0, 1)
	e.whole(0, 1)
	e.like(0, j.mustRun(t))
}

// Phases are heard of in their order, by the step's number, and their errors end the run there:
// with the state as it was before the step, or after it.
func TestRehearsal(t *testing.T) {
	j := elasticJob(4)
	j.evaluation = nil
	oracle := j.mustRun(t)
	e := newElastic(t, j, 2)
	r := &rehearsed{}
	e.hands[0].trainer.cfg.Rehearsal = r
	e.ring(breakage{}, 0, 1)
	e.whole(0, 1)
	var want []string
	for step := 1; step <= 4; step++ {
		for _, phase := range []string{"load", "forward", "backward", "update"} {
			want = append(want, fmt.Sprint(phase, " ", step))
		}
	}
	want = append(want, "checkpoint 4")
	if !slices.Equal(r.heard, want) {
		t.Errorf("%v", r.heard)
	}
	for _, place := range want {
		e := newElastic(t, j, 2)
		e.hands[1].trainer.cfg.Rehearsal = failsAt(place)
		e.ring(breakage{}, 0, 1)
		phase, _, _ := strings.Cut(place, " ")
		if err := e.hands[1].err; !errors.Is(err, errTest) || !strings.Contains(err.Error(),
			phase+": it broke") {
			t.Errorf("%s: %v", place, err)
		}
		e.hands[1].trainer.cfg.Rehearsal = nil
		e.ring(breakage{}, 1, 0)
		if lost := e.hands[0].joined.LostLanes; len(lost) > 0 {
			t.Errorf("%s: the lanes %v were lost", place, lost)
		}
		e.whole(1, 0)
		e.audit()
		e.like(1, oracle)
	}
}

// Who wakes up to find that its ctx has ended does not complete the step, and saves nothing, even
// alone, where no ring says so.
func TestNothingIsDoneAfterTheEnd(t *testing.T) {
	for _, place := range []string{"update 3", "checkpoint 4"} {
		for _, workers := range [][]int{{0}, {0, 1}} {
			e := newElastic(t, elasticJob(7), len(workers))
			life, end := context.WithCancelCause(t.Context())
			defer end(nil)
			e.hands[0].trainer.cfg.Rehearsal = &rehearsed{at: func(phase string, step int64) error {
				if fmt.Sprint(phase, " ", step) == place {
					end(errTest) // while it sleeps here
				}
				return nil
			}}
			e.ringUntil(life, breakage{}, workers...)
			h := e.hands[0]
			want := map[string]int64{"update 3": 2, "checkpoint 4": 4}[place]
			last := h.readings[len(h.readings)-1]
			if !errors.Is(h.err, errTest) || h.trainer.Progress().Step != want ||
				last.committed != (want == 4) || len(h.saved) != 0 {
				t.Errorf("%s: %v at step %d, %d saved, %+v", place, h.err,
					h.trainer.Progress().Step, len(h.saved), last)
			}
			h.trainer.cfg.Rehearsal = nil
			e.ring(breakage{}, workers...)
			e.whole(workers...)
			e.audit()
		}
	}
}

// A gradient that is spoilt is one that is not finite: the step is skipped by all.
func TestSpoiltGradient(t *testing.T) {
	for _, scope := range []ClipScope{ScopeWorker, ScopeGlobal} {
		j := elasticJob(5)
		j.config.Clip.Scope = scope
		e := newElastic(t, j, 2)
		e.hands[1].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
			return Spoil{NaN: step == 3}
		}}
		e.ring(breakage{}, 0, 1)
		e.whole(0, 1)
		if o := e.hands[0]; !o.steps[2].Skipped || o.result.Progress.Nonfinite != 1 {
			t.Errorf("%s: %+v", scope, o.result.Progress)
		}
	}
}

// slowClock is the clock of a rank whose own work takes the time that it is told to.
type slowClock struct {
	mu    sync.Mutex
	now   time.Time
	extra func(step int64) time.Duration
}

func (c *slowClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *slowClock) rehearse() *rehearsed {
	return &rehearsed{at: func(phase string, step int64) error {
		if phase == PhaseForward {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now = c.now.Add(10*time.Millisecond + c.extra(step))
		}
		return nil
	}}
}

// Who is late is named once, and again only after it has caught up; whoever is late by the factor
// for long ends the ring, on all ranks at the same step.
func TestStragglers(t *testing.T) {
	j := elasticJob(40)
	j.evaluation, j.config.SaveEvery, j.config.CheckEvery = nil, 0, 2
	j.config.EvictStragglers = 3
	e := newElastic(t, j, 3)
	for worker, h := range e.hands {
		clock := &slowClock{extra: func(step int64) time.Duration {
			switch {
			case worker != 1:
				return 0
			case step <= 6 || step > 10 && step <= 16 || step == 19: // 2 times as long
				return 10 * time.Millisecond
			case step > 24: // 5 times
				return 40 * time.Millisecond
			}
			return 0
		}}
		h.trainer.cfg.Now, h.trainer.cfg.Rehearsal = clock.Now, clock.rehearse()
	}
	e.ring(breakage{}, 0, 1, 2)
	for worker, h := range e.hands {
		var late *agree.StragglerError
		if !errors.As(h.err, &late) || late.Rank != 1 || h.trainer.Progress().Step != 30 ||
			!strings.Contains(h.err.Error(), "rank 1 is late at step 30 (compute): its own work "+
				"takes 5.0 times") {
			t.Errorf("worker %d at step %d: %v", worker, h.trainer.Progress().Step, h.err)
		}
		if len(h.notices) != 3 || !strings.Contains(h.notices[0], "rank 1 is late at step 4 ") ||
			!strings.Contains(h.notices[1], "step 14 ") ||
			!strings.Contains(h.notices[2], "step 28 ") {
			t.Errorf("worker %d: %q", worker, h.notices)
		}
	}
	e.ring(breakage{}, 2, 0) // the roll call at step 30 is called again
	e.whole(2, 0)
	e.audit()
}

// A straggler that is let be, since whoever decides keeps the ring, is named once in a generation.
func TestStragglerIsNamedOnce(t *testing.T) {
	j := elasticJob(30)
	j.evaluation, j.config.SaveEvery, j.config.CheckEvery = nil, 0, 2
	j.config.EvictStragglers = 3
	e := newElastic(t, j, 3)
	for worker, h := range e.hands {
		clock := &slowClock{extra: func(int64) time.Duration {
			return time.Duration(worker/2) * 40 * time.Millisecond
		}}
		h.trainer.cfg.Now, h.trainer.cfg.Rehearsal = clock.Now, clock.rehearse()
	}
	for _, step := range []int64{6, 12} { // the roll call that is done again says nothing of times
		e.ring(breakage{}, 0, 1, 2)
		for worker, h := range e.hands {
			var late *agree.StragglerError
			if !errors.As(h.err, &late) || late.Rank != 2 || h.trainer.Progress().Step != step {
				t.Fatalf("worker %d at step %d: %v", worker, h.trainer.Progress().Step, h.err)
			}
		}
	}
	e.rings-- // the ring goes on
	e.ring(breakage{}, 0, 1, 2)
	e.whole(0, 1, 2)
}

// A rank whose chunks do not get out, while all compute alike, is late by the network. What it sent
// before the ring, and before the last call, does not count.
func TestSlowLink(t *testing.T) {
	j := elasticJob(20)
	j.evaluation, j.config.SaveEvery, j.config.CheckEvery = nil, 0, 2
	e := newElastic(t, j, 3)
	for worker, h := range e.hands {
		clock := &slowClock{extra: func(int64) time.Duration { return 0 }}
		h.trainer.cfg.Now, h.trainer.cfg.Rehearsal = clock.Now, clock.rehearse()
		h.timing = func() (sending, waiting time.Duration) {
			step := h.trainer.Progress().Step
			if worker == 2 {
				return time.Hour + time.Duration(max(0, step-10))*15*time.Millisecond, 0
			}
			return 0, time.Duration(step) * 15 * time.Millisecond
		}
	}
	e.ring(breakage{}, 0, 1, 2)
	e.whole(0, 1, 2)
	for _, h := range e.hands {
		if len(h.notices) != 1 || h.notices[0] != "rank 2 is late at step 14 (network): its link "+
			"to rank 0 makes a step 2.5 times longer" {
			t.Errorf("%q", h.notices)
		}
	}
}
