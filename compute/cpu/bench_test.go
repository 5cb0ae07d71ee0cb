package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"rondo/compute"
)

// stepModel is one layer over one-hot ids, an output layer, and all parameters flat: what a
// training step of the smallest model does, without the model.
type stepModel struct {
	device        *Device
	params, grads []float32
	weights, dw   compute.RecurrentWeights
	out, dout     [2][]float32 // weight, bias
	layer         compute.Recurrent
	head          compute.Output
	y, dy         []float32
	state, next   compute.RecurrentState
	ids, targets  []int32
	rate, clip    float32
}

func newStepModel(d *Device, s compute.RecurrentShape, random *rand.Rand) *stepModel {
	k, n := s.Cell.Gates()*s.H, s.T*s.B
	size := k*s.D + k*s.H + 2*k + s.Cell.Peepholes()*s.H + s.D*s.H + s.D
	m := &stepModel{device: d, params: d.Alloc(size), grads: d.Alloc(size), rate: 1, clip: 1,
		y: d.Alloc(n * s.H), dy: d.Alloc(n * s.H), layer: d.NewRecurrent(s, false),
		head: d.NewOutput(compute.OutputShape{N: n, H: s.H, V: s.D})}
	for _, st := range []*compute.RecurrentState{&m.state, &m.next} {
		*st = compute.RecurrentState{H: d.Alloc(s.B * s.H), C: d.Alloc(s.B * s.H)}
	}
	view := func(flat []float32) (compute.RecurrentWeights, [2][]float32) {
		next := func(n int) []float32 {
			x := flat[:n:n]
			flat = flat[n:]
			return x
		}
		return s.Weights(next), [2][]float32{next(s.D * s.H), next(s.D)}
	}
	m.weights, m.out = view(m.params)
	m.dw, m.dout = view(m.grads)
	bound := 1 / math.Sqrt(float64(s.H))
	for i := range m.params {
		m.params[i] = float32((2*random.Float64() - 1) * bound)
	}
	for range n {
		m.ids = append(m.ids, int32(random.IntN(s.D)))
		m.targets = append(m.targets, int32(random.IntN(s.D)))
	}
	return m
}

// gradient is forward, loss and backward. It returns the mean loss.
func (m *stepModel) gradient() float64 {
	n := float32(len(m.ids))
	m.layer.Forward(m.weights, compute.RecurrentInput{IDs: m.ids}, m.state, m.y, m.next)
	m.head.ForwardBackward(m.y, m.out[0], m.out[1], m.targets, 1/n, m.dy, m.dout[0],
		m.dout[1])
	m.layer.Backward(m.dy, compute.RecurrentState{}, m.dw, nil, compute.RecurrentState{})
	return m.head.Sum() / float64(n)
}

// step is one: the gradient, clip by norm, SGD. It returns the mean loss.
func (m *stepModel) step() float64 {
	loss := m.gradient()
	if norm := math.Sqrt(m.device.SumSquares(m.grads)); norm > float64(m.clip) {
		m.device.Scale(m.grads, m.clip/float32(norm))
	}
	m.device.Update(compute.Update{Optimizer: compute.SGD, LR: m.rate}, m.params, m.grads, nil,
		nil)
	m.state, m.next = m.next, m.state
	return loss
}

func (m *stepModel) close() {
	m.layer.Close()
	m.head.Close()
}

// BenchmarkStep is the whole training step of the textbook's model: H 256, B 32, T 35, V 28,
// one-hot. The best metrics are of the fastest step, which a shared machine disturbs least;
// GFLOP/s counts the products of the recurrence and the output layer.
func BenchmarkStep(b *testing.B) {
	for _, p := range precisions {
		for threads := 1; threads <= 2; threads++ {
			for _, cell := range compute.Cells() {
				b.Run(fmt.Sprintf("%s/%d/%v", p, threads, cell), func(b *testing.B) {
					d := newDevice(b, "", Config{Threads: threads, Precision: p})
					benchmarkStep(b, d, cell)
				})
			}
		}
	}
}

func benchmarkStep(b *testing.B, d *Device, cell compute.Cell) {
	s := compute.RecurrentShape{Cell: cell, T: 35, B: 32, D: 28, H: 256}
	m := newStepModel(d, s, rand.New(rand.NewPCG(1, 2)))
	defer m.close()
	m.step()
	b.ReportAllocs()
	b.ResetTimer()
	start, best := time.Now(), time.Hour
	for range b.N {
		before := time.Now()
		m.step()
		best = min(best, time.Since(before))
	}
	tokens := float64(s.T * s.B)
	fastest := tokens / best.Seconds()
	flops := 6 * float64(s.H) * float64(s.Cell.Gates()*s.H+s.D)
	b.ReportMetric(tokens*float64(b.N)/time.Since(start).Seconds(), "tokens/s")
	b.ReportMetric(fastest, "best-tokens/s")
	b.ReportMetric(fastest*flops/1e9, "best-GFLOP/s")
}
