package train

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/sum/sharded"
	"rondo/train/agree"
	"rondo/train/optim"
)

// Workers join and leave between steps, and the optimizer's slots move with them, for any number of
// workers.
func TestShardedWorkersComeAndGo(t *testing.T) {
	for copies := 1; copies <= sharded.MaxCopies; copies++ {
		for _, host := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d copies, host memory %v", copies, host), func(t *testing.T) {
				j := shardJob(compute.AdamW, 1)
				j.config.Steps = 14
				if j.config.HostMemory = host; !host {
					j.model.GradientTail = 0
				}
				oracle := j.mustRun(t)
				j.shardCopies = copies
				e := newElastic(t, j, 3)
				regroupAt(e, 1, 2)
				e.ring(breakage{}, 0, 1, 2)
				e.addWorker()
				regroupAt(e, 3, 4)
				e.ring(breakage{}, 3, 0, 1, 2) // one joins, as rank 0
				regroupAt(e, 2, 6)
				e.ring(breakage{}, 2) // three leave
				regroupAt(e, 2, 10)
				e.ring(breakage{}, 1, 2) // one returns, and receives the current state
				if err := e.workers[1].trainer.Keep(t.Context()); err != nil {
					t.Error(err) // it has all slots, since both may leave now
				}
				e.ring(breakage{}, 2, 0, 1, 3)
				for _, h := range e.workers {
					if got := h.joined; got.LostSlots > 0 || got.From != "" || got.Step != 11 {
						t.Errorf("%+v", got)
					}
				}
				e.allDone(2, 0, 1, 3)
				e.audit()
				e.matches(2, oracle)
				sameSlots(t, e.workers[2], oracle)
			})
		}
	}
}

// A snapshot resumes as the same job on any number of workers, with or without a sharded optimizer.
func TestShardedResume(t *testing.T) {
	j := shardJob(compute.Adam, 3)
	oracle := j.mustRun(t)
	for _, copies := range []int{0, 1, 2} {
		before := j
		before.shardCopies, before.config.Steps = copies, 4
		o := before.mustRun(t)
		snapshot := o.saved[len(o.saved)-1]
		for _, after := range []int{0, 1, 2} {
			for ranks := 1; ranks <= 4; ranks++ {
				then := j
				then.shardCopies, then.ranks = after, ranks
				then.reload = func(trainer *Trainer) *Snapshot {
					return reload(t, trainer, snapshot)
				}
				got := then.mustRun(t)
				end, want := got.saved[len(got.saved)-1], oracle.saved[len(oracle.saved)-1]
				if ranks == j.ranks {
					sameSnapshot(t, end, want)
				}
				if end.Progress.Step != 7 || end.Progress.Updates != 7 {
					t.Errorf("%+v", end.Progress)
				}
				h := elasticWorker{memorySaver: memorySaver{saved: got.saved}}
				sameSlots(t, &h, oracle)
			}
		}
	}
}

// lostInStep returns a job of four workers that loses some in step 7. If saved, there is a
// checkpoint of step 4.
func lostInStep(t *testing.T, j job, saved bool, dead ...int) *elastic {
	t.Helper()
	for call := 1; ; call++ {
		e := newElastic(t, j, 4)
		e.restore = func(_ context.Context, why agree.Reason, _ int64) (*Snapshot, error) {
			if !saved || why == agree.NoState {
				return nil, nil
			}
			return e.workers[0].saved[0], nil
		}
		if !e.ring(breakage{call: call, dead: dead}, 0, 1, 2, 3) {
			t.Fatal("no collective is in step 7")
		}
		if p := e.workers[0].trainer.Progress(); p.Step == 6 && !e.workers[0].trainer.pending {
			return e
		}
	}
}

// If no rank has some slots any more, the ranks go back to the newest checkpoint. Without one these
// slots restart at zero.
func TestShardsLost(t *testing.T) {
	for name, c := range map[string]struct {
		copies int
		dead   []int
		sgd    bool
	}{
		"one copy, one lost":           {copies: 1, dead: []int{1}},
		"two copies, neighbours lost":  {copies: 2, dead: []int{1, 2}},
		"nothing kept, so nothing":     {copies: 1, dead: []int{1}, sgd: true},
		"two copies, others in a ring": {copies: 2, dead: []int{3}},
	} {
		for _, saved := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, saved %v", name, saved), func(t *testing.T) {
				j := shardJob(compute.Adam, 1)
				if c.sgd {
					j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.SGD, 0.5
				}
				j.config.Steps = 9
				oracle := j.mustRun(t)
				j.shardCopies = c.copies
				e := lostInStep(t, j, saved, c.dead...)
				left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(worker int) bool {
					return slices.Contains(c.dead, worker)
				})
				e.ring(breakage{}, left...)
				e.allDone(left...)
				e.audit()
				got := e.workers[0].joined
				lost := !c.sgd && len(c.dead) >= c.copies
				if lost != (got.LostSlots > 0) {
					t.Fatalf("%+v", got)
				}
				want := map[bool]agree.Joined{
					true:  {Step: 4, From: agree.FromCheckpoint},
					false: {Step: 6, From: agree.FromReplay}}[saved]
				if !lost {
					want = agree.Joined{Step: 6}
				}
				if got.Step != want.Step || got.From != want.From {
					t.Errorf("%+v", got)
				}
				if text := got.String(); lost && !strings.Contains(text, fmt.Sprintf("no worker "+
					"had what --optimizer keeps of %d parameters", got.LostSlots)) {
					t.Error(text)
				}
				if !lost || saved {
					e.matches(0, oracle)
				}
			})
		}
	}
}

// The only worker that knows of a commit may be killed while it gives its state to the others.
// These then go on from the step before with all its slots, or from a checkpoint if they have begun
// to receive. Their state is of a single step in any case.
func TestShardedKilledWhileJoining(t *testing.T) {
	j := shardJob(compute.Adam, 1)
	oracle := j.mustRun(t)
	j.shardCopies = 2
	wentOn, wentBack, commit := 0, 0, 1
	for joining, call := true, 1; joining; call++ {
		e := oneKnows(t, j, &commit)
		e.ring(breakage{call: call, dead: []int{1}}, 0, 1, 2)
		joining = !e.workers[0].inRing
		e.ring(breakage{}, 0, 2)
		got := e.workers[0].joined
		if got.LostSlots > 0 || len(got.LostLanes) > 0 {
			t.Errorf("call %d: %+v", call, got)
		}
		if got.From == agree.FromCheckpoint {
			wentBack++
		} else {
			wentOn++
		}
		e.allDone(0, 2)
		e.audit()
		e.matches(0, oracle)
		sameSlots(t, e.workers[0], oracle)
	}
	if wentOn < 3 || wentBack < 2 {
		t.Errorf("%d went on, %d went back", wentOn, wentBack)
	}
}

// oneKnows returns a job of four workers. The last was killed in step 6, and only worker 1 knows
// that the step is committed; the others have logged it. It tries the collectives from call on, and
// sets call to the one that commits the step, which is always the same.
func oneKnows(t *testing.T, j job, call *int) *elastic {
	t.Helper()
	for ; ; *call++ {
		e := newElastic(t, j, 4)
		e.restore = func(context.Context, agree.Reason, int64) (*Snapshot, error) {
			if len(e.workers[0].saved) == 0 {
				return nil, nil
			}
			return e.workers[0].saved[0], nil
		}
		if !e.ring(breakage{call: *call, dead: []int{3}, completes: []int{1}}, 0, 1, 2, 3) {
			t.Fatal("no collective commits step 6")
		}
		knows, other := e.workers[1].trainer, e.workers[0].trainer
		if knows.Progress().Step == 6 && other.Progress().Step == 5 {
			return e
		}
	}
}

// All ranks skip a step that is not finite on one rank, or whose sum is not finite. Neither
// parameters nor slots change, even if a worker that knows of the skip is killed.
func TestShardedNonfinite(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault
		clip  optim.Clip
	}{
		"loss, worker": {lossNaN, byNorm(1, optim.ScopeWorker)},
		"grad, global": {gradInf, byNorm(1, optim.ScopeGlobal)},
		"huge, never":  {gradHuge, byNorm(0, optim.ScopeGlobal)},
	} {
		for copies := 1; copies <= sharded.MaxCopies; copies++ {
			t.Run(fmt.Sprintf("%s, %d copies", name, copies), func(t *testing.T) {
				j := shardJob(compute.Adam, 3)
				j.config.Clip = c.clip
				j.device = func(rank int, dev compute.Device) compute.Device {
					return &faulty{dev, func(run int) fault {
						if rank > 0 && run == 3 {
							return c.fault
						}
						return healthy
					}}
				}
				want := j.mustRun(t)
				if want.result.Progress.Nonfinite != 1 {
					t.Fatalf("%+v", want.result.Progress)
				}
				j.shardCopies = copies
				got := j.mustRun(t)
				for i := range got.steps { // the skipped step's norm is NaN
					got.steps[i].GradientNorm, want.steps[i].GradientNorm = 0, 0
				}
				if g, w := got.report(), want.report(); g != w {
					t.Errorf("%s\nwant %s", g, w)
				}
				sameSnapshot(t, got.saved[1], want.saved[1])
			})
		}
	}
}

// With two copies, one of two workers has all slots and keeps them when the other is lost. With one
// copy its error says why it cannot.
func TestShardedKeep(t *testing.T) {
	for copies := 1; copies <= sharded.MaxCopies; copies++ {
		j := shardJob(compute.Adam, 1)
		oracle := j.mustRun(t)
		j.shardCopies = copies
		e := breaksAt(t, j, []int{0, 1}, func(t *Trainer) bool { return t.Progress().Step == 6 })
		h := e.workers[0]
		n := len(h.saved)
		err := h.trainer.Keep(t.Context())
		if copies == 1 {
			if err == nil || !strings.Contains(err.Error(), "step 6 was not saved: this worker "+
				"has only its own part of what --optimizer keeps") {
				t.Error(err)
			}
			continue
		}
		if err != nil || len(h.saved) != n+1 {
			t.Fatalf("%v, %d saved", err, len(h.saved))
		}
		goesOn(t, j, h.saved[n], oracle)
	}
}

func TestShardedRefuses(t *testing.T) {
	j := shardJob(compute.Adam, 1)
	j.shardCopies = 1
	e := newElastic(t, j, 1)
	place := &breakingRing{localRank: localRank{localRing: newLocalRing(2)}}
	whole := func(*compute.Mirror, []int, func() [][]float32) (Sum, error) { return noSum{}, nil }
	_, err := e.workers[0].trainer.Join(t.Context(), Ring{LaneEnds: dealt(2), Generation: 1,
		Peers: place, NewSum: whole}, nil)
	if err == nil || !strings.Contains(err.Error(), "NewSlots needs a Sum that is an Updater") {
		t.Errorf("%v", err)
	}
	for want, change := range map[string]func(*job){
		"--shard-copies 3: must be 1 to 2": func(j *job) { j.shardCopies = 3 },
		"--shard-optimizer cannot be used with --reduce canonical or --sync-every": func(j *job) {
			j.config.Local = optim.Local{Every: 2, Outer: optim.OuterAverage}
			j.config.Clip.Scope = optim.ScopeWorker
		},
	} {
		j := j
		change(&j)
		wrong := j.shared()
		wrong.Saver = &memorySaver{}
		_, err := New(j.task(e.workers[0].model, nil), wrong)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
