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
	"rondo/compute/devicetest"
	"rondo/train/optim"
)

// outers lists every outer rule, with rounds of this many steps.
func outers(every int64) []optim.Local {
	return []optim.Local{{Every: every, Outer: optim.OuterAverage},
		{Every: every, Outer: optim.OuterSGD, Rate: 0.8},
		{Every: every, Outer: optim.OuterNesterov, Rate: 0.7, Momentum: 0.5}}
}

// inRounds returns the job with rounds.
func inRounds(j job, local optim.Local) job {
	j.config.Local, j.config.Clip.Scope = local, optim.ScopeWorker
	return j
}

// For one worker with OuterAverage, rounds change no bit, wherever they end.
func TestRoundsOfOneWorker(t *testing.T) {
	for _, rule := range []compute.Optimizer{compute.SGD, compute.Nesterov, compute.AdamW} {
		for _, memory := range []string{"host", "device", "recorded"} {
			t.Run(fmt.Sprint(rule, " ", memory), func(t *testing.T) {
				j := newJob(1)
				j.config.Save, j.config.Optimizer.Rule, j.model.Dropout = true, rule, 0.2
				j.model.Layers = 2
				if rule == compute.Nesterov {
					j.config.Accumulate = 2
				}
				j.config.Schedule = optim.Schedule{Kind: optim.Cosine, Rate: 0.05, Warmup: 4}
				if memory != "host" {
					j.config.HostMemory, j.model.GradientTail = false, 0
				}
				if memory == "recorded" {
					j.device = func(_ int, dev compute.Device) compute.Device {
						return devicetest.NewRecorder(dev)
					}
				}
				alone := func(j job) (o outcome) {
					if err := j.runRank(t.Context(), 0, nil, &o); err != nil {
						t.Fatal(err)
					}
					return o
				}
				want := alone(j).saved[0]
				for _, every := range []int64{1, 3, 16, 64} {
					got := alone(inRounds(j, optim.Local{Every: every, Outer: optim.OuterAverage}))
					s := *got.saved[0]
					// Each step counts with its round's mean loss.
					s.Progress.Loss = want.Progress.Loss
					s.Progress.EpochLossSum = want.Progress.EpochLossSum
					s.Progress.Plateau = want.Progress.Plateau
					rounds := (50 + every - 1) / every
					if n := int64(len(got.steps)); n != rounds || s.Progress.Commits != rounds {
						t.Errorf("%d rounds of %d steps, %d commits", n, every,
							s.Progress.Commits)
					}
					s.Progress.Commits = want.Progress.Commits
					sameSnapshot(t, &s, want)
				}
			})
		}
	}
}

// Rounds of one step equal plain steps within rounding: averaging the parameters is averaging the
// gradients.
func TestRoundsOfOneStep(t *testing.T) {
	for segments, ends := range map[int][]int{1: {6, testG}, 2: {2, 5, testG}} {
		j := newJob(len(ends))
		j.config.Accumulate = segments
		j.ends, j.config.Clip.Limit, j.config.Schedule.Rate = ends, 0, 0.5
		want := j.mustRun(t)
		got := inRounds(j, optim.Local{Every: 1, Outer: optim.OuterAverage}).mustRun(t)
		if d := apart(t, got.losses(), want.losses()); !(d <= 1e-5) {
			t.Errorf("lanes %v: the loss curve is off by %.2g", ends, d)
		}
	}
}

// outerByHand computes the outer rule from the summed change, in float64.
func outerByHand(l optim.Local, x, delta, v float64) (next, momentum float64) {
	switch l.Outer {
	case optim.OuterSGD:
		return x - l.Rate*delta, 0
	case optim.OuterNesterov:
		v = l.Momentum*v + delta
		return x - l.Rate*(delta+l.Momentum*v), v
	case optim.OuterAverage:
	}
	return x - delta, 0
}

// The ranks sum the changes of their parameters, and the outer rule follows its formula.
func TestOuterRules(t *testing.T) {
	for _, local := range outers(5) {
		t.Run(string(local.Outer), func(t *testing.T) {
			j := inRounds(newJob(3), local)
			j.config.Steps, j.ends = 10, []int{3, 4, testG}
			var sums [][]float32
			j.summed = func(x []float32) {
				if len(x) > Tail {
					sums = append(sums, slices.Clone(x[:len(x)-Tail]))
				}
			}
			var start []float32
			j.prepare = func(rank int, trainer *Trainer) {
				if rank == 0 {
					start = slices.Clone(trainer.task.Params())
				}
			}
			o := j.mustRun(t)
			if len(sums) != 2 {
				t.Fatalf("%d sums in two rounds", len(sums))
			}
			moved := 0.0
			for i, x := range start {
				at, v := outerByHand(local, float64(x), float64(sums[0][i]), 0)
				at, _ = outerByHand(local, at, float64(sums[1][i]), v)
				if d := math.Abs(at - float64(o.params[i])); !(d <= 1e-5) {
					t.Fatalf("parameter %d is %v, by elasticWorker %v", i, o.params[i], at)
				}
				moved = max(moved, math.Abs(at-float64(x)))
			}
			if moved < 0.1 {
				t.Errorf("the parameters moved by no more than %v", moved)
			}
		})
	}
}

// roundJob is a job of two rounds and a shorter one, with everything that a round must undo.
func roundJob(local optim.Local, rule compute.Optimizer) job {
	j := inRounds(elasticJob(7), local)
	j.model.Layers, j.model.Dropout = 2, 0.2
	j.config.Optimizer.Rule, j.config.Schedule.Rate = rule, 0.05
	j.config.SaveEvery, j.config.CheckEvery = 3, 3
	return j
}

// A round may break in any collective, whichever ranks complete it. The survivors and a new worker
// reach the same bits as an undisturbed job.
func TestRoundsThatBreakOff(t *testing.T) {
	j := roundJob(optim.Local{Every: 3, Outer: optim.OuterNesterov, Rate: 0.7, Momentum: 0.5},
		compute.Adam)
	undisturbed := newElastic(t, j, 3)
	undisturbed.ring(breakage{}, 0, 1, 2)
	want := undisturbed.workers[0]
	for name, how := range map[string]breakage{
		"before":             {dead: []int{1}},
		"carried":            {dead: []int{2}, carried: true},
		"after, one knows":   {dead: []int{1}, completes: []int{2}},
		"after, none knows":  {dead: []int{0}, completes: []int{}},
		"after, others know": {dead: []int{0}, completes: []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			for how.call = 1; ; how.call++ {
				e := newElastic(t, j, 3)
				if !e.ring(how, 0, 1, 2) {
					break
				}
				members := []int{0, 1, 2}
				members[how.dead[0]] = e.addWorker()
				e.ring(breakage{}, members...)
				e.allDone(members...)
				e.audit()
				got := e.workers[members[0]]
				if len(got.joined.LostLanes) > 0 {
					t.Fatalf("call %d: the lanes %v were lost", how.call,
						got.joined.LostLanes)
				}
				if !sameBits(got.params(), want.params()) ||
					got.result.Progress != want.result.Progress {
					t.Fatalf("call %d: %+v; undisturbed %+v", how.call, got.result.Progress,
						want.result.Progress)
				}
			}
			if how.call < 20 {
				t.Errorf("only %d collectives", how.call)
			}
		})
	}
}

// A stopped job with rounds resumes to the same bits as one that was never stopped, for every
// optimizer and with a skipped round.
func TestRoundsResume(t *testing.T) {
	for _, rule := range []compute.Optimizer{compute.SGD, compute.Momentum, compute.Adam} {
		for _, local := range outers(7) {
			t.Run(fmt.Sprint(rule, " ", local.Outer), func(t *testing.T) {
				j := inRounds(resumable(compute.LSTM, false, rule), local)
				straight := j.mustRun(t)
				first := j
				first.prepare = func(_ int, trainer *Trainer) {
					trainer.cfg.Observer = &stopper{trainer.cfg.Observer, trainer, 49}
				}
				half := first.mustRun(t)
				if p := half.result.Progress; !half.result.Stopped || p.Step != 56 ||
					p.Nonfinite != 7 {
					t.Fatalf("stopped: %+v", half.result)
				}
				j.device = nil
				j.reload = func(trainer *Trainer) *Snapshot {
					return reload(t, trainer, half.saved[0])
				}
				rest := j.mustRun(t)
				sameSnapshot(t, rest.saved[0], straight.saved[0])
				if want := len(straight.evals); len(half.evals)+len(rest.evals) != want {
					t.Errorf("%d and %d evaluations, not %d", len(half.evals), len(rest.evals),
						want)
				}
			})
		}
	}
}

// zeroWatch fails if the gradient is not zero after a skipped round. The next round's segments
// overwrite only a part of it.
type zeroWatch struct {
	Observer
	trainer *Trainer
	t       *testing.T
}

func (w *zeroWatch) Step(r StepReport) {
	isSet := func(v float32) bool { return v != 0 }
	if r.Skipped && slices.ContainsFunc(w.trainer.grads, isSet) {
		w.t.Errorf("after step %d, which was skipped, the gradient is not zero", r.Step)
	}
	w.Observer.Step(r)
}

// All ranks skip a round in which a step is not finite on one of them: they restore the round's
// start, but do not read its data again.
func TestRoundIsSkippedByAll(t *testing.T) {
	for _, bad := range []fault{lossNaN, gradInf} {
		for _, local := range outers(4) {
			j := inRounds(newJob(3), local)
			j.config.Steps, j.config.Optimizer.Rule = 12, compute.Momentum
			j.config.Schedule.Rate = 0.1
			params := map[int64][]float32{}
			j.device = func(rank int, dev compute.Device) compute.Device {
				return &faulty{dev, func(run int) fault {
					if rank == 1 && run == 5 {
						return bad
					}
					return healthy
				}}
			}
			j.prepare = func(rank int, trainer *Trainer) {
				trainer.cfg.Observer = &zeroWatch{trainer.cfg.Observer, trainer, t}
				if rank == 0 {
					trainer.cfg.Observer = &paramWatch{trainer.cfg.Observer, trainer, params}
				}
			}
			j.summed = func(x []float32) {
				if !allFinite(x) {
					t.Error("what is not finite went into the ring")
				}
			}
			o := j.mustRun(t)
			p := o.result.Progress
			if p.Nonfinite != 4 || p.Updates != 8 || p.NonfiniteRun != 0 || !o.steps[1].Skipped ||
				!math.IsNaN(o.steps[1].Loss) || !strings.HasPrefix(o.notices[0],
				"the round up to step 8 was skipped: ") {
				t.Errorf("%s: %+v, %q", local.Outer, p, o.notices)
			}
			if !sameBits(params[4], params[8]) || sameBits(params[8], params[12]) {
				t.Errorf("%s: the skipped round has changed the parameters, or the next has not",
					local.Outer)
			}
		}
	}
}

func TestRoundsAreSkippedUpToTheLimit(t *testing.T) {
	j := inRounds(newJob(2), optim.Local{Every: 4, Outer: optim.OuterAverage})
	j.device = func(_ int, dev compute.Device) compute.Device {
		return &faulty{dev, func(run int) fault {
			if run%4 == 1 {
				return lossNaN
			}
			return healthy
		}}
	}
	for _, o := range j.run(t) {
		var many *NonfiniteError
		if !errors.As(o.err, &many) || o.result.Progress.Step != 12 ||
			!strings.Contains(o.err.Error(), "3 rounds (--sync-every) in a row") {
			t.Errorf("%+v, %v", o.result.Progress, o.err)
		}
	}
}

// Work that falls due within a round is done at its end.
func TestDueInRounds(t *testing.T) {
	j := inRounds(newJob(2), optim.Local{Every: 6, Outer: optim.OuterAverage})
	j.config.Steps, j.config.Save, j.config.SaveEvery = 40, true, 5
	j.evaluation, j.config.EvalEvery = newEvaluation(60), 8
	o := j.mustRun(t)
	var evals []int64
	for _, e := range o.evals {
		evals = append(evals, e.Step)
	}
	if want := []int64{12, 18, 24, 36, 40}; !slices.Equal(evals, want) {
		t.Errorf("evaluations after %v, not %v", evals, want)
	}
	if want := []int64{6, 12, 18, 24, 30, 36, 40}; !slices.Equal(o.checkpoints, want) {
		t.Errorf("checkpoints after %v, not %v", o.checkpoints, want)
	}
}

// A device with its own memory gives the same result.
func TestCopiesGiveTheSameInRounds(t *testing.T) {
	for _, local := range outers(5) {
		j := inRounds(newJob(2), local)
		j.config.Steps, j.config.Save = 12, true
		j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 0.02
		want := j.mustRun(t)
		j.config.HostMemory, j.model.GradientTail = false, 0
		sameSnapshot(t, j.mustRun(t).saved[0], want.saved[0])
		j.device = func(_ int, dev compute.Device) compute.Device {
			return devicetest.NewRecorder(dev)
		}
		sameSnapshot(t, j.mustRun(t).saved[0], want.saved[0])
	}
}

// A rank that is told to leave within a round has the state of the round's start. A rank whose
// device fails has none.
func TestEndWithinARound(t *testing.T) {
	for _, fails := range []bool{false, true} {
		j := inRounds(newJob(1), outers(5)[2])
		j.config.Steps, j.config.Optimizer.Rule = 20, compute.Adam
		j.config.Schedule.Rate = 0.02
		short := j
		short.config.Steps = 5
		want := short.mustRun(t)
		ctx, end := context.WithCancelCause(t.Context())
		reads := 1 << 20
		j.config.Ledger = beforeStep{8, func() {
			if fails {
				reads = 0
			} else {
				end(errBroken)
			}
		}}
		j.device = func(_ int, dev compute.Device) compute.Device {
			return torn{dev, "norm", &reads}
		}
		var trainer *Trainer
		j.prepare = func(_ int, made *Trainer) { trainer = made }
		var o outcome
		err := func() (err error) {
			defer compute.Catch(&err)
			return j.runRank(ctx, 0, nil, &o)
		}()
		end(nil)
		if fails {
			if !errors.Is(err, errTest) || trainer.HasState() {
				t.Errorf("%v, state %t", err, trainer.HasState())
			}
			continue
		}
		if !errors.Is(err, errBroken) || !trainer.HasState() || trainer.Progress().Step != 5 {
			t.Errorf("%v, state %t, %+v", err, trainer.HasState(), trainer.Progress())
		}
		devicetest.SameBits(t, "the parameters of the round before", o.params, want.params)
	}
}
