package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/train/agree"
)

// regroupAt lets a worker request another ring after a step.
func regroupAt(e *elastic, worker int, step int64) {
	trainer := e.workers[worker].trainer
	trainer.cfg.Observer = &once{trainer.cfg.Observer, step, trainer.RequestRegroup}
}

// once is an Observer that calls a function when a step is first done.
type once struct {
	Observer
	after int64
	do    func()
}

func (o *once) Step(r StepReport) {
	if r.Step == o.after {
		o.do()
		o.after = 0
	}
	o.Observer.Step(r)
}

// Workers joining and leaving between steps do not change the result, for every kind of state that
// must move.
func TestWorkersComeAndGo(t *testing.T) {
	for _, cell := range []compute.Cell{compute.RNNTanh, compute.GRU, compute.LSTM} {
		for _, rule := range []compute.Optimizer{compute.SGD, compute.Momentum, compute.AdamW} {
			for _, host := range []bool{true, false} {
				name := fmt.Sprintf("cell %d, optimizer %d, host memory %v", cell, rule, host)
				t.Run(name, func(t *testing.T) { comeAndGo(t, cell, rule, host, false) })
			}
		}
	}
	t.Run("random sampling", func(t *testing.T) {
		comeAndGo(t, compute.LSTM, compute.AdamW, true, true)
	})
}

func comeAndGo(t *testing.T, cell compute.Cell, rule compute.Optimizer, host, random bool) {
	j := elasticJob(14)
	j.model.Cell, j.model.Layers, j.model.Dropout = cell, 2, 0.2
	if cell == compute.GRU { // an embedding with more tokens than a step reads
		j.model.Embed, j.model.Vocab = 6, 300
	}
	j.config.Optimizer.Rule, j.batches = rule, newLanes(random)
	j.config.Schedule.Rate = map[compute.Optimizer]float64{compute.SGD: 0.5,
		compute.Momentum: 0.2, compute.AdamW: 0.005}[rule]
	j.config.HostMemory = host
	if !host {
		j.model.GradientTail = 0
	}
	oracle := j.mustRun(t)
	e := newElastic(t, j, 2)
	regroupAt(e, 1, 2)
	e.ring(breakage{}, 0, 1)
	for worker := range 2 {
		h := e.workers[worker]
		if h.err != nil || !h.result.Regroup || h.result.Progress.Step != 3 || h.flushed != 0 {
			t.Fatalf("worker %d: %+v, %v", worker, h.result, h.err)
		}
	}
	e.addWorker()
	regroupAt(e, 2, 4)
	e.ring(breakage{}, 0, 1, 2) // one worker joins
	if got := e.workers[0].joined; !slices.Equal(got.Copied, []int{2}) || got.Step != 3 ||
		got.From != "" || got.Donor != 0 || len(got.LostLanes) != 0 || e.workers[0].ring != 1 {
		t.Errorf("%+v", got)
	}
	regroupAt(e, 2, 10)
	e.ring(breakage{}, 2) // two leave
	e.addWorker()
	e.ring(breakage{}, 3, 2) // another joins as rank 0
	if got := e.workers[3].joined; !slices.Equal(got.Copied, []int{0}) || got.Step != 11 ||
		e.workers[3].ring != 3 {
		t.Errorf("%+v", got)
	}
	e.allDone(3, 2)
	e.audit()
	e.matches(3, oracle)
	got, want := e.workers[3].saved, oracle.saved
	sameLanes(t, got[len(got)-1].Lanes, want[len(want)-1].Lanes)
}

func sameLanes(t *testing.T, got, want []float32) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= 1e-3) || len(got) != len(want) {
			t.Fatalf("element %d of the lanes' states is %v, not %v", i, got[i], want[i])
		}
	}
}

// A ring that breaks while a newcomer receives the state does not harm ranks that have it.
func TestKilledWhileJoining(t *testing.T) {
	j := elasticJob(7)
	j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.AdamW, 0.005
	oracle := j.mustRun(t)
	for _, host := range []bool{true, false} {
		for _, dead := range []int{0, 1, 2} { // the donor, another with the state, the newcomer
			for _, completes := range [][]int{nil, {}, {(dead + 1) % 3}, {(dead + 2) % 3}} {
				call := 1
				for ; killWhileJoining(t, j, oracle, host, breakage{call: call, dead: []int{dead},
					completes: completes}); call++ {
					if t.Failed() {
						t.Fatalf("rank %d killed in call %d, which %v complete", dead, call,
							completes)
					}
				}
				if call < 8 { // standings, three tensors, two for the lanes, the last one
					t.Errorf("a Join has only %d collectives", call-1)
				}
			}
		}
	}
}

func killWhileJoining(
	t *testing.T, j job, oracle *outcome, host bool, how breakage,
) (broke bool) {
	if j.config.HostMemory = host; !host {
		j.model.GradientTail = 0
	}
	e := newElastic(t, j, 2)
	regroupAt(e, 1, 1)
	e.ring(breakage{}, 0, 1)
	newcomer := e.addWorker()
	e.ring(how, 0, 1, newcomer)
	for _, h := range e.workers {
		if !strings.HasPrefix(fmt.Sprint(h.err), "joining the ring: ") &&
			h.trainer.Progress().Step > 2 {
			return false // in Run
		}
	}
	left := slices.Delete([]int{0, 1, newcomer}, how.dead[0], how.dead[0]+1)
	e.ring(breakage{}, left...)
	if lost := e.workers[left[0]].joined.LostLanes; len(lost) > 0 {
		t.Errorf("the lanes %v were lost", lost)
	}
	e.allDone(left...)
	e.audit()
	e.matches(left[0], oracle)
	return true
}

// If two neighbours are lost at once, the lanes that only they knew are restored from the newest
// checkpoint, and the later steps are repeated. Without a checkpoint the lanes are replayed.
func TestTwoNeighboursLost(t *testing.T) {
	oracle := elasticJob(9).mustRun(t)
	for _, saved := range []bool{true, false} {
		j := elasticJob(9)
		e := newElastic(t, j, 4)
		e.restore = func(_ context.Context, why agree.Reason, _ int64) (*Snapshot, error) {
			if !saved || why == agree.NoState {
				return nil, nil
			}
			return e.workers[0].saved[0], nil
		}
		for call := 1; e.workers[0].result.Progress.Step != 6; call++ { // until it breaks in step 7
			*e = *newElastic(t, j, 4)
			e.restore = func(_ context.Context, why agree.Reason, _ int64) (*Snapshot, error) {
				if !saved || why == agree.NoState {
					return nil, nil
				}
				return e.workers[0].saved[0], nil
			}
			e.ring(breakage{call: call, dead: []int{1, 2}}, 0, 1, 2, 3)
		}
		e.ring(breakage{}, 0, 3)
		got := e.workers[0].joined
		e.allDone(0, 3)
		e.audit()
		if !slices.Equal(got.LostLanes, []int{3, 4, 5}) { // rank 1's lanes; rank 3 knows rank 2's
			t.Errorf("the lanes %v were lost", got.LostLanes)
		}
		if !strings.Contains(got.String(), "[3 4 5]") {
			t.Error(got.String())
		}
		if saved {
			if got.From != agree.FromCheckpoint || got.Step != 4 || e.workers[0].ring != 2 {
				t.Errorf("%+v", got)
			}
			e.matches(0, oracle)
			continue
		}
		if got.From != agree.FromReplay || got.Step != 6 || e.workers[0].ring != 1 {
			t.Errorf("%+v", got)
		}
		if a, b := e.workers[0].result.Loss, oracle.result.Loss; math.Abs(a/b-1) > 0.02 {
			t.Errorf("the loss is %v after a replay, undisturbed %v", a, b)
		}
	}
}

// If the parameters do not change, a replay gives exactly the lost states.
func TestReplayIsExactForTheParametersAsTheyAre(t *testing.T) {
	j := elasticJob(8)
	j.model.Layers = 2
	j.config.Schedule.Rate, j.config.CheckEvery = 1e-30, 0
	oracle := j.mustRun(t)
	e := newElastic(t, j, 3)
	regroupAt(e, 0, 5)
	e.ring(breakage{}, 0, 1, 2)
	for _, h := range e.workers { // no worker knows these lanes now
		entry := h.trainer.laneStates.At(agree.Version{Step: 6, Ring: 1})
		for _, lane := range []int{1, 2, 7, 11} {
			entry.Known[lane] = false
			fillNaN(entry.Lanes(Lanes{First: lane, Count: 1}))
		}
	}
	e.ring(breakage{}, 0, 1, 2)
	if got := e.workers[1].joined; !slices.Equal(got.LostLanes, []int{1, 2, 7, 11}) {
		t.Errorf("%+v", got)
	}
	e.allDone(0, 1, 2)
	sameLanes(t, e.workers[0].saved[1].Lanes, oracle.saved[1].Lanes)
	if a, b := e.workers[0].result.Loss, oracle.result.Loss; math.Abs(a/b-1) > 1e-5 {
		t.Errorf("the loss is %v, undisturbed %v", a, b)
	}
}

// replayLimit is the most segments that a replay reads.
const replayLimit = 64

// A replay is short, even if the states were zero long ago, and is reported before it begins.
func TestReplayIsShort(t *testing.T) {
	j := elasticJob(replayLimit + 9)
	j.batches = lanesOfText{text(testG * (2*replayLimit*testT + 1)), 2 * replayLimit, false}
	j.evaluation = nil
	e := newElastic(t, j, 2)
	const after = replayLimit + 6 // only the last replayLimit are replayed
	regroupAt(e, 0, after-1)
	e.ring(breakage{}, 0, 1)
	want := make([]float32, e.workers[0].trainer.laneSize)
	r, err := e.workers[0].trainer.task.Replay(Lanes{First: 8, Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for step := int64(after - replayLimit); step < after; step++ {
		if err := r.Advance(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.State(want); err != nil {
		t.Fatal(err)
	}
	for _, h := range e.workers {
		entry := h.trainer.laneStates.At(agree.Version{Step: after, Ring: 1})
		entry.Known[8] = false
		fillNaN(entry.Lanes(Lanes{First: 8, Count: 1}))
		h.notices = nil
	}
	regroupAt(e, 0, after+1)
	var got []float32
	e.restore = func(context.Context, agree.Reason, int64) (*Snapshot, error) {
		if n := len(e.workers[0].notices); n != 0 {
			t.Errorf("%d notices before it is known whether there is a snapshot", n)
		}
		return nil, nil
	}
	for _, h := range e.workers {
		h.trainer.cfg.Rehearsal = &rehearsed{at: func(phase string, step int64) error {
			if h == e.workers[1] && phase == PhaseLoad && step == after+1 {
				entry := h.trainer.laneStates.At(agree.Version{Step: after, Ring: 1})
				got = slices.Clone(entry.Lanes(Lanes{First: 8, Count: 1}))
			}
			return nil
		}}
	}
	e.ring(breakage{}, 0, 1)
	if !sameBits(got, want) {
		t.Errorf("lane 8 is %v, computed from the last segments %v", got, want)
	}
	for _, h := range e.workers {
		if len(h.notices) != 1 || !strings.Contains(h.notices[0], "lanes [8] after step 70, and "+
			"there is no checkpoint: replaying the last 64 segments, from zeros") {
			t.Errorf("%q", h.notices)
		}
	}
	joined := e.workers[0].joined
	if text := joined.String(); joined.Replayed != replayLimit || joined.Step != after ||
		!strings.Contains(text, "up to step 70, from zeros 64 segments ago") {
		t.Errorf("%+v: %s", joined, text)
	}
}

// A rank that went on alone, while the others formed a ring without it, takes over their state. So
// does a rank that was torn or forgot its state.
func TestTheNewestRingCounts(t *testing.T) {
	j := elasticJob(9)
	oracle := j.mustRun(t)
	e := newElastic(t, j, 3)
	regroupAt(e, 0, 3)
	e.ring(breakage{}, 0, 1, 2)
	regroupAt(e, 2, 6)
	e.ring(breakage{}, 2) // to step 7, which the others do not learn of
	regroupAt(e, 0, 5)
	e.ring(breakage{}, 0, 1) // to step 6
	e.workers[1].trainer.Forget()
	if e.workers[1].trainer.HasState() || !e.workers[0].trainer.HasState() {
		t.Error("who has forgotten has no state")
	}
	e.ring(breakage{}, 2, 1, 0)
	if got := e.workers[0].joined; got.Step != 6 || got.Donor != 2 ||
		!slices.Equal(got.Copied, []int{0, 1}) || e.workers[0].ring != 3 {
		t.Errorf("%+v", got)
	}
	e.allDone(2, 1, 0)
	e.audit()
	e.matches(2, oracle)
}

// If no rank has a state and there is no checkpoint, the job restarts from the same initial
// weights.
func TestFromScratchAgain(t *testing.T) {
	j := elasticJob(7)
	j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 0.01
	e := newElastic(t, j, 2)
	e.ring(breakage{}, 0, 1)
	params := slices.Clone(e.workers[0].model.Params())
	for _, h := range e.workers {
		h.trainer.Forget()
	}
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
	if got := e.workers[1].joined; got.From != agree.FromScratch || got.Step != 0 ||
		e.workers[1].ring != 2 || !sameBits(e.workers[0].model.Params(), params) {
		t.Errorf("%+v, or other parameters", got)
	}
}

// A stop holds in the next ring. That ring also takes the final snapshot again if rank 0 was lost
// with it.
func TestStopSurvivesRankZero(t *testing.T) {
	j := elasticJob(9)
	e := newElastic(t, j, 3)
	trainer := e.workers[1].trainer
	trainer.cfg.Observer = &once{trainer.cfg.Observer, 4, trainer.RequestStop}
	e.ring(breakage{}, 0, 1, 2)
	e.ring(breakage{}, 2, 1)
	for worker := 1; worker < 3; worker++ {
		h := e.workers[worker]
		if h.err != nil || !h.result.Stopped || h.result.Progress.Step != 5 {
			t.Fatalf("worker %d: %+v, %v", worker, h.result, h.err)
		}
	}
	if first, second := e.workers[0], e.workers[2]; len(second.saved) != 1 || second.flushed != 1 {
		t.Errorf("%d saved", len(second.saved))
	} else {
		sameSnapshot(t, second.saved[0], first.saved[1])
	}
}

// A lane that became infinite in a skipped step is zero on the rank that takes it over.
func TestReplicasAreHealed(t *testing.T) {
	j := elasticJob(4)
	j.config.SaveEvery, j.evaluation, j.config.CheckEvery = 0, nil, 0
	j.bucketBytes = onePiece // so that a step is one collective
	j.device = func(worker int, dev compute.Device) compute.Device {
		return &faulty{dev, func(run int) fault {
			if worker == 1 && run == 2 {
				return lossNaN
			}
			return healthy
		}}
	}
	for _, completes := range [][]int{{0, 2}, {0}, {2}} {
		e := newElastic(t, j, 3)
		regroupAt(e, 0, 1)
		e.ring(breakage{}, 0, 1, 2)
		sick := e.workers[1].trainer
		sick.seat = &infinite{Seat: sick.seat, lane: 2, size: sick.laneSize,
			lanes: sick.count}
		e.ring(breakage{call: 5, dead: []int{1}, completes: completes}, 0, 1, 2)
		if p := e.workers[completes[0]].trainer.Progress(); p.Step != 3 || p.Nonfinite != 1 {
			t.Errorf("%v: %+v before: %v", completes, p, e.workers[0].err)
		}
		e.ring(breakage{}, 0, 2)
		if got := e.workers[0].joined; got.Step != 3 || len(got.LostLanes) > 0 {
			t.Errorf("%+v", got)
		}
		e.allDone(0, 2)
		for _, worker := range []int{0, 2} {
			if p := e.workers[worker].trainer.Progress(); p.Nonfinite != 1 {
				t.Errorf("%v: %+v", completes, p)
			}
		}
	}
}

// infinite is a seat whose next run leaves one lane's state infinite.
type infinite struct {
	Seat
	lane, size, lanes int
	done              bool
}

func (i *infinite) Backward(in Pass) (float64, error) {
	sum, err := i.Seat.Backward(in)
	if err != nil || i.done {
		return sum, err
	}
	i.done = true
	state := make([]float32, i.lanes*i.size)
	if err := i.State(state); err != nil {
		return sum, err
	}
	state[i.lane*i.size] = float32(math.Inf(1))
	return sum, i.SetState(state)
}

func TestJoinRefuses(t *testing.T) {
	e := newElastic(t, elasticJob(1), 1)
	for want, ring := range map[string]Ring{
		"rank 1 of 1":                        {Rank: 1, LaneEnds: []int{testG}},
		"rank -1 of 1":                       {Rank: -1, LaneEnds: []int{testG}},
		"rank 0 of 0":                        {},
		"rank 1's lanes end at 4":            {LaneEnds: []int{4, 4}},
		"lanes end at 11; the job has 12":    {LaneEnds: []int{11}},
		"a ring needs both Peers and NewSum": {LaneEnds: []int{4, testG}},
		"2 names for 1 ranks":                {LaneEnds: []int{testG}, Names: []string{"a", "b"}},
	} {
		_, err := e.workers[0].trainer.Join(t.Context(), ring, nil)
		if err == nil || !strings.Contains(err.Error(), want) || e.workers[0].trainer.HasState() {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// A Join fails and leaves no state if the snapshot does not fit or cannot be found.
func TestRestoreFails(t *testing.T) {
	e := newElastic(t, elasticJob(4), 2)
	e.restore = func(context.Context, agree.Reason, int64) (*Snapshot, error) {
		return nil, errTest
	}
	e.ring(breakage{}, 0, 1)
	if err := e.workers[0].err; !errors.Is(err, errTest) || e.workers[0].trainer.HasState() {
		t.Errorf("%v", err)
	}
	e.restore = nil
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
}
