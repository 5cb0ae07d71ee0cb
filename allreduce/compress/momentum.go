package compress

// Momentum replaces the optimizer's momentum by one per rank, of its own gradients g: u = Decay u +
// Gain g, and u is sent in g's place (momentum correction; Lin et al., arXiv:1712.01887, equation
// 5). The ranks' u add up to the momentum of the summed gradient. If the optimizer had it, after
// the selection, a number that has waited would enter it late and in one burst. Here the waiting
// number is the sum of the changes due meanwhile. The paper's factor masking, which clears u where
// it is sent, is left out: it drops changes that are still due.
type Momentum struct {
	Decay, Gain float64 // Decay: 0 to below 1. Gain: above 0, or 0 for no momentum
	Nesterov    bool    // sends Gain g + Decay u in u's place
}

// On reports whether momentum is used.
func (m Momentum) On() bool { return m.Gain > 0 }

func (m Momentum) valid() bool {
	return m == Momentum{} || m.Decay >= 0 && m.Decay < 1 && m.Gain > 0
}

// apply replaces the gradient in x by the numbers to send, and computes of's new u.
func (m Momentum) apply(x []float32, of gradient) {
	decay, gain := float32(m.Decay), float32(m.Gain)
	ofOld := float32(m.Decay * of.share)
	for i, g := range x {
		g = float32(gain * g)
		u := float32(ofOld*of.velocity[i]) + g
		of.nextVelocity[i] = u
		if m.Nesterov {
			u = float32(decay*u) + g
		}
		x[i] = u
	}
}
