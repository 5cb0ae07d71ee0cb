package compress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestMomentum: the momenta sent and kept by all ranks add up to the momenta of the summed
// gradients, from the first step on that does not send all numbers. If all numbers are always sent,
// this holds in each step.
func TestMomentum(t *testing.T) {
	const n, world, after, steps = 64, 3, 2, 12
	tensors := []Tensor{{0, 8, 7}, {56, 1, 8}}
	for _, m := range []Momentum{{Decay: 0.9, Gain: 1}, {Decay: 0.9, Gain: 0.1},
		{Decay: 0.5, Gain: 1, Nesterov: true}} {
		for _, share := range []float64{1, 0.1} {
			what := fmt.Sprintf("%+v, top %v", m, share)
			c := newCompany(t, world, Config{Length: n, Tensors: tensors, TopK: share,
				After: after, Momentum: m}, false)
			rng := rand.New(rand.NewPCG(4, 7))
			u, due := make([]float64, n), make([]float64, n)
			for step := 1; step <= steps; step++ {
				gradients := make([][]float32, world)
				for rank := range gradients {
					gradients[rank] = randomGradient(rng, n, tensors)
				}
				whole := total(gradients)
				c.sum(gradients)
				c.commit()
				if step <= after {
					near(t, what, gradients[0], whole, 1e-5)
					continue
				}
				for i, g := range whole {
					u[i] = m.Decay*u[i] + m.Gain*g
					due[i] += u[i]
					if m.Nesterov {
						due[i] += m.Gain*g + m.Decay*u[i] - u[i]
					}
					due[i] -= float64(gradients[0][i])
				}
				for i := range due {
					kept := 0.0
					for _, s := range c.summers {
						kept += float64(s.kept.kept[i])
					}
					if math.Abs(due[i]-kept) > 1e-4 || share == 1 && kept != 0 {
						t.Fatalf("%s: after step %d %v is due at %d, and %v is kept", what, step,
							due[i], i, kept)
					}
				}
			}
			c.end()
		}
	}
}
