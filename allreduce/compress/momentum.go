package compress

// Momentum is an optimizer's, which each rank has of its own gradients g instead: u = Decay u +
// Gain g, and u goes where g would (momentum correction; Lin et al., arXiv:1712.01887, equation 5).
// The ranks' u add up to the momentum of their sum. Had the optimizer it, behind the choice, a
// number that has waited would enter it in one burst, and long after its gradients; as it is, what
// has waited is the very changes that were due meanwhile. The paper's factor masking, which clears
// u where it is sent, is not here: it takes away what is still to come of gradients.
type Momentum struct {
	Decay, Gain float64 // from 0, less than 1; above 0, or 0 for no momentum
	Nesterov    bool    // Gain g + Decay u goes in u's place
}

// On says whether there is one.
func (m Momentum) On() bool { return m.Gain > 0 }

func (m Momentum) valid() bool {
	return m == Momentum{} || m.Decay >= 0 && m.Decay < 1 && m.Gain > 0
}

// apply makes of a gradient in x what goes in its place, and of u before the step the one after.
func (m Momentum) apply(x, before, after []float32) {
	decay, gain := float32(m.Decay), float32(m.Gain)
	for i, g := range x {
		g = float32(gain * g)
		u := float32(decay*before[i]) + g
		after[i] = u
		if m.Nesterov {
			u = float32(decay*u) + g
		}
		x[i] = u
	}
}
