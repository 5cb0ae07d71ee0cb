package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
)

// learn trains the smallest model on text that repeats with a period that it must count, and
// returns the mean loss of the last steps.
func learn(d *Device, cell compute.Cell) float64 {
	const last, period = 10, 11
	steps := 150
	if cell == compute.LSTMNoForget { // what it has summed never leaves it
		steps = 300
	}
	s := compute.RecurrentShape{Cell: cell, T: 16, B: 8, D: 7, H: 40}
	m := newStepModel(d, s, rand.New(rand.NewPCG(1, 2)))
	defer m.close()
	text := make([]int32, period)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range text {
		text[i] = int32(random.IntN(s.D))
	}
	mean := 0.0
	for step := range steps {
		for i := range m.ids {
			at := step*s.T + i/s.B + 5*(i%s.B)
			m.ids[i], m.targets[i] = text[at%period], text[(at+1)%period]
		}
		if loss := m.step(); step >= steps-last {
			mean += loss / last
		}
	}
	return mean
}

// TestLearns trains in both precisions: text that a model without memory cannot predict is learnt
// well below its entropy, and bf16 ends within a tenth, or 0.01 nats, of fp32.
func TestLearns(t *testing.T) {
	for _, cell := range compute.Cells() {
		var fp32 float64
		d := newDevice(t, "", Config{Threads: 2})
		if fp32 = learn(d, cell); !(fp32 < 0.2) {
			t.Errorf("%v: loss %.4f in fp32", cell, fp32)
		}
		for _, isa := range []string{isaPortable, ""} {
			d := newDevice(t, isa, Config{Threads: 2, Precision: compute.BF16})
			loss := learn(d, cell)
			t.Logf("%v on %s: loss %.6f in bf16, %.6f in fp32", cell, d.Name(), loss, fp32)
			if e := math.Abs(loss - fp32); !(e <= 0.01+0.1*fp32) {
				t.Errorf("%v on %s: loss %.6f in bf16, %.6f in fp32", cell, d.Name(), loss,
					fp32)
			}
		}
	}
}
