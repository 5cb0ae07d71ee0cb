//go:build !cgo

package cpu

import (
	"cmp"
	"math"

	"rondo/compute"
)

// The steps of each cell and their derivatives, over one time step's B rows. act holds the input
// side's sums on entry and the gates' values on return; rec holds the recurrent side's sums. A
// backstep reads dh, the gradient of h_t, and writes the step's din and drec. It starts dhNew, the
// gradient of h_{t-1}, with the part that does not pass through W_hh.

// step is a step of the layer's cell.
func (l *refLayer[F]) step(t int, w refWeights[F], act, before, after []F) {
	switch l.Cell {
	case compute.LSTM, compute.LSTMCoupled, compute.LSTMNoForget:
		l.lstmStep(t, act, after)
	case compute.LSTMPeephole:
		l.peepholeStep(t, w.peephole, act, after)
	case compute.GRU:
		l.gruStep(t, act, before, after)
	case compute.GRUResetBefore, compute.MGU:
		l.gruBeforeStep(t, w, act, before, after)
	case compute.MinGRU:
		l.minStep(act, before, after)
	case compute.Clockwork:
		l.clockworkStep(t, act, before, after)
	case compute.Leaky, compute.LeakyLearned:
		l.leakyStep(w.peephole, act, before, after)
	default:
		l.rnnStep(act, after)
	}
}

// backstep is the derivative of step. It adds the gradients of peepholes to dw.
func (l *refLayer[F]) backstep(t, at int, w, dw refWeights[F]) {
	switch l.Cell {
	case compute.LSTM, compute.LSTMCoupled, compute.LSTMNoForget:
		l.lstmBackstep(t, at)
	case compute.LSTMPeephole:
		l.peepholeBackstep(t, at, w.peephole, dw.peephole)
	case compute.GRU:
		l.gruBackstep(t, at)
	case compute.GRUResetBefore, compute.MGU:
		l.gruBeforeBackstep(t, at, w)
	case compute.MinGRU:
		l.minBackstep(t, at)
	case compute.Clockwork:
		l.clockworkBackstep(t, at)
	case compute.Leaky, compute.LeakyLearned:
		l.leakyBackstep(t, at, w.peephole, dw.peephole)
	default:
		l.rnnBackstep(t, at)
	}
}

// rnnStep: h' = tanh or relu of (input + recurrent).
func (l *refLayer[F]) rnnStep(act, after []F) {
	for i, x := range act {
		x += l.rec[i]
		if l.Cell == compute.RNNTanh {
			x = tanh(x)
		} else if x < 0 {
			x = 0
		}
		act[i], after[i] = x, x
	}
}

func (l *refLayer[F]) rnnBackstep(t, at int) {
	h := l.h[(t+1)*l.B*l.H:]
	for i, dh := range l.dh {
		if l.Cell == compute.RNNTanh {
			dh *= 1 - h[i]*h[i]
		} else if h[i] == 0 {
			dh = 0
		}
		l.din[at+i] = dh
	}
}

// leak is the share that unit j takes from a step: σ(p), or the layer's.
func (l *refLayer[F]) leak(p []F, j int) F {
	if p == nil {
		return F(cmp.Or(l.Leak, compute.DefaultLeak))
	}
	return sigmoid(p[j])
}

// leakyStep: h' = (1-a) ⊙ h + a ⊙ tanh(input + recurrent).
func (l *refLayer[F]) leakyStep(p, act, before, after []F) {
	for i, x := range act {
		a := l.leak(p, i%l.H)
		act[i] = tanh(x + l.rec[i])
		after[i] = (1-a)*before[i] + a*act[i]
	}
}

func (l *refLayer[F]) leakyBackstep(t, at int, p, dp []F) {
	before := l.h[t*l.B*l.H:]
	for i, dh := range l.dh {
		n, a := l.act[at+i], l.leak(p, i%l.H)
		l.din[at+i] = dh * a * (1 - n*n)
		l.dhNew[i] = dh * (1 - a)
		if p != nil {
			dp[i%l.H] += dh * (n - before[i]) * a * (1 - a)
		}
	}
}

// clockworkStep: h' = tanh(input + recurrent) where the count c is 0, below 1, else h.
func (l *refLayer[F]) clockworkStep(t int, act, before, after []F) {
	count, next := l.c[t*l.B*l.H:], l.c[(t+1)*l.B*l.H:]
	for i, x := range act {
		act[i] = tanh(x + l.rec[i])
		if after[i] = before[i]; count[i] < 1 {
			after[i] = act[i]
		}
		if next[i] = count[i] + 1; next[i] >= F(l.Period(i%l.H)) {
			next[i] = 0
		}
	}
}

func (l *refLayer[F]) clockworkBackstep(t, at int) {
	count := l.c[t*l.B*l.H:]
	clear(l.dc)
	for i, dh := range l.dh {
		n := l.act[at+i]
		l.din[at+i], l.dhNew[i] = 0, dh
		if count[i] < 1 {
			l.din[at+i], l.dhNew[i] = dh*(1-n*n), 0
		}
	}
}

// lstmStep: c' = f ⊙ c + i ⊙ g, h' = o ⊙ tanh(c').
func (l *refLayer[F]) lstmStep(t int, act, after []F) {
	state, wide := l.B*l.H, l.k*l.H
	G, O := wide-2*l.H, wide-l.H // places of g and o
	before, c := l.c[t*state:], l.c[(t+1)*state:(t+2)*state]
	for b := range l.B {
		gates, rec := act[b*wide:(b+1)*wide], l.rec[b*wide:]
		for j := range l.H {
			gates[j] = sigmoid(gates[j] + rec[j])
			if l.Cell == compute.LSTM {
				gates[l.H+j] = sigmoid(gates[l.H+j] + rec[l.H+j])
			}
			i, f := gates[j], l.forget(gates, j)
			g, o := tanh(gates[G+j]+rec[G+j]), sigmoid(gates[O+j]+rec[O+j])
			gates[G+j], gates[O+j] = g, o
			at := b*l.H + j
			c[at] = f*before[at] + i*g
			after[at] = o * tanh(c[at])
		}
	}
}

// forget is the value of unit j's forget gate.
func (l *refLayer[F]) forget(gates []F, j int) F {
	switch l.Cell {
	case compute.LSTMCoupled:
		return 1 - gates[j]
	case compute.LSTMNoForget:
		return 1
	}
	return gates[l.H+j]
}

func (l *refLayer[F]) lstmBackstep(t, at int) {
	state, wide := l.B*l.H, l.k*l.H
	G, O := wide-2*l.H, wide-l.H
	before, c := l.c[t*state:], l.c[(t+1)*state:]
	for b := range l.B {
		gates, din := l.act[at+b*wide:], l.din[at+b*wide:]
		for j := range l.H {
			s := b*l.H + j
			i, f, g, o := gates[j], l.forget(gates, j), gates[G+j], gates[O+j]
			tc, dh := tanh(c[s]), l.dh[s]
			dc := l.dc[s] + dh*o*(1-tc*tc)
			df := dc * before[s] * f * (1 - f)
			din[j] = dc * g * i * (1 - i)
			din[G+j] = dc * i * (1 - g*g)
			din[O+j] = dh * tc * o * (1 - o)
			switch l.Cell {
			case compute.LSTM:
				din[l.H+j] = df
			case compute.LSTMCoupled:
				din[j] -= df
			}
			l.dc[s] = dc * f
		}
	}
}

// peepholeStep is lstmStep with p_i ⊙ c in i's sum, p_f ⊙ c in f's and p_o ⊙ c' in o's.
func (l *refLayer[F]) peepholeStep(t int, p, act, after []F) {
	state := l.B * l.H
	before, c := l.c[t*state:], l.c[(t+1)*state:(t+2)*state]
	for b := range l.B {
		gates, rec := act[b*4*l.H:(b+1)*4*l.H], l.rec[b*4*l.H:]
		for j := range l.H {
			at := b*l.H + j
			i := sigmoid(gates[j] + rec[j] + p[j]*before[at])
			f := sigmoid(gates[l.H+j] + rec[l.H+j] + p[l.H+j]*before[at])
			g := tanh(gates[2*l.H+j] + rec[2*l.H+j])
			c[at] = f*before[at] + i*g
			o := sigmoid(gates[3*l.H+j] + rec[3*l.H+j] + p[2*l.H+j]*c[at])
			gates[j], gates[l.H+j], gates[2*l.H+j], gates[3*l.H+j] = i, f, g, o
			after[at] = o * tanh(c[at])
		}
	}
}

func (l *refLayer[F]) peepholeBackstep(t, at int, p, dp []F) {
	state := l.B * l.H
	before, c := l.c[t*state:], l.c[(t+1)*state:]
	for b := range l.B {
		gates, din := l.act[at+b*4*l.H:], l.din[at+b*4*l.H:]
		for j := range l.H {
			s := b*l.H + j
			i, f, g, o := gates[j], gates[l.H+j], gates[2*l.H+j], gates[3*l.H+j]
			tc, dh := tanh(c[s]), l.dh[s]
			do := dh * tc * o * (1 - o)
			dc := l.dc[s] + dh*o*(1-tc*tc) + do*p[2*l.H+j]
			di, df := dc*g*i*(1-i), dc*before[s]*f*(1-f)
			din[j], din[l.H+j], din[2*l.H+j], din[3*l.H+j] = di, df, dc*i*(1-g*g), do
			l.dc[s] = dc*f + di*p[j] + df*p[l.H+j]
			dp[j] += di * before[s]
			dp[l.H+j] += df * before[s]
			dp[2*l.H+j] += do * c[s]
		}
	}
}

// gruStep: n = tanh(input_n + r ⊙ q), q = W_hn h + b_hn; h' = (1-z) ⊙ n + z ⊙ h.
func (l *refLayer[F]) gruStep(t int, act, before, after []F) {
	q := l.q[t*l.B*l.H:]
	for b := range l.B {
		gates, rec := act[b*3*l.H:(b+1)*3*l.H], l.rec[b*3*l.H:]
		for j := range l.H {
			s := b*l.H + j
			q[s] = rec[2*l.H+j]
			r := sigmoid(gates[j] + rec[j])
			z := sigmoid(gates[l.H+j] + rec[l.H+j])
			n := tanh(gates[2*l.H+j] + r*q[s])
			gates[j], gates[l.H+j], gates[2*l.H+j] = r, z, n
			after[s] = (1-z)*n + z*before[s]
		}
	}
}

func (l *refLayer[F]) gruBackstep(t, at int) {
	state := l.B * l.H
	before, q := l.h[t*state:], l.q[t*state:]
	for b := range l.B {
		row := at + b*3*l.H
		gates, din, drec := l.act[row:], l.din[row:], l.drec[row:]
		for j := range l.H {
			s := b*l.H + j
			r, z, n, dh := gates[j], gates[l.H+j], gates[2*l.H+j], l.dh[s]
			dn := dh * (1 - z) * (1 - n*n)
			din[j] = dn * q[s] * r * (1 - r)
			din[l.H+j] = dh * (before[s] - n) * z * (1 - z)
			din[2*l.H+j] = dn
			drec[j], drec[l.H+j], drec[2*l.H+j] = din[j], din[l.H+j], dn*r
			l.dhNew[s] = dh * z
		}
	}
}

// gruBeforeStep: n = tanh(input_n + W_hn (r ⊙ h) + b_hn); h' = (1-z) ⊙ n + z ⊙ h. In an MGU f is r
// and 1-z.
func (l *refLayer[F]) gruBeforeStep(t int, w refWeights[F], act, before, after []F) {
	rh, wide := l.q[t*l.B*l.H:(t+1)*l.B*l.H], l.k*l.H
	N := wide - l.H // place of n
	for b := range l.B {
		gates, rec := act[b*wide:(b+1)*wide], l.rec[b*wide:]
		for j := range N {
			gates[j] = sigmoid(gates[j] + rec[j])
		}
		for j := range l.H {
			rh[b*l.H+j] = gates[j] * before[b*l.H+j]
		}
	}
	l.rows.timesTransposed(l.B, l.H, l.H, rh, l.H, w.hh[N*l.H:], l.rec[N:], wide)
	for b := range l.B {
		gates, rec := act[b*wide:(b+1)*wide], l.rec[b*wide:]
		for j := range l.H {
			s := b*l.H + j
			z, n := l.update(gates, j), tanh(gates[N+j]+rec[N+j])
			gates[N+j] = n
			after[s] = (1-z)*n + z*before[s]
		}
	}
}

// update is the value of unit j's update gate in a gruBeforeStep.
func (l *refLayer[F]) update(gates []F, j int) F {
	if l.Cell == compute.MGU {
		return 1 - gates[j]
	}
	return gates[l.H+j]
}

func (l *refLayer[F]) gruBeforeBackstep(t, at int, w refWeights[F]) {
	before, wide := l.h[t*l.B*l.H:], l.k*l.H
	N := wide - l.H
	for b := range l.B {
		gates, din := l.act[at+b*wide:], l.din[at+b*wide:]
		for j := range l.H {
			s := b*l.H + j
			z, n, dh := l.update(gates, j), gates[N+j], l.dh[s]
			dz := dh * (before[s] - n) * z * (1 - z)
			din[j] = 0
			if l.Cell == compute.MGU {
				din[j] = -dz
			} else {
				din[l.H+j] = dz
			}
			din[N+j] = dh * (1 - z) * (1 - n*n)
			l.dhNew[s] = dh * z
		}
	}
	clear(l.drh)
	l.rows.times(l.B, l.H, l.H, l.din[at+N:], wide, w.hh[N*l.H:], l.drh)
	for b := range l.B {
		gates, din := l.act[at+b*wide:], l.din[at+b*wide:]
		for j := range l.H {
			s := b*l.H + j
			r := gates[j]
			din[j] += l.drh[s] * before[s] * r * (1 - r)
			l.dhNew[s] += l.drh[s] * r
		}
	}
}

// minStep: h' = (1-z) ⊙ h + z ⊙ n, of which the input side has the sums.
func (l *refLayer[F]) minStep(act, before, after []F) {
	for b := range l.B {
		gates := act[b*2*l.H : (b+1)*2*l.H]
		for j := range l.H {
			s := b*l.H + j
			gates[j] = sigmoid(gates[j])
			after[s] = (1-gates[j])*before[s] + gates[j]*gates[l.H+j]
		}
	}
}

func (l *refLayer[F]) minBackstep(t, at int) {
	before := l.h[t*l.B*l.H:]
	for b := range l.B {
		gates, din := l.act[at+b*2*l.H:], l.din[at+b*2*l.H:]
		for j := range l.H {
			s := b*l.H + j
			z, n, dh := gates[j], gates[l.H+j], l.dh[s]
			din[j], din[l.H+j] = dh*(n-before[s])*z*(1-z), dh*z
			l.dhNew[s] = dh * (1 - z)
		}
	}
}

// sumRows sets b to the sum of x's rows of width ld, from column first on.
func sumRows[F float](b, x []F, ld, first int) {
	clear(b)
	for row := 0; row < len(x); row += ld {
		for j := range b {
			b[j] += x[row+first+j]
		}
	}
}

func sigmoid[F float](x F) F { return F(1 / (1 + math.Exp(-float64(x)))) }

func tanh[F float](x F) F { return F(math.Tanh(float64(x))) }
