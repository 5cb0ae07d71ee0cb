package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/model"
	"rondo/sum"
	"rondo/train/optim"
)

// rounding is a ring as a compress.Ring. Its sums keep only the upper 16 bits of each number.
type rounding struct{ sumRing }

func (r rounding) Start(
	ctx context.Context, buf, residual []float32, _ *time.Time,
) (compress.Pending, error) {
	for i := range buf {
		if residual == nil {
			break
		}
		whole := buf[i] + residual[i]
		buf[i] = math.Float32frombits(math.Float32bits(whole) &^ 0xffff)
		residual[i] = whole - buf[i]
	}
	return summed{}, r.AllReduce(ctx, buf)
}

func tensorsOf(c model.Config) (tensors []compress.Tensor, length int) {
	views := model.Layout(c)
	for _, v := range views {
		t := compress.Tensor{Offset: v.Offset, Rows: 1, Columns: v.Len}
		if len(v.Shape) == 2 {
			t.Rows, t.Columns = v.Shape[0], v.Shape[1]
		}
		tensors = append(tensors, t)
	}
	return tensors, model.Span(views)
}

// summing lets the ranks of a job sum by Summers. Each worker keeps one over all its rings.
func summing(t *testing.T, j *job, config compress.Config) {
	config.Tensors, config.Length = tensorsOf(j.model)
	summers := map[int]*compress.Summer{}
	for worker := range 8 {
		s, err := compress.New(config)
		if err != nil {
			t.Fatal(err)
		}
		summers[worker] = s
	}
	j.summer = func(worker int, r Ring, ring sumRing) *compress.Summer {
		s := summers[worker]
		s.Join(rounding{ring}, compress.Place{Rank: r.Rank, World: len(r.LaneEnds),
			Generation: r.Generation})
		return s
	}
}

// A Summer that sends everything gives the same bits as the ring's sum, also in buckets, with
// devices of their own memory, and with a skipped step. Between two ranks that also holds if only
// the looked-up rows travel.
func TestSummer(t *testing.T) {
	for _, scope := range []optim.ClipScope{optim.ScopeGlobal, optim.ScopeWorker} {
		for _, embed := range []int{0, 6} {
			j := resumable(compute.LSTM, false, compute.AdamW)
			j.config.Clip, j.config.Steps, j.config.SaveEvery = byNorm(1, scope), 26, 10
			j.model.Embed = embed
			spoil := j.device
			want := j.mustRun(t)
			all := map[string]func(compute.Device) compute.Device{
				"host": func(dev compute.Device) compute.Device { return dev }}
			for name, own := range ofItsOwn(t) {
				all[name] = own
			}
			for name, own := range all {
				if j.config.HostMemory = name == "host"; !j.config.HostMemory {
					j.model.GradientTail = 0
				} else {
					j.model.GradientTail = Tail
				}
				j.device = func(rank int, dev compute.Device) compute.Device {
					return own(spoil(rank, dev))
				}
				j.bucketBytes = 1 << 9
				summing(t, &j, compress.Config{Lookup: lookupOf(j.model)})
				got := j.mustRun(t)
				for i := range want.saved {
					sameSnapshot(t, got.saved[i], want.saved[i])
				}
			}
		}
	}
}

// lookupOf returns the tensor that tokens are looked up in.
func lookupOf(c model.Config) *compress.Lookup {
	for _, v := range model.Layout(c) {
		if v.Name == "embedding.weight" || c.Embed == 0 && v.Name == "rnn.weight_ih_l0" {
			return &compress.Lookup{Tensor: compress.Tensor{Offset: v.Offset, Rows: v.Shape[0],
				Columns: v.Shape[1]}, ByColumn: c.Embed == 0, Always: true}
		}
	}
	return nil
}

// The change of a round is summed like a gradient.
func TestSummerInRounds(t *testing.T) {
	for _, local := range outers(5) {
		j := inRounds(resumable(compute.LSTM, false, compute.AdamW), local)
		j.config.Steps, j.config.SaveEvery = 26, 10
		want := j.mustRun(t)
		summing(t, &j, compress.Config{})
		got := j.mustRun(t)
		for i := range want.saved {
			sameSnapshot(t, got.saved[i], want.saved[i])
		}
	}
}

// If the ring breaks in any collective, the workers go on with what their Summers keep, and end
// with the bits of an undisturbed job.
func TestSummerKeeps(t *testing.T) {
	t.Run("steps", func(t *testing.T) { summerKeeps(t, elasticJob(5)) })
	t.Run("rounds", func(t *testing.T) { summerKeeps(t, inRounds(elasticJob(7), outers(3)[2])) })
}

func summerKeeps(t *testing.T, job job) {
	t.Helper()
	for name, config := range map[string]compress.Config{
		"rounded": {Feedback: true}, "top": {TopK: 0.05},
		"momenta": {TopK: 0.05, Momentum: compress.Momentum{Decay: 0.9, Gain: 0.5}}} {
		job.evaluation, job.config.EvalEvery = nil, 0
		calm := newElastic(t, job, 2)
		summing(t, &calm.job, config)
		calm.ring(breakage{}, 0, 1)
		calm.allDone(0, 1)
		plain := newElastic(t, job, 2)
		plain.ring(breakage{}, 0, 1)
		if slices.Equal(plain.workers[0].params(), calm.workers[0].params()) {
			t.Fatalf("%s: nothing was kept", name)
		}
		for _, completes := range [][]int{{}, {0}, {1}} {
			how := breakage{completes: completes}
			for how.call = 1; ; how.call++ {
				e := newElastic(t, job, 2)
				summing(t, &e.job, config)
				if !e.ring(how, 0, 1) {
					break
				}
				e.ring(breakage{}, 0, 1)
				e.allDone(0, 1)
				e.audit()
				if !sameBits(e.workers[0].params(), calm.workers[0].params()) {
					t.Fatalf("%s: broken in collective %d, which %v completed: other parameters",
						name, how.call, completes)
				}
			}
			if how.call < 15 {
				t.Errorf("%s: only %d collectives", name, how.call)
			}
		}
	}
}

// keepers are the ways to sum that keep parts of a gradient.
var keepers = map[string]compress.Config{"rounded": {Feedback: true}, "top": {TopK: 0.05},
	"PowerSGD": {PowerSGD: 1, Seed: 3, After: 9},
	"momenta": {TopK: 0.05, After: 9,
		Momentum: compress.Momentum{Decay: 0.9, Gain: 1, Nesterov: true}}}

// keepingJob is a resumable job whose Summers keep parts of a gradient.
func keepingJob(t *testing.T, config compress.Config) job {
	j := resumable(compute.LSTM, false, compute.Nesterov)
	j.config.Clip.Scope = optim.ScopeWorker
	if config.Momentum.On() {
		j.update = sum.Update{MomentumAfter: config.After, Decay: config.Momentum.Decay}
	}
	summing(t, &j, config)
	return j
}

// A job that resumes from a checkpoint has the bits of one that goes on, though no checkpoint holds
// what the ranks keep. That also holds if the checkpoint's step was skipped.
func TestSummerResumes(t *testing.T) {
	for name, config := range keepers {
		for _, every := range []int64{18, 50} { // step 18 is skipped
			for _, local := range []optim.Local{{}, outers(5)[2]} {
				j := keepingJob(t, config)
				if local.On() {
					if config.Momentum.On() {
						continue // the momentum stays in the rounds
					}
					j = inRounds(j, local)
				}
				j.config.SaveEvery = every
				straight := j.mustRun(t)
				second := j
				summing(t, &second, config)
				second.device = nil
				second.reload = func(trainer *Trainer) *Snapshot {
					return reload(t, trainer, straight.saved[0])
				}
				want := straight.saved[len(straight.saved)-1]
				rest := second.mustRun(t)
				t.Run(fmt.Sprintf("%s, every %d, rounds %v", name, every, local.On()),
					func(t *testing.T) {
						sameSnapshot(t, rest.saved[len(rest.saved)-1], want)
					})
			}
		}
	}
}

// A checkpoint has what is left of the pause after an exchange of tokens that saved nothing. With
// more than two ranks the pause decides in which order numbers are added.
func TestSummerPauses(t *testing.T) {
	j := resumable(compute.LSTM, false, compute.Adam)
	j.ranks = 3
	j.model.Embed = 1<<14/testV + 1 // a smaller table is always summed as a whole
	table := lookupOf(j.model)
	table.Always = false
	summing(t, &j, compress.Config{Lookup: table})
	j.config.SaveEvery = 18
	straight := j.mustRun(t)
	if straight.saved[0].Progress.Pause == 0 {
		t.Fatal("no exchange was in vain before the checkpoint")
	}
	second := j
	summing(t, &second, compress.Config{Lookup: table})
	second.device = nil
	second.reload = func(trainer *Trainer) *Snapshot {
		return reload(t, trainer, straight.saved[0])
	}
	rest := second.mustRun(t)
	for i, want := range straight.saved[1:] {
		sameSnapshot(t, rest.saved[i], want)
	}
}

// A stop comes a step later if something is kept, and its checkpoint then lacks nothing.
func TestSummerStops(t *testing.T) {
	for name, config := range keepers {
		const stop = 51
		j := keepingJob(t, config)
		j.config.SaveEvery = stop
		straight := j.mustRun(t)
		first := j
		first.config.SaveEvery = 0
		summing(t, &first, config)
		first.prepare = func(rank int, trainer *Trainer) {
			if rank == 1 {
				trainer.cfg.Observer = &stopper{Observer: trainer.cfg.Observer, trainer: trainer,
					after: stop - 2}
			}
		}
		half := first.mustRun(t)
		if !half.result.Stopped || half.result.Progress.Step != stop {
			t.Fatalf("%s: stopped at step %d: %v", name, half.result.Progress.Step,
				half.result.Stopped)
		}
		sameSnapshot(t, half.saved[0], straight.saved[0])
	}
}

// If the ranks sum their own momenta, the update uses the rule without momentum, and a checkpoint
// has their sum. A single rank has the momentum in the update.
func TestSumsOfMomenta(t *testing.T) {
	for _, rule := range []compute.Optimizer{compute.Momentum, compute.Adam, compute.AdamW} {
		j := newJob(2)
		j.config.Clip.Scope, j.config.Steps, j.config.Save = optim.ScopeWorker, 20, true
		j.config.Optimizer.Rule = rule
		j.config.Schedule.Rate = 1e-2
		run := func(momentum float64, after int64) *Snapshot {
			j.config.Optimizer.Momentum, j.config.Optimizer.Beta1 = momentum, momentum
			j.update = sum.Update{HoldAfter: 1, MomentumAfter: after, Decay: 0.5}
			summing(t, &j, compress.Config{TopK: 0.1, After: 1,
				Momentum: compress.Momentum{Decay: 0.5, Gain: 0.5}})
			return j.mustRun(t).saved[0]
		}
		want, got := run(0, 0), run(0.5, 1) // the first update's momentum is its gradient
		if !sameBits(got.Params, want.Params) {
			t.Errorf("optimizer %d: a momentum is in the update of momenta", rule)
		}
		moves := func(v float32) bool { return v != 0 }
		if !slices.ContainsFunc(got.Slots[0].Data, moves) {
			t.Errorf("optimizer %d: the checkpoint lacks the ranks' momentum", rule)
		}
		var alone outcome
		j.ranks, j.summer = 1, nil
		if err := j.runRank(t.Context(), 0, nil, &alone); err != nil ||
			!slices.ContainsFunc(alone.saved[0].Slots[0].Data, moves) {
			t.Errorf("optimizer %d: a rank alone has no momentum (%v)", rule, err)
		}
	}
}
