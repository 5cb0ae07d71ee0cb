package cpu

import (
	"math"

	"rondo/compute"
)

// refUpdate applies an optimizer. g is the gradient with weight decay added.
func refUpdate(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	lr, mu, rho, eps := u.LR, u.Momentum, u.Rho, u.Epsilon
	switch u.Optimizer {
	case compute.SGD:
		for i, p := range params {
			params[i] = p - lr*(grads[i]+u.WeightDecay*p)
		}
	case compute.Momentum:
		for i, p := range params {
			s1[i] = mu*s1[i] + grads[i] + u.WeightDecay*p
			params[i] = p - lr*s1[i]
		}
	case compute.Nesterov:
		for i, p := range params {
			g := grads[i] + u.WeightDecay*p
			s1[i] = mu*s1[i] + g
			params[i] = p - lr*(g+mu*s1[i])
		}
	case compute.Adam, compute.AdamW:
		refAdam(u, c, params, grads, s1, s2)
	case compute.RMSProp:
		for i, p := range params {
			g := grads[i] + u.WeightDecay*p
			s1[i] = rho*s1[i] + (1-rho)*g*g
			params[i] = p - lr*g/(root(s1[i])+eps)
		}
	case compute.Adagrad:
		for i, p := range params {
			g := grads[i] + u.WeightDecay*p
			s1[i] += g * g
			params[i] = p - lr*g/(root(s1[i])+eps)
		}
	}
}

// refAdam is Adam, whose decay is part of the gradient, and AdamW, whose decay shrinks the
// parameter.
func refAdam(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	decay, shrink := u.WeightDecay, float32(1)
	if u.Optimizer == compute.AdamW {
		decay, shrink = 0, 1-u.LR*u.WeightDecay
	}
	for i, p := range params {
		g := grads[i] + decay*p
		s1[i] = u.Beta1*s1[i] + (1-u.Beta1)*g
		s2[i] = u.Beta2*s2[i] + (1-u.Beta2)*g*g
		params[i] = shrink*p - c.size*s1[i]/(root(s2[i])*c.root+u.Epsilon)
	}
}

func root(x float32) float32 { return float32(math.Sqrt(float64(x))) }
