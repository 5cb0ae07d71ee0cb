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
)

// Workers come and go between two steps, and take with them what the optimizer keeps, whoever has
// it and however many workers there are.
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
				e.hire()
				regroupAt(e, 3, 4)
				e.ring(breakage{}, 3, 0, 1, 2) // one comes, first of all
				regroupAt(e, 2, 6)
				e.ring(breakage{}, 2) // three go
				regroupAt(e, 2, 10)
				e.ring(breakage{}, 1, 2) // one comes back, and is given what there is by now
				if err := e.hands[1].trainer.Keep(t.Context()); err != nil {
					t.Error(err) // it has all, as both may leave now
				}
				e.ring(breakage{}, 2, 0, 1, 3)
				for _, h := range e.hands {
					if got := h.joined; got.LostSlots > 0 || got.From != "" || got.Step != 11 {
						t.Errorf("%+v", got)
					}
				}
				e.whole(2, 0, 1, 3)
				e.audit()
				e.like(2, oracle)
				sameSlots(t, e.hands[2], oracle)
			})
		}
	}
}

// A snapshot goes on as the same job with any number of workers, whether they share the optimizer
// out or not.
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
				h := hand{shelf: shelf{saved: got.saved}}
				sameSlots(t, &h, oracle)
			}
		}
	}
}

// lostInStep returns a job of four workers of which some were lost in step 7, after a checkpoint of
// step 4, if there is one to restore.
func lostInStep(t *testing.T, j job, saved bool, dead ...int) *elastic {
	t.Helper()
	for call := 1; ; call++ {
		e := newElastic(t, j, 4)
		e.restore = func(_ context.Context, why agree.Reason) (*Snapshot, error) {
			if !saved || why == agree.NoState {
				return nil, nil
			}
			return e.hands[0].saved[0], nil
		}
		if !e.ring(breakage{call: call, dead: dead}, 0, 1, 2, 3) {
			t.Fatal("no collective is in step 7")
		}
		if p := e.hands[0].trainer.Progress(); p.Step == 6 && !e.hands[0].trainer.pending {
			return e
		}
	}
}

// Where nobody has a part of what the optimizer keeps any more, the ranks go back to the newest
// checkpoint; and if there is none, that part begins at zero.
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
				e.whole(left...)
				e.audit()
				got := e.hands[0].joined
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
					e.like(0, oracle)
				}
			})
		}
	}
}

// Where the only worker that has heard of a step is killed, too, while it gives its state to the
// others, these go on from the step before, with all that the optimizer has kept then, or from a
// checkpoint if they have begun to receive: what they have is of one step in any case.
func TestShardedKilledWhileJoining(t *testing.T) {
	j := shardJob(compute.Adam, 1)
	oracle := j.mustRun(t)
	j.shardCopies = 2
	wentOn, wentBack, commit := 0, 0, 1
	for joining, call := true, 1; joining; call++ {
		e := oneKnows(t, j, &commit)
		e.ring(breakage{call: call, dead: []int{1}}, 0, 1, 2)
		joining = !e.hands[0].inRing
		e.ring(breakage{}, 0, 2)
		got := e.hands[0].joined
		if got.LostSlots > 0 || len(got.LostLanes) > 0 {
			t.Errorf("call %d: %+v", call, got)
		}
		if got.From == agree.FromCheckpoint {
			wentBack++
		} else {
			wentOn++
		}
		e.whole(0, 2)
		e.audit()
		e.like(0, oracle)
		sameSlots(t, e.hands[0], oracle)
	}
	if wentOn < 3 || wentBack < 2 {
		t.Errorf("%d went on, %d went back", wentOn, wentBack)
	}
}

// oneKnows returns a job of four workers of which the last was killed in step 6, and only worker 1
// has heard that the step was committed; the others have prepared it. It tries the collectives from
// call on, and leaves the one that commits the step there: it is the same each time.
func oneKnows(t *testing.T, j job, call *int) *elastic {
	t.Helper()
	for ; ; *call++ {
		e := newElastic(t, j, 4)
		e.restore = func(context.Context, agree.Reason) (*Snapshot, error) {
			if len(e.hands[0].saved) == 0 {
				return nil, nil
			}
			return e.hands[0].saved[0], nil
		}
		if !e.ring(breakage{call: *call, dead: []int{3}, completes: []int{1}}, 0, 1, 2, 3) {
			t.Fatal("no collective commits step 6")
		}
		knows, other := e.hands[1].trainer, e.hands[0].trainer
		if knows.Progress().Step == 6 && other.Progress().Step == 5 {
			return e
		}
	}
}

// A step that is not finite on one rank, or whose sum is not, is skipped by all: neither parameters
// nor slots change, also where a worker that heard of it is killed.
func TestShardedNonfinite(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault
		clip  Clip
	}{
		"loss, worker": {lossNaN, Clip{1, ByNorm, ScopeWorker}},
		"grad, global": {gradInf, Clip{1, ByNorm, ScopeGlobal}},
		"huge, never":  {gradHuge, Clip{0, ByNorm, ScopeGlobal}},
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
				for i := range got.steps { // of the skipped one it is not a number
					got.steps[i].GradientNorm, want.steps[i].GradientNorm = 0, 0
				}
				if g, w := got.story(), want.story(); g != w {
					t.Errorf("%s\nwant %s", g, w)
				}
				sameSnapshot(t, got.saved[1], want.saved[1])
			})
		}
	}
}

// One of two workers has all with two copies, and keeps it when the other is lost; with one it says
// why it cannot.
func TestShardedKeep(t *testing.T) {
	for copies := 1; copies <= sharded.MaxCopies; copies++ {
		j := shardJob(compute.Adam, 1)
		oracle := j.mustRun(t)
		j.shardCopies = copies
		e := breaksAt(t, j, []int{0, 1}, func(t *Trainer) bool { return t.Progress().Step == 6 })
		h := e.hands[0]
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
	place := &frail{seat: seat{meeting: newMeeting(2)}}
	whole := func(*compute.Mirror, []int, func() [][]float32) (Sum, error) { return noSum{}, nil }
	_, err := e.hands[0].trainer.Join(t.Context(), Ring{LaneEnds: dealt(2), Generation: 1,
		Peers: place, NewSum: whole}, nil)
	if err == nil || !strings.Contains(err.Error(), "share out the optimizer sum by an Updater") {
		t.Errorf("%v", err)
	}
	for want, change := range map[string]func(*job){
		"--shard-copies 3: must be 1 to 2": func(j *job) { j.shardCopies = 3 },
		"--shard-optimizer is not for --reduce canonical and --sync-every": func(j *job) {
			j.config.Local = Local{Every: 2, Outer: OuterAverage}
			j.config.Clip.Scope = ScopeWorker
		},
	} {
		j := j
		change(&j)
		wrong := j.shared()
		wrong.Saver = &shelf{}
		_, err := New(j.task(e.hands[0].model, nil), wrong)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
