//go:build !cgo

package cpu

import "rondo/compute"

// refWeights are a layer's parameters, or their gradients; shapes as compute.RecurrentWeights.
type refWeights[F float] struct{ ih, hh, biasIH, biasHH, peephole []F }

// refInput is token ids or dense rows, as compute.RecurrentInput.
type refInput[F float] struct {
	ids     []int32
	x       []F
	lengths []int32
}

// ended calls f with the place in a state, [B, H], of each row that has ended before step t.
func (in refInput[F]) ended(t, h int, f func(from, to int)) {
	for b, length := range in.lengths {
		if t >= int(length) {
			f(b*h, (b+1)*h)
		}
	}
}

// refState is h and, in cells with two states, c: [B, H] each.
type refState[F float] struct{ h, c []F }

// refLayer is the reference of a recurrent layer. Letters as in package compute; N = T*B.
type refLayer[F float] struct {
	compute.RecurrentShape
	rows rows[F]
	k    int // gates

	// Written by forward, read by backward.
	h []F // [T+1, B, H], from h_0 on
	c []F // [T+1, B, H], from c_0 on; nil in cells with one state
	// act: [N, K*H]; sums of the input side first, then the gates' values.
	act []F
	q   []F // [N, H]: W_hn h + b_hn (GRU), r ⊙ h (GRUResetBefore)

	rec []F // [B, K*H]: the recurrent side of one step

	// Scratch of backward.
	din   []F // [N, K*H]: gradient of the input side's sums
	drec  []F // [N, K*H]: of the recurrent side's; differs from din for GRU only
	dh    []F // [B, H]: gradient of h_t
	dhNew []F // [B, H]: of h_{t-1}
	dc    []F // [B, H]: of c_t, then of c_{t-1}
	drh   []F // [B, H]: of r ⊙ h (GRUResetBefore)
	kept  []F // [2, B, H]: of h_t and c_t in rows that have ended
}

// newRefLayer asks tensor for all that the layer has, by its length.
func newRefLayer[F float](s compute.RecurrentShape, r rows[F], inference bool,
	tensor func(n int) []F) *refLayer[F] {
	k := s.Cell.Gates()
	n, wide, state := s.T*s.B, k*s.H, s.B*s.H
	l := &refLayer[F]{
		RecurrentShape: s, rows: r, k: k,
		h:   tensor(state + n*s.H),
		act: tensor(n * wide),
		rec: tensor(s.B * wide),
	}
	if s.Cell.States() == 2 {
		l.c = tensor(state + n*s.H)
	}
	l.q = tensor(s.Cell.Kept() * n * s.H)
	if inference {
		return l
	}
	l.din = tensor(n * wide)
	l.drec = l.din
	if s.Cell == compute.GRU {
		l.drec = tensor(n * wide)
	}
	l.dh, l.dhNew = tensor(state), tensor(state)
	l.dc, l.drh, l.kept = tensor(state), tensor(state), tensor(2*state)
	return l
}

// forward computes a segment: the input side of all steps, then the recurrence.
func (l *refLayer[F]) forward(w refWeights[F], in refInput[F], state refState[F], y []F,
	out refState[F]) {
	state0, wide := l.B*l.H, l.k*l.H
	copy(l.h, state.h)
	copy(l.c, state.c)
	l.inputSums(w, in)
	for t := range l.T {
		before, after := l.h[t*state0:(t+1)*state0], l.h[(t+1)*state0:(t+2)*state0]
		clear(l.rec)
		if len(w.biasHH) > 0 {
			addRow(l.rec, w.biasHH)
		}
		sums := l.Cell.HiddenGates() * l.H // the recurrent side's sums that multiply h itself
		if l.Cell.ResetsBefore() {
			sums -= l.H
		}
		if sums > 0 {
			l.rows.timesTransposed(l.B, sums, l.H, before, l.H, w.hh, l.rec, wide)
		}
		act := l.act[t*l.B*wide : (t+1)*l.B*wide]
		l.step(t, w, act, before, after)
		in.ended(t, l.H, func(from, to int) {
			copy(after[from:to], before[from:])
			if l.c != nil {
				copy(l.c[(t+1)*state0+from:(t+1)*state0+to], l.c[t*state0+from:])
			}
		})
	}
	copy(y, l.h[state0:])
	copy(out.h, l.h[l.T*state0:])
	if l.c != nil {
		copy(out.c, l.c[l.T*state0:])
	}
}

// inputSums sets act to W_ih x + b_ih for all steps.
func (l *refLayer[F]) inputSums(w refWeights[F], in refInput[F]) {
	n, wide := l.T*l.B, l.k*l.H
	clear(l.act)
	addRow(l.act, w.biasIH)
	if in.ids == nil {
		l.rows.timesTransposed(n, wide, l.D, in.x, l.D, w.ih, l.act, wide)
		return
	}
	for i, id := range in.ids {
		row := l.act[i*wide : (i+1)*wide]
		for j := range row {
			row[j] += w.ih[j*l.D+int(id)]
		}
	}
}

// backward walks the segment from its end. Then it computes the weights' gradients for all steps,
// which it reports to finished unless that is nil, and last x's gradient.
func (l *refLayer[F]) backward(w refWeights[F], in refInput[F], dy []F, dout refState[F],
	dw refWeights[F], dx []F, dstate refState[F], finished func(tensors, rows int)) {
	n, wide, state := l.T*l.B, l.k*l.H, l.B*l.H
	clear(l.dh)
	clear(l.dc)
	clear(dw.peephole)
	copy(l.dh, dout.h)
	copy(l.dc, dout.c)
	for t := l.T - 1; t >= 0; t-- {
		refAdd(l.dh, dy[t*state:(t+1)*state])
		clear(l.dhNew)
		// The gradients of ended rows pass unchanged. The step sees zeros, and makes zeros of them.
		in.ended(t, l.H, func(from, to int) {
			copy(l.kept[from:to], l.dh[from:])
			copy(l.kept[state+from:state+to], l.dc[from:])
			clear(l.dh[from:to])
			clear(l.dc[from:to])
		})
		at := t * l.B * wide
		l.backstep(t, at, w, dw)
		drec := l.drec[at : at+l.B*wide]
		k := l.Cell.HiddenGates() * l.H // as sums in forward
		if l.Cell.ResetsBefore() {
			k -= l.H
		}
		if k > 0 {
			l.rows.times(l.B, l.H, k, drec, wide, w.hh, l.dhNew)
		}
		in.ended(t, l.H, func(from, to int) {
			copy(l.dhNew[from:to], l.kept[from:])
			copy(l.dc[from:to], l.kept[state+from:])
		})
		l.dh, l.dhNew = l.dhNew, l.dh
	}
	copy(dstate.h, l.dh)
	copy(dstate.c, l.dc)
	if finished == nil {
		finished = func(int, int) {}
	}
	l.inputWeights(in, dw.ih)
	finished(1, 0)
	for g := range l.Cell.HiddenGates() {
		if g > 0 {
			finished(1, g*l.H)
		}
		l.hiddenWeights(g, dw.hh)
	}
	sumRows(dw.biasIH, l.din, wide, 0)
	sumRows(dw.biasHH, l.drec, wide, 0)
	finished(l.Cell.Tensors(), 0)
	if dx != nil {
		clear(dx)
		l.rows.times(n, l.D, wide, l.din, wide, w.ih, dx)
	}
}

// hiddenWeights computes the gradient of W_hh's rows for a gate, in one product over all T*B rows.
func (l *refLayer[F]) hiddenWeights(gate int, dhh []F) {
	states := l.h
	if l.Cell.ResetsBefore() && gate == l.k-1 {
		states = l.q
	}
	dhh = dhh[gate*l.H*l.H : (gate+1)*l.H*l.H]
	clear(dhh)
	l.rows.transposedTimes(l.H, l.H, l.T*l.B, l.drec[gate*l.H:], l.k*l.H, states, dhh)
}

// inputWeights computes the gradient of W_ih: for dense input also one product over all T*B rows.
func (l *refLayer[F]) inputWeights(in refInput[F], dih []F) {
	n, wide := l.T*l.B, l.k*l.H
	clear(dih)
	if in.ids == nil {
		l.rows.transposedTimes(wide, l.D, n, l.din, wide, in.x, dih)
		return
	}
	for i, id := range in.ids {
		for j := range wide {
			dih[j*l.D+int(id)] += l.din[i*wide+j]
		}
	}
}
