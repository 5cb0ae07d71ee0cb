package model

import (
	"math/rand/v2"
	"testing"

	"rondo/compute/devicetest"
)

// TestStacks holds the models of a device that computes layers beside each other against those of
// one that does not, to the bit: with dropout, in one chunk and in several. Every stack that was
// made is closed.
func TestStacks(t *testing.T) {
	const T, B = 5, 3
	for name, cfg := range shapes() {
		for _, k := range []int{0, 2} {
			t.Run(name, func(t *testing.T) {
				cfg.Recompute = k
				stacker := &devicetest.Stacker{Device: newDevice(t)}
				plain := newSegment(t, newModel(t, cfg), T, B)
				stacked := newSegment(t, newModelOn(t, cfg, stacker), T, B)
				if made := stacker.Made > 0; made != (cfg.Layers > 1) {
					t.Fatalf("%d stacks of %d layers", stacker.Made, cfg.Layers)
				}
				rng := rand.New(rand.NewPCG(5, 6))
				for step := range 3 {
					in := randomInput(rng, T, B, cfg.Vocab)
					in.Step = int64(step)
					want := outcome(t, plain, in)
					devicetest.SameBits(t, "loss, gradients and states", outcome(t, stacked, in),
						want)
				}
				stacked.Close()
				if stacker.Open != 0 {
					t.Errorf("%d stacks are open", stacker.Open)
				}
			})
		}
	}
}
