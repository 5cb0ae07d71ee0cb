package model

// treeLSTM is the cells TreeLSTM and TreeChildSum.
type treeLSTM struct{ treePart }

// summed reports whether the gates i, o and u read the sum of the children's h.
func (p treeLSTM) summed() bool { return p.tree.config.Cell == TreeChildSum }

func (p treeLSTM) leaves(at level, x []float32) {
	p.multiply(p.rows(p.room.gates, at.from, at.to, inputGates), x, leafWeight, false, 0)
	p.activate(at)
}

func (p treeLSTM) compose(at level) {
	gathered := p.gatherChildren(at)
	gates := p.rows(p.room.gates, at.from, at.to, inputGates)
	p.multiply(gates, p.gateInputs(at, gathered), composeWeight, false, 0)
	p.multiply(p.rows(p.room.forget, at.first, at.last, 1), gathered, forgetWeight, false, 0)
	p.activate(at)
}

// gateInputs returns the input of the gates i, o and u: h of the children side by side, or their
// sum.
func (p treeLSTM) gateInputs(at level, gathered []float32) []float32 {
	if !p.summed() {
		return gathered
	}
	leaves := p.forest.starts[1]
	sums := p.rows(p.room.sums, at.from-leaves, at.to-leaves, 1)
	clear(sums)
	for row := at.from; row < at.to; row++ {
		sum := p.rows(sums, row-at.from, row-at.from+1, 1)
		addRows(sum, p.rows(p.room.gathered, p.forest.parts[row], p.forest.parts[row+1], 1))
	}
	return sums
}

// activate computes the gates, c and h from the products. σ(x) is (1 + tanh(x/2)) / 2.
func (p treeLSTM) activate(at level) {
	H, dev := p.tree.config.width(), p.tree.dev
	gates := p.rows(p.room.gates, at.from, at.to, inputGates)
	bias := p.params(composeBias)
	for i := 0; i < len(gates); i += inputGates * H {
		io, u := gates[i:][:2*H], gates[i+2*H:][:H]
		for k, b := range bias[:2*H] {
			io[k] = (io[k] + b) / 2
		}
		addTo(u, bias[2*H:])
	}
	dev.Tanh(gates)
	forget, bias := p.rows(p.room.forget, at.first, at.last, 1), p.params(forgetBias)
	for i := 0; i < len(forget); i += H {
		f := forget[i:][:H]
		for k, b := range bias {
			f[k] = (f[k] + b) / 2
		}
	}
	dev.Tanh(forget)
	for row := at.from; row < at.to; row++ {
		p.cellState(row)
	}
	tanh := p.rows(p.room.tanh, at.from, at.to, 1)
	copy(tanh, p.rows(p.room.c, at.from, at.to, 1))
	dev.Tanh(tanh)
	for row := at.from; row < at.to; row++ {
		h, t := p.rows(p.room.h, row, row+1, 1), p.rows(p.room.tanh, row, row+1, 1)
		o := p.rows(p.room.gates, row, row+1, inputGates)[H:][:H]
		t = t[:len(h)]
		for k := range h {
			h[k] = o[k] * t[k]
		}
	}
}

// cellState computes c of a row from its gates and its children's c. Before, the gates i, o and f
// are tanh(x/2), and it makes them σ(x).
func (p treeLSTM) cellState(row int) {
	H := p.tree.config.width()
	c := p.rows(p.room.c, row, row+1, 1)
	g := p.rows(p.room.gates, row, row+1, inputGates)
	i, o, u := g[:H], g[H:][:H], g[2*H:][:H]
	for k := range c {
		i[k], o[k] = (1+i[k])/2, (1+o[k])/2
		c[k] = i[k] * u[k]
	}
	for at := p.forest.parts[row]; at < p.forest.parts[row+1]; at++ {
		child := int(p.forest.below[at])
		f := p.rows(p.room.forget, at, at+1, 1)[:len(c)]
		below := p.rows(p.room.c, child, child+1, 1)[:len(c)]
		for k := range c {
			f[k] = (1 + f[k]) / 2
			c[k] += f[k] * below[k]
		}
	}
}

func (p treeLSTM) composeBackward(at level) {
	p.backward(at)
	dgathered := p.rows(p.room.dgathered, at.first, at.last, 1)
	gates := p.rows(p.room.gates, at.from, at.to, inputGates)
	p.multiply(dgathered, p.rows(p.room.forget, at.first, at.last, 1), forgetWeight, true, 0)
	if p.summed() {
		sums := p.rows(p.room.dsums, 0, at.to-at.from, 1)
		p.multiply(sums, gates, composeWeight, true, 0)
		for row := at.from; row < at.to; row++ {
			for child := p.forest.parts[row]; child < p.forest.parts[row+1]; child++ {
				addTo(p.rows(p.room.dgathered, child, child+1, 1),
					p.rows(sums, row-at.from, row-at.from+1, 1))
			}
		}
	} else {
		p.multiply(dgathered, gates, composeWeight, true, 1)
	}
	p.scatterChildren(at, dgathered)
}

// backward turns the gates into their gradients before σ and tanh, and computes dc of the children.
func (p treeLSTM) backward(at level) {
	H := p.tree.config.width()
	for row := at.from; row < at.to; row++ {
		dh, dc := p.rows(p.room.dh, row, row+1, 1), p.rows(p.room.dc, row, row+1, 1)
		tanh, g := p.rows(p.room.tanh, row, row+1, 1), p.rows(p.room.gates, row, row+1, inputGates)
		i, o, u := g[:H], g[H:][:H], g[2*H:][:H]
		dc, tanh = dc[:len(dh)], tanh[:len(dh)]
		for k, d := range dh {
			t := tanh[k]
			c := dc[k] + d*o[k]*(1-t*t)
			dc[k] = c
			i[k], o[k], u[k] = c*u[k]*i[k]*(1-i[k]), d*t*o[k]*(1-o[k]), c*i[k]*(1-u[k]*u[k])
		}
		for at := p.forest.parts[row]; at < p.forest.parts[row+1]; at++ {
			child := int(p.forest.below[at])
			f := p.rows(p.room.forget, at, at+1, 1)[:len(dc)]
			c := p.rows(p.room.c, child, child+1, 1)[:len(dc)]
			below := p.rows(p.room.dc, child, child+1, 1)[:len(dc)]
			for k, d := range dc {
				below[k] = d * f[k]
				f[k] = d * c[k] * f[k] * (1 - f[k])
			}
		}
	}
}

func (p treeLSTM) leavesBackward(at level, _, dx []float32) {
	p.backward(at)
	p.multiply(dx, p.rows(p.room.gates, at.from, at.to, inputGates), leafWeight, true, 0)
}

func (p treeLSTM) weights(leaves, nodes int) {
	p.weightGradient(leafWeight, p.rows(p.room.gates, 0, leaves, inputGates),
		p.room.x[:leaves*p.tree.config.Embed])
	children := len(p.forest.below)
	gathered := p.rows(p.room.gathered, 0, children, 1)
	forget := p.rows(p.room.forget, 0, children, 1)
	p.weightGradient(forgetWeight, forget, gathered)
	addRows(p.grads(forgetBias), forget)
	inputs := gathered
	if p.summed() {
		inputs = p.rows(p.room.sums, 0, nodes-leaves, 1)
	}
	p.weightGradient(composeWeight, p.rows(p.room.gates, leaves, nodes, inputGates), inputs)
	addRows(p.grads(composeBias), p.rows(p.room.gates, 0, nodes, inputGates))
}
