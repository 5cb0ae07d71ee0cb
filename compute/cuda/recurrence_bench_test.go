//go:build cuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/cuda/emulator"
)

// planMHz is the clock that planPersistent's cycles are of.
const planMHz = 1750

// benchShapes are the recurrences that BenchmarkRecurrence times.
func benchShapes() []compute.RecurrentShape {
	if emulator.Running() {
		return []compute.RecurrentShape{{Cell: compute.LSTM, T: 4, B: 2, D: 3, H: 32}}
	}
	var all []compute.RecurrentShape
	for _, cell := range []compute.Cell{compute.LSTM, compute.GRU} {
		for _, size := range []struct{ H, B int }{{256, 32}, {512, 64}, {1024, 64}} {
			all = append(all, compute.RecurrentShape{Cell: cell, T: 256, B: size.B, D: 28,
				H: size.H})
		}
	}
	return all
}

// BenchmarkRecurrence times the recurrence alone, in one launch and as a product a step, in
// microseconds a time step beside the planner's estimate.
func BenchmarkRecurrence(b *testing.B) {
	for _, way := range []struct {
		name string
		make func(*Device, compute.RecurrentShape, bool) loop
	}{{"persistent", newLoop}, {"steps", newSteps}} {
		for _, precision := range []compute.Precision{compute.BF16, compute.FP32} {
			for _, s := range benchShapes() {
				b.Run(fmt.Sprintf("%s/%v/%v/H%d/B%d", way.name, precision, s.Cell, s.H, s.B),
					func(b *testing.B) { benchRecurrence(b, precision, s, way.make) })
			}
		}
	}
}

func benchRecurrence(b *testing.B, precision compute.Precision, s compute.RecurrentShape,
	newLoop func(*Device, compute.RecurrentShape, bool) loop) {
	d := newGPU(b, precision)
	m := newLayerMemory(d, newRecurrentProblem(s, false, rand.New(rand.NewPCG(1, 2))))
	defer m.close()
	r := newRecurrent(d, s, false, newLoop)
	defer r.Close()
	m.forward(r)
	m.backward(r)
	// Gates that are computed twice are other numbers, which take the same time.
	hh, bias := at(m.w.HH), at(m.w.BiasHH)
	forward := func() {
		r.copy([]copied{r.loop.empty(false)})
		r.loop.forward(hh, bias, r.tape)
	}
	backward := func() {
		r.copy([]copied{r.loop.empty(true)})
		r.loop.backward(hh, at(m.dy), gradients{}, gradients{}, r.tape)
	}
	planned, is := r.loop.(*persistent)
	for _, pass := range []struct {
		name string
		run  func()
		plan func() *persistentPlan
	}{{"forward", forward, func() *persistentPlan { return planned.there }},
		{"backward", backward, func() *persistentPlan { return planned.back }}} {
		b.Run(pass.name, func(b *testing.B) {
			pass.run()
			d.queue.wait("warming up")
			b.ResetTimer()
			for range b.N {
				pass.run()
			}
			d.queue.wait("measuring")
			b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(b.N*s.T), "us/step")
			if is && pass.plan() != nil {
				b.ReportMetric(float64(pass.plan().cycles)/planMHz, "planned-us/step")
			}
		})
	}
}
