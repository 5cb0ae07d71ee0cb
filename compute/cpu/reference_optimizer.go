package cpu

import (
	"math"

	"rondo/compute"
)

// refUpdate applies an optimizer, with the same bits as the C kernels on every processor. A
// conversion rounds each product before it is added; otherwise the compiler could fuse the two.
func refUpdate(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	lr, mu, eps := u.LR, u.Momentum, u.Epsilon
	_, rho := u.Decays()
	decayed := func(i int, p float32) float32 { return grads[i] + float32(u.WeightDecay*p) }
	switch u.Optimizer {
	case compute.SGD:
		for i, p := range params {
			params[i] = p - float32(lr*decayed(i, p))
		}
	case compute.Momentum:
		for i, p := range params {
			s1[i] = float32(mu*s1[i]) + decayed(i, p)
			params[i] = p - float32(lr*s1[i])
		}
	case compute.Nesterov:
		for i, p := range params {
			g := decayed(i, p)
			s1[i] = float32(mu*s1[i]) + g
			params[i] = p - float32(lr*(g+float32(mu*s1[i])))
		}
	case compute.Adam, compute.AdamW:
		refAdam(u, c, params, grads, s1, s2)
	case compute.RMSProp:
		for i, p := range params {
			g := decayed(i, p)
			s1[i] = float32(rho*s1[i]) + float32((1-rho)*g*g)
			params[i] = p - lr*g/(root(s1[i])+eps)
		}
	case compute.Adagrad:
		for i, p := range params {
			g := decayed(i, p)
			s1[i] += float32(g * g)
			params[i] = p - lr*g/(root(s1[i])+eps)
		}
	}
}

// refAdam is Adam, with weight decay in the gradient, and AdamW, whose decay shrinks the parameter.
func refAdam(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	shrink := 1 - float32(u.LR*u.WeightDecay)
	beta2, _ := u.Decays()
	for i, p := range params {
		g := grads[i]
		if u.Optimizer == compute.AdamW {
			p *= shrink
		} else {
			g += float32(u.WeightDecay * p)
		}
		s1[i] = float32(u.Beta1*s1[i]) + float32((1-u.Beta1)*g)
		s2[i] = float32(beta2*s2[i]) + float32((1-beta2)*g*g)
		params[i] = p - c.size*s1[i]/(float32(root(s2[i])*c.root)+u.Epsilon)
	}
}

func root(x float32) float32 { return float32(math.Sqrt(float64(x))) }
