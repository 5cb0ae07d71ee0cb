package train

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/sum/sharded"
	"rondo/train/optim"
)

// rateFor returns a learning rate that suits the rule.
func rateFor(rule compute.Optimizer) float64 {
	switch rule {
	case compute.Adam, compute.AdamW, compute.RMSProp:
		return 0.005
	case compute.SGD, compute.Momentum, compute.Nesterov, compute.Adagrad:
	}
	return 0.2
}

// shardJob is a short job that saves, with this optimizer.
func shardJob(rule compute.Optimizer, ranks int) job {
	j := elasticJob(7)
	j.ranks, j.config.Optimizer.Rule, j.config.Schedule.Rate = ranks, rule, rateFor(rule)
	j.config.Optimizer.WeightDecay = 0.01
	return j
}

// A sharded optimizer gives the same weights, losses, evaluations and snapshots, bit for bit, as
// unsharded ranks.
func TestShardedIsTheSame(t *testing.T) {
	for name, change := range map[string]func(*job){
		"global": func(j *job) { j.config.Clip.Limit = 0.1 },
		"worker": func(j *job) { j.config.Clip = byNorm(0.1, optim.ScopeWorker) },
		"group": func(j *job) {
			j.config.Clip, j.config.LaneGroups = byNorm(0.1, optim.ScopeGroup), 6
		},
		"by value": func(j *job) { j.config.Clip = byValue(0.003, optim.ScopeGlobal) },
		"unclipped, accumulated": func(j *job) {
			j.config.Clip.Limit, j.config.Accumulate = 0, 2
		},
		"device memory": func(j *job) { j.config.HostMemory, j.model.GradientTail = false, 0 },
		"embedding, dropout": func(j *job) {
			j.model.Embed, j.model.Vocab, j.model.Dropout, j.model.Layers = 6, 300, 0.2, 2
		},
	} {
		for _, rule := range []compute.Optimizer{compute.SGD, compute.Momentum, compute.AdamW} {
			t.Run(fmt.Sprintf("%s, optimizer %d", name, rule), func(t *testing.T) {
				t.Parallel()
				for ranks := 1; ranks <= 4; ranks++ {
					j := shardJob(rule, ranks)
					change(&j)
					want := j.mustRun(t)
					for copies := 1; copies <= sharded.MaxCopies; copies++ {
						j.shardCopies = copies
						alikeButForNorms(t, j.mustRun(t), want)
					}
				}
			})
		}
	}
}

// alikeButForNorms fails unless two jobs have bit-identical results. Norms, which are added in
// another order, may differ in their last places.
func alikeButForNorms(t *testing.T, got, want *outcome) {
	t.Helper()
	for i := range got.steps {
		g, w := &got.steps[i], want.steps[i]
		if d := math.Abs(g.GradientNorm/w.GradientNorm - 1); !(d < 1e-12) {
			t.Errorf("step %d: a norm of %v, not %v", i+1, g.GradientNorm, w.GradientNorm)
		}
		g.GradientNorm = w.GradientNorm
	}
	if g, w := got.report(), want.report(); g != w {
		t.Fatalf("%s\nwant %s", g, w)
	}
	if len(got.saved) != len(want.saved) || len(got.saved) == 0 {
		t.Fatalf("%d snapshots, not %d", len(got.saved), len(want.saved))
	}
	for i := range got.saved {
		sameSnapshot(t, got.saved[i], want.saved[i])
	}
}

// A worker may be killed in any collective, whichever ranks complete it: the others go on with all
// slots, and lose nothing.
func TestShardedKilledInAnyCollective(t *testing.T) {
	j := shardJob(compute.AdamW, 1)
	oracle := j.mustRun(t)
	j.shardCopies = 2
	hows := kills()
	hows["nobody dies"] = breakage{completes: []int{0, 2}}
	for name, how := range hows {
		for _, host := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, host memory %v", name, host), func(t *testing.T) {
				t.Parallel()
				j := j
				if j.config.HostMemory = host; !host {
					j.model.GradientTail = 0
				}
				killSharded(t, j, oracle, how)
			})
		}
	}
}

func killSharded(t *testing.T, j job, oracle *outcome, how breakage) {
	for how.call = 1; ; how.call++ {
		e := newElastic(t, j, 4)
		if !e.ring(how, 0, 1, 2, 3) {
			e.allDone(0, 1, 2, 3)
			break
		}
		left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(worker int) bool {
			return slices.Contains(how.dead, worker)
		})
		e.ring(breakage{}, left...)
		if got := e.workers[left[0]].joined; len(got.LostLanes) > 0 || got.LostSlots > 0 {
			t.Fatalf("call %d: the lanes %v and the slots of %d were lost", how.call,
				got.LostLanes, got.LostSlots)
		}
		e.allDone(left...)
		e.audit()
		e.matches(left[0], oracle)
		e.saves(left[0])
		sameSlots(t, e.workers[left[0]], oracle)
		if t.Failed() {
			t.Fatalf("call %d", how.call)
		}
	}
	if how.call < 40 {
		t.Errorf("only %d collectives", how.call)
	}
}

// sameSlots fails unless the last snapshots have the same slots, within rounding.
func sameSlots(t *testing.T, h *elasticWorker, oracle *outcome) {
	t.Helper()
	got, want := h.saved[len(h.saved)-1], oracle.saved[len(oracle.saved)-1]
	for i, slot := range want.Slots {
		for at, w := range slot.Data {
			if d := math.Abs(float64(got.Slots[i].Data[at] - w)); !(d <= 1e-4) {
				t.Fatalf("%s of %d is %v, not %v", slot.Name, at, got.Slots[i].Data[at], w)
			}
		}
	}
}

// still is a ring that moves nothing, so that a benchmark measures a rank's own work.
type still struct{ ringOfOne }

// BenchmarkUpdate measures the end of a step on one rank, from the summed gradient to the new
// parameters: norm, clip, update and copies, for about 10M parameters with Adam.
func BenchmarkUpdate(b *testing.B) {
	for _, ranks := range []int{1, 2, 4, 8} {
		for copies := 0; copies <= sharded.MaxCopies; copies++ {
			if copies > 0 && ranks == 1 || copies == 0 && ranks > 1 {
				continue // these ranks all do the same work
			}
			b.Run(fmt.Sprintf("ranks=%d/copies=%d", ranks, copies), func(b *testing.B) {
				j := tenMillion()
				j.shardCopies = copies
				j.device = func(_ int, dev compute.Device) compute.Device {
					return &countingAllocs{Device: dev}
				}
				alone(b, j, func(trainer *Trainer) { benchmarkUpdate(b, j, trainer, ranks) })
			})
		}
	}
}

// countingAllocs is a device that counts allocated floats.
type countingAllocs struct {
	compute.Device
	floats int
}

func (c *countingAllocs) Alloc(n int) []float32 {
	c.floats += n
	return c.Device.Alloc(n)
}

func benchmarkUpdate(b *testing.B, j job, trainer *Trainer, ranks int) {
	kept := 0
	for _, x := range trainer.slots.Own() {
		kept += len(x)
	}
	if ranks > 1 {
		device := trainer.dev.(*countingAllocs)
		ring := j.over(Ring{LaneEnds: dealt(ranks), Generation: 2},
			parts{ring: still{}, slots: trainer.slots})
		err := trainer.enter(ring)
		device.floats = 0
		if err == nil {
			err = trainer.slots.Fresh()
		}
		if err != nil {
			b.Fatal(err)
		}
		kept = device.floats
	}
	b.ResetTimer()
	b.ReportMetric(float64(4*kept)/1e6, "MB-kept")
	for index := range int64(b.N) {
		trainer.plan(index)
		if _, err := trainer.exchange.sum.Sum(b.Context()); err != nil {
			b.Fatal(err)
		}
		if _, err := trainer.path.update(b.Context(), index, tally{}); err != nil {
			b.Fatal(err)
		}
		trainer.torn = false
	}
}
