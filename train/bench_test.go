package train

import (
	"context"
	"iter"
	"math"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/model"
)

// ringOfOne is the ring of a single rank.
type ringOfOne struct{}

func (ringOfOne) AllReduceCarry(context.Context, []float32, [][]float32, [][]float32) error {
	return nil
}
func (ringOfOne) Start(context.Context, []float32, *time.Time) (Pending, error) {
	return summed{}, nil
}
func (ringOfOne) Timing() (sending, waiting time.Duration) { return 0, 0 }

func (ringOfOne) ReduceScatter(context.Context, []float32, []int) error { return nil }
func (ringOfOne) AllReduceTree(context.Context, []float32, []int, [][]float32) error {
	return nil
}
func (ringOfOne) AllReduce(context.Context, []float32) error        { return nil }
func (ringOfOne) AllGather(context.Context, []float32, []int) error { return nil }

// idle is a seat that does nothing, so that a benchmark measures only the loop.
type idle struct{}

func (idle) Read(context.Context, iter.Seq[Span]) func()        { return func() {} }
func (idle) Next(context.Context) ([]int32, error)              { return nil, nil }
func (idle) Backward(Pass) (float64, error)                     { return 1, nil }
func (idle) ZeroState()                                         {}
func (idle) State([]float32) error                              { return nil }
func (idle) SetState([]float32) error                           { return nil }
func (idle) Evaluate(context.Context, Lanes, func(Score)) error { return nil }
func (idle) Staged() []compute.Staged                           { return nil }
func (idle) Close()                                             {}

// steps runs n steps of a job on one rank, with its model or without.
func steps(tb testing.TB, j job, n int, withModel bool, begin func()) {
	j.config.Steps, j.bucketBytes = int64(n), onePiece
	j.prepare = func(_ int, trainer *Trainer) {
		trainer.cfg.Observer = noObserver{}
		if !withModel {
			trainer.seat.Close()
			trainer.seat = idle{}
		}
		begin()
	}
	var o outcome
	if err := j.runRank(tb.Context(), 0, ringOfOne{}, &o); err != nil {
		tb.Fatal(err)
	}
}

// The step loop allocates no memory from step to step.
func TestAllocations(t *testing.T) {
	per := func(withModel bool) float64 {
		run := func(n int) float64 {
			return testing.AllocsPerRun(1, func() { steps(t, newJob(1), n, withModel, func() {}) })
		}
		const few, many, tries = 20, 220, 3 // the runtime allocates too, now and then
		least := math.Inf(1)
		for range tries {
			least = min(least, (run(many)-run(few))/(many-few))
		}
		return least
	}
	if got := per(false); got > 0.1 {
		t.Errorf("a step of the loop has %.2f allocations", got)
	}
	t.Logf("a step with its model has %.1f", per(true))
}

// fixedLanes are batches of any size without reading cost.
type fixedLanes struct{}

func (fixedLanes) SegmentsPerEpoch() int64 { return 8 }
func (fixedLanes) Reset(step int64) bool   { return step%8 == 0 }
func (fixedLanes) Fill(_ context.Context, step int64, _, _ int, inputs, targets []int32) error {
	for i := range inputs {
		inputs[i] = int32((int(step) + 5*i) % 28)
		targets[i] = int32((int(step) + 5*i + 9) % 28)
	}
	return nil
}

// textbook is the job of Dive into Deep Learning: 28 symbols, hidden 256, batch 32, 35 steps.
func textbook() job {
	j := newJob(1)
	j.model.Vocab, j.model.Hidden = 28, 256
	j.bptt, j.config.Lanes, j.ends, j.batches = 35, 32, []int{32}, fixedLanes{}
	j.config.Schedule.Rate = 1
	return j
}

// BenchmarkTextbook measures the whole step ("step") and the step without forward and backward
// ("loop").
func BenchmarkTextbook(b *testing.B) {
	for _, c := range []struct {
		name      string
		withModel bool
	}{{"loop", false}, {"step", true}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			steps(b, textbook(), b.N, c.withModel, b.ResetTimer)
		})
	}
	b.Run("segment", func(b *testing.B) {
		dev, err := cpu.New(cpu.Config{Threads: 1})
		if err != nil {
			b.Fatal(err)
		}
		defer dev.Close()
		benchmarkSegment(b, dev)
	})
}

// benchmarkSegment runs forward and backward alone.
func benchmarkSegment(b *testing.B, dev compute.Device) {
	j := textbook()
	m, err := model.New(j.model, dev)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSegment(35, 32)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	in := model.SegmentInput{Inputs: make([]int32, 35*32), Targets: make([]int32, 35*32),
		Scale: 1.0 / (35 * 32)}
	if err := j.batches.Fill(b.Context(), 0, 0, 32, in.Inputs, in.Targets); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Run(in); err != nil {
			b.Fatal(err)
		}
	}
}

func tenMillion() job {
	j := newJob(1)
	j.model.Vocab, j.model.Hidden, j.model.Layers = 96, 900, 2
	j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 0.01
	return j
}

// BenchmarkDigest measures the digest of a roll call: parameters and two slots.
func BenchmarkDigest(b *testing.B) {
	alone(b, tenMillion(), func(trainer *Trainer) {
		b.Logf("%d parameters", trainer.task.(textTask).Count())
		b.SetBytes(3 * 4 * int64(len(trainer.task.Params())))
		for b.Loop() {
			trainer.digest()
		}
	})
}

// BenchmarkStepDigest measures the digest that a Ledger adds to each step.
func BenchmarkStepDigest(b *testing.B) {
	for name, j := range map[string]job{"textbook": textbook(), "ten million": tenMillion()} {
		b.Run(name, func(b *testing.B) {
			alone(b, j, func(trainer *Trainer) {
				b.Logf("%d parameters", trainer.task.(textTask).Count())
				for b.Loop() {
					trainer.Digest()
					trainer.progress.Step++
				}
			})
		})
	}
}

// BenchmarkBuild measures a Join that changes the rank's number of lanes.
func BenchmarkBuild(b *testing.B) {
	j := tenMillion()
	j.bptt = 35
	alone(b, j, func(trainer *Trainer) {
		for b.Loop() {
			s, err := trainer.task.Open(16)
			if err != nil {
				b.Fatal(err)
			}
			s.Close()
		}
	})
}

// alone joins a ring of one rank and calls do in it.
func alone(b *testing.B, j job, do func(*Trainer)) {
	b.Helper()
	j.config.Steps = 1
	j.prepare = func(_ int, trainer *Trainer) {
		do(trainer)
		trainer.progress.Step = 1 // there is nothing to train
	}
	var o outcome
	if err := j.runRank(b.Context(), 0, nil, &o); err != nil {
		b.Fatal(err)
	}
}
