package train

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/train/agree"
	"rondo/train/optim"
)

// instructionSets makes a device for each instruction set of this build and processor, the highest
// first.
func instructionSets(t *testing.T, p compute.Precision) []compute.Device {
	t.Helper()
	var devices []compute.Device
	names := map[string]bool{}
	for _, isa := range []string{"", "avx512bf16", "avx512", "avx2", "portable"} {
		t.Setenv("RONDO_CPU_ISA", isa)
		dev, err := cpu.New(cpu.Config{Threads: 1, Precision: p})
		if err != nil {
			t.Logf("RONDO_CPU_ISA=%s: %v", isa, err)
			continue
		}
		t.Cleanup(dev.Close)
		if !names[dev.Name()] {
			devices, names[dev.Name()] = append(devices, dev), true
		}
	}
	t.Setenv("RONDO_CPU_ISA", "")
	return devices
}

// Ranks on different processors compute slightly different gradients, but apply the same sum with
// the same bits, for every optimizer. They pass every roll call and end with the same parameters.
func TestRanksOfDifferentProcessors(t *testing.T) {
	rules := []compute.Optimizer{compute.SGD, compute.Momentum, compute.Nesterov, compute.Adam,
		compute.AdamW, compute.RMSProp, compute.Adagrad}
	for _, p := range []compute.Precision{compute.FP32, compute.BF16} {
		devices := instructionSets(t, p)
		if len(devices) < 2 {
			t.Skip("this build and processor have one instruction set")
		}
		for i, rule := range rules {
			t.Run(fmt.Sprintf("%v/%d", p, rule), func(t *testing.T) {
				j := newJob(len(devices))
				j.device = func(rank int, _ compute.Device) compute.Device { return devices[rank] }
				j.config.Optimizer.Rule, j.config.Optimizer.WeightDecay = rule, 1e-4
				j.config.Steps, j.config.CheckEvery, j.config.Schedule.Rate = 12, 1, 0.01
				scope := []optim.ClipScope{optim.ScopeGlobal, optim.ScopeWorker}[i/2%2]
				j.config.Clip = []optim.Clip{byNorm(0.1, scope), byValue(0.1, scope)}[i%2]
				j.mustRun(t)
			})
		}
	}
}

// In bf16 several ranks equal one rank within bf16's rounding, and differ from float32.
func TestRanksInBFloat16(t *testing.T) {
	j := newJob(1)
	j.model.Layers, j.model.Dropout, j.config.CheckEvery = 2, 0.1, 1
	j.config.Clip.Limit, j.config.Schedule.Rate = 0.3, 1
	exact := j.mustRun(t)
	j.precision = compute.BF16
	alone := j.mustRun(t)
	if d := apart(t, alone.losses(), exact.losses()); !(d > 1e-7 && d < 0.02) {
		t.Errorf("bf16 is %.2g from float32", d)
	}
	for _, recompute := range []int{0, 2} {
		j.model.Recompute = recompute
		for _, ranks := range []int{1, 2, 3, 5} {
			j.ranks = ranks
			if d := apart(t, j.mustRun(t).losses(), alone.losses()); !(d < 5e-3) {
				t.Errorf("%d ranks, --recompute %d: off by %.2g", ranks, recompute, d)
			}
		}
	}
}

// In bf16 too, a rank with different parameters is found, and all ranks skip a step that is not
// finite.
func TestFaultsInBFloat16(t *testing.T) {
	j := elasticJob(6)
	j.precision, j.config.CheckEvery = compute.BF16, 3
	e := newElastic(t, j, 3)
	e.workers[1].trainer.cfg.Rehearsal = &rehearsed{spoil: func(step int64) Spoil {
		return Spoil{Flip: step == 2}
	}}
	e.ring(breakage{}, 0, 1, 2)
	var corrupt *agree.CorruptError
	if err := e.workers[1].err; !errors.As(err, &corrupt) || corrupt.Rank != 1 {
		t.Errorf("a flipped bit: %v", err)
	}

	j = newJob(3)
	j.precision, j.config.Steps, j.config.Schedule.Rate = compute.BF16, 8, 0.5
	j.device = func(rank int, dev compute.Device) compute.Device {
		return &faulty{Device: dev, fault: func(run int) fault {
			if rank == 1 && run == 4 {
				return gradInf
			}
			return healthy
		}}
	}
	o := j.mustRun(t)
	for i, s := range o.steps {
		if s.Skipped != (i == 4) || s.Skipped != math.IsNaN(s.Loss) && j.config.Clip.BeforeSum() {
			t.Errorf("step %d: skipped %t, loss %v", i+1, s.Skipped, s.Loss)
		}
	}
}
