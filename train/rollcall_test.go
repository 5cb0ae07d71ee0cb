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
	"rondo/train/optim"
)

// rehearse sets the Rehearsal of a trainer that is in a ring.
func rehearse(t *Trainer, r Rehearsal) {
	t.cfg.Rehearsal = r
	t.path = t.newUpdatePath()
}

// rehearsed is a Rehearsal that records its calls.
type rehearsed struct {
	at    func(phase string, step int64) error // nil: nothing
	spoil func(step int64) Spoil               // nil: nothing
	heard []string
}

// failsAt fails in a phase of a step, given as "update 3".
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

// All ranks find a rank with different parameters at the next roll call. It receives the others'
// state, and the job ends as it would have.
func TestCorruptRankIsFound(t *testing.T) {
	for _, host := range []bool{true, false} {
		j := elasticJob(9)
		j.config.CheckEvery, j.config.SaveEvery = 3, 3
		if j.config.HostMemory = host; !host {
			j.model.GradientTail = 0
		}
		oracle := j.mustRun(t)
		// The bit flips in step 4 and is found at step 6. Only the evaluation and save of step 3
		// came before.
		e := newElastic(t, j, 3)
		for _, h := range e.workers[1:2] {
			h.trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
				return Spoil{Flip: step == 4}
			}}
		}
		e.ring(breakage{}, 0, 1, 2)
		var corrupt *agree.CorruptError
		var others *agree.PeerCorruptError
		for worker, h := range e.workers {
			found := worker == 1 && errors.As(h.err, &corrupt) && corrupt.Rank == 1 ||
				worker != 1 && errors.As(h.err, &others) && slices.Equal(others.Ranks, []int{1})
			if !found || h.trainer.Progress().Step != 6 || len(h.evals) != 1 ||
				h.trainer.HasState() != (worker != 1) {
				t.Fatalf("worker %d at step %d: %v", worker, h.trainer.Progress().Step, h.err)
			}
		}
		if n := len(e.workers[0].saved); n != 1 {
			t.Errorf("%d saved: one of what is corrupt", n)
		}
		e.ring(breakage{}, 1, 2, 0)
		if got := e.workers[0].joined; !slices.Equal(got.Copied, []int{0}) || got.Step != 6 {
			t.Errorf("%+v", got)
		}
		e.allDone(1, 2, 0)
		e.auditReads() // until it is found, the rank has other parameters
		// Steps 5 and 6 used the corrupt rank's gradients; one bit of one parameter differed.
		e.matches(1, oracle)
	}
}

// Ranks compare digests before each save: a bit that flips between a roll call and a save is found
// before the save, with or without a majority.
func TestNothingCorruptIsSaved(t *testing.T) {
	for _, ranks := range [][]int{{0, 1, 2}, {0, 1}} {
		for _, flipped := range []int64{5, 8} { // before the saves of step 6 and of the last step
			j := elasticJob(8)
			j.config.CheckEvery, j.config.SaveEvery, j.config.EvalEvery = 100, 3, 4
			oracle := j.mustRun(t)
			e := newElastic(t, j, len(ranks))
			e.workers[0].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
				return Spoil{Flip: step == flipped}
			}}
			e.ring(breakage{}, ranks...)
			var split *agree.SplitError
			var corrupt *agree.CorruptError
			var others *agree.PeerCorruptError
			for worker, h := range e.workers {
				found := len(ranks) == 2 && errors.As(h.err, &split) ||
					worker == 0 && errors.As(h.err, &corrupt) ||
					worker != 0 && errors.As(h.err, &others)
				if want := flipped/8*2 + 6; !found || h.trainer.Progress().Step != want {
					t.Errorf("worker %d of %d at step %d: %v", worker, len(ranks),
						h.trainer.Progress().Step, h.err)
				}
			}
			saved := e.workers[0].saved
			for i, s := range saved {
				sameProgress := s.Progress.Step == oracle.saved[i].Progress.Step
				for k, p := range s.Params {
					if d := p - oracle.saved[i].Params[k]; !sameProgress || d > 1e-5 || d < -1e-5 {
						t.Fatalf("saved %+v; parameter %d is off by %v", s.Progress, k, d)
					}
				}
			}
			if len(saved) != int(flipped)/4 { // the saves of step 3 and step 6
				t.Errorf("%d saved", len(saved))
			}
		}
	}
}

// Without a majority no state is trusted, and all ranks report that. They may then forget their
// state and resume from a snapshot in the same ring.
func TestSplitRanks(t *testing.T) {
	j := elasticJob(5)
	e := newElastic(t, j, 2)
	e.workers[1].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
		return Spoil{Flip: step == 1}
	}}
	e.ring(breakage{}, 0, 1)
	for worker, h := range e.workers {
		var split *agree.SplitError
		if !errors.As(h.err, &split) || split.Step != 2 {
			t.Errorf("worker %d: %v", worker, h.err)
		}
	}
	e.workers[1].trainer.cfg.Rehearsal = nil
	e.rings--
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
	e.matches(0, j.mustRun(t))
}

// A rank that has not heard of the split, and still has its state, does not give it to the others.
func TestSplitHeardByOne(t *testing.T) {
	for deaf := range 2 {
		j := elasticJob(5)
		e := newElastic(t, j, 2)
		for worker, h := range e.workers { // the deaf one is corrupt
			h.trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
				return Spoil{Flip: step == 1 && worker == deaf}
			}}
		}
		e.ring(breakage{}, 0, 1)
		for _, h := range e.workers {
			h.trainer.cfg.Rehearsal = nil
		}
		unaware := e.workers[deaf].trainer
		unaware.hasState, unaware.split = true, agree.Version{}
		e.ring(breakage{}, 0, 1)
		for worker, h := range e.workers {
			if h.err != nil || h.joined.From != agree.FromScratch {
				t.Errorf("worker %d with %d deaf: %+v, %v", worker, deaf, h.joined, h.err)
			}
		}
		e.allDone(0, 1)
		e.matches(0, j.mustRun(t))
	}
}

// Phases come in order, with the step's number. An error in one ends the run there, with the state
// before or after the step.
func TestRehearsal(t *testing.T) {
	j := elasticJob(4)
	j.evaluation = nil
	oracle := j.mustRun(t)
	e := newElastic(t, j, 2)
	r := &rehearsed{}
	e.workers[0].trainer.cfg.Rehearsal = r
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
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
		e.workers[1].trainer.cfg.Rehearsal = failsAt(place)
		e.ring(breakage{}, 0, 1)
		phase, _, _ := strings.Cut(place, " ")
		if err := e.workers[1].err; !errors.Is(err, errTest) || !strings.Contains(err.Error(),
			phase+": it broke") {
			t.Errorf("%s: %v", place, err)
		}
		e.workers[1].trainer.cfg.Rehearsal = nil
		e.ring(breakage{}, 1, 0)
		if lost := e.workers[0].joined.LostLanes; len(lost) > 0 {
			t.Errorf("%s: the lanes %v were lost", place, lost)
		}
		e.allDone(1, 0)
		e.audit()
		e.matches(1, oracle)
	}
}

// A rank whose ctx has ended does not complete the step and saves nothing, even without a ring that
// would fail.
func TestNothingIsDoneAfterTheEnd(t *testing.T) {
	for _, place := range []string{"update 3", "checkpoint 4"} {
		for _, workers := range [][]int{{0}, {0, 1}} {
			e := newElastic(t, elasticJob(7), len(workers))
			life, end := context.WithCancelCause(t.Context())
			defer end(nil)
			trainer := e.workers[0].trainer
			trainer.cfg.Rehearsal = &rehearsed{at: func(phase string, step int64) error {
				if fmt.Sprint(phase, " ", step) == place {
					end(errTest) // ctx ends in this phase
				}
				return nil
			}}
			e.ringUntil(life, breakage{}, workers...)
			h := e.workers[0]
			want := map[string]int64{"update 3": 2, "checkpoint 4": 4}[place]
			last := h.reads[len(h.reads)-1]
			if !errors.Is(h.err, errTest) || h.trainer.Progress().Step != want ||
				last.committed != (want == 4) || len(h.saved) != 0 {
				t.Errorf("%s: %v at step %d, %d saved, %+v", place, h.err,
					h.trainer.Progress().Step, len(h.saved), last)
			}
			h.trainer.cfg.Rehearsal = nil
			e.ring(breakage{}, workers...)
			e.allDone(workers...)
			e.audit()
		}
	}
}

// A spoilt gradient is not finite, so all ranks skip the step.
func TestSpoiltGradient(t *testing.T) {
	for _, scope := range []optim.ClipScope{optim.ScopeWorker, optim.ScopeGlobal} {
		j := elasticJob(5)
		j.config.Clip.Scope = scope
		e := newElastic(t, j, 2)
		e.workers[1].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
			return Spoil{NaN: step == 3}
		}}
		e.ring(breakage{}, 0, 1)
		e.allDone(0, 1)
		if o := e.workers[0]; !o.steps[2].Skipped || o.result.Progress.Nonfinite != 1 {
			t.Errorf("%s: %+v", scope, o.result.Progress)
		}
	}
}

// slowClock is the clock of a rank with a set computing time.
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

// A slow rank is named once, and again only after it has caught up. A rank that is slow by the
// eviction factor for long ends the ring, on all ranks at the same step.
func TestStragglers(t *testing.T) {
	j := elasticJob(40)
	j.evaluation, j.config.SaveEvery, j.config.CheckEvery = nil, 0, 2
	j.config.EvictStragglers = 3
	e := newElastic(t, j, 3)
	for worker, h := range e.workers {
		clock := &slowClock{extra: func(step int64) time.Duration {
			switch {
			case worker != 1:
				return 0
			case step <= 6 || step > 10 && step <= 16 || step == 19: // twice as long
				return 10 * time.Millisecond
			case step > 24: // five times as long
				return 40 * time.Millisecond
			}
			return 0
		}}
		h.trainer.cfg.Now, h.trainer.cfg.Rehearsal = clock.Now, clock.rehearse()
	}
	e.ring(breakage{}, 0, 1, 2)
	for worker, h := range e.workers {
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
	e.ring(breakage{}, 2, 0) // the roll call of step 30 is repeated
	e.allDone(2, 0)
	e.audit()
}

// If the coordinator keeps the ring, a straggler is named once per generation.
func TestStragglerIsNamedOnce(t *testing.T) {
	j := elasticJob(30)
	j.evaluation, j.config.SaveEvery, j.config.CheckEvery = nil, 0, 2
	j.config.EvictStragglers = 3
	e := newElastic(t, j, 3)
	for worker, h := range e.workers {
		clock := &slowClock{extra: func(int64) time.Duration {
			return time.Duration(worker/2) * 40 * time.Millisecond
		}}
		h.trainer.cfg.Now, h.trainer.cfg.Rehearsal = clock.Now, clock.rehearse()
	}
	for _, step := range []int64{6, 12} { // the repeated roll call compares no times
		e.ring(breakage{}, 0, 1, 2)
		for worker, h := range e.workers {
			var late *agree.StragglerError
			if !errors.As(h.err, &late) || late.Rank != 2 || h.trainer.Progress().Step != step {
				t.Fatalf("worker %d at step %d: %v", worker, h.trainer.Progress().Step, h.err)
			}
		}
	}
	e.rings-- // the same ring goes on
	e.ring(breakage{}, 0, 1, 2)
	e.allDone(0, 1, 2)
}

// A rank whose sends are blocked, while all compute equally fast, is late because of the network.
// Blocked time from before the ring, or before the last roll call, does not count.
func TestSlowLink(t *testing.T) {
	j := elasticJob(20)
	j.evaluation, j.config.SaveEvery, j.config.CheckEvery = nil, 0, 2
	e := newElastic(t, j, 3)
	for worker, h := range e.workers {
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
	e.allDone(0, 1, 2)
	for _, h := range e.workers {
		if len(h.notices) != 1 || h.notices[0] != "rank 2 is late at step 14 (network): its link "+
			"to rank 0 makes a step 2.5 times longer" {
			t.Errorf("%q", h.notices)
		}
	}
}
