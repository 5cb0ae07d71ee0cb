package model

// composer computes the nodes of a forest with a cell, height by height.
type composer interface {
	// leaves computes the leaves from their embeddings, [L, E].
	leaves(at level, x []float32)
	// compose computes the nodes of a height from their children.
	compose(at level)
	// composeBackward adds to the gradients of the children. Those of the nodes are complete.
	composeBackward(at level)
	// leavesBackward overwrites dx, [L, E].
	leavesBackward(at level, x, dx []float32)
	// weights adds the gradients of the weights, after those of all nodes: the first are leaves.
	weights(leaves, nodes int)
}

// level is the nodes of a height: rows of the forest, and rows of its children.
type level struct{ from, to, first, last int }

// heights is the number of heights.
func (f *forest) heights() int { return len(f.starts) - 1 }

func (f *forest) level(height int) level {
	from, to := f.starts[height], f.starts[height+1]
	return level{from, to, f.parts[from], f.parts[to]}
}

// treePart is what the cells share.
type treePart struct{ *TreePass }

// params and grads are a tensor's values and gradients.
func (p treePart) params(name string) []float32 { return p.tree.view(name, p.tree.params) }
func (p treePart) grads(name string) []float32  { return p.tree.view(name, p.tree.grads) }

// rows are the rows [from, to) of a matrix, times so many numbers of a node's width.
func (p treePart) rows(x []float32, from, to, times int) []float32 {
	width := times * p.tree.config.width()
	return x[from*width : to*width]
}

// multiply sets y to x wᵀ, or with backward to x w, or adds it; w: [out, in].
func (p treePart) multiply(y, x []float32, w string, backward bool, beta float32) {
	v := find(p.tree.views, w)
	out, in := v.Shape[0], v.Shape[1]
	if backward {
		p.tree.dev.Gemm(false, false, len(x)/out, in, out, 1, x, p.params(w), beta, y)
		return
	}
	p.tree.dev.Gemm(false, true, len(x)/in, out, in, 1, x, p.params(w), beta, y)
}

// weightGradient adds the gradient of the weights of y = x wᵀ.
func (p treePart) weightGradient(w string, dy, x []float32) {
	v := find(p.tree.views, w)
	out, in := v.Shape[0], v.Shape[1]
	p.tree.dev.Gemm(true, false, out, in, len(x)/in, 1, dy, x, 1, p.grads(w))
}

// gatherChildren copies h of the nodes' children, node by node, to gathered and returns it.
func (p treePart) gatherChildren(at level) []float32 {
	gathered := p.rows(p.room.gathered, at.first, at.last, 1)
	gather(gathered, p.room.h, p.forest.below[at.first:at.last], p.tree.config.width())
	return gathered
}

// scatterChildren adds the gradients of gathered to those of the children's h.
func (p treePart) scatterChildren(at level, dgathered []float32) {
	scatter(p.room.dh, dgathered, p.forest.below[at.first:at.last], p.tree.config.width())
}

// treeRNN is the cell TreeRNN.
type treeRNN struct{ treePart }

func (p treeRNN) leaves(at level, x []float32) {
	p.tanhLayer(p.rows(p.room.h, at.from, at.to, 1), x, leafWeight, leafBias)
}

func (p treeRNN) compose(at level) {
	h := p.rows(p.room.h, at.from, at.to, 1)
	p.tanhLayer(h, p.gatherChildren(at), composeWeight, composeBias)
}

// tanhLayer sets y to tanh(x wᵀ + b).
func (p treeRNN) tanhLayer(y, x []float32, w, b string) {
	p.multiply(y, x, w, false, 0)
	p.tree.dev.AddBias(y, p.params(b))
	p.tree.dev.Tanh(y)
}

func (p treeRNN) composeBackward(at level) {
	dgathered := p.rows(p.room.dgathered, at.first, at.last, 1)
	p.backward(at, dgathered, composeWeight)
	p.scatterChildren(at, dgathered)
}

// backward turns the gradients of h into those before tanh, and computes those of what was read.
func (p treeRNN) backward(at level, dx []float32, w string) {
	dh := p.rows(p.room.dh, at.from, at.to, 1)
	p.tree.dev.TanhBackward(dh, p.rows(p.room.h, at.from, at.to, 1))
	p.multiply(dx, dh, w, true, 0)
}

func (p treeRNN) leavesBackward(at level, _, dx []float32) { p.backward(at, dx, leafWeight) }

func (p treeRNN) weights(leaves, nodes int) {
	of, above := p.rows(p.room.dh, 0, leaves, 1), p.rows(p.room.dh, leaves, nodes, 1)
	p.weightGradient(leafWeight, of, p.room.x[:leaves*p.tree.config.Embed])
	addRows(p.grads(leafBias), of)
	p.weightGradient(composeWeight, above, p.rows(p.room.gathered, 0, len(p.forest.below), 1))
	addRows(p.grads(composeBias), above)
}

// treeBag is the cell TreeBag.
type treeBag struct{ treePart }

func (p treeBag) leaves(_ level, x []float32) { copy(p.room.h, x) }

func (p treeBag) compose(at level) {
	clear(p.rows(p.room.h, at.from, at.to, 1))
	p.each(at, func(row, child int, share float32) {
		addScaled(p.rows(p.room.h, row, row+1, 1), share, p.rows(p.room.h, child, child+1, 1))
	})
}

func (p treeBag) composeBackward(at level) {
	p.each(at, func(row, child int, share float32) {
		addScaled(p.rows(p.room.dh, child, child+1, 1), share, p.rows(p.room.dh, row, row+1, 1))
	})
}

// each calls use with the rows of nodes and of their children, and the child's share of the words.
func (p treeBag) each(at level, use func(row, child int, share float32)) {
	f := &p.forest
	for row := at.from; row < at.to; row++ {
		for _, child := range f.below[f.parts[row]:f.parts[row+1]] {
			use(row, int(child), float32(f.leaves[child])/float32(f.leaves[row]))
		}
	}
}

func (p treeBag) leavesBackward(_ level, _, dx []float32) { copy(dx, p.room.dh) }

func (treeBag) weights(int, int) {}

func addScaled(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += a * x[i]
	}
}
