package model

import (
	"errors"
	"fmt"
	"math"

	"rondo/compute"
)

// TreePass runs a Tree on some trees at a time.
type TreePass struct {
	tree   *Tree
	most   int // nodes
	forest forest
	room   treeRoom
	cell   composer
	memory [][]float32

	predicted     []int32 // of the nodes with targets, in their order
	probabilities []float32
}

// treeRoom is the memory of a pass. Rows are in the order of the forest, or of its children.
type treeRoom struct {
	x, dx               []float32 // [N, E]: of the leaves
	h, dh               []float32 // [N, H]
	gathered, dgathered []float32 // [N, H]: h of the children
	sums, dsums         []float32 // [N, H]: of a node's children
	gates               []float32 // [N, 3H]: i, o, u, then their gradients before σ and tanh
	forget              []float32 // [N, H]: of each child, then its gradient
	c, dc, tanh         []float32 // [N, H]
	top, dtop           []float32 // [R, H]: rows of h with targets
	logits              []float32 // [R, C]
	labelsAtOnce        int       // R
}

// inputGates are those of a TreeLSTM that are not forget gates: i, o, u.
const inputGates = 3

// mostLogits bounds the logits that are computed at once.
const mostLogits = 1 << 20

// room makes the memory of a pass; tensor allocates n floats.
func (c TreeConfig) room(nodes int, tensor func(n int) []float32) (r treeRoom) {
	H := c.width()
	r.x, r.dx = tensor(nodes*c.Embed), tensor(nodes*c.Embed)
	r.h, r.dh = tensor(nodes*H), tensor(nodes*H)
	if c.Cell != TreeBag {
		r.gathered, r.dgathered = tensor(nodes*H), tensor(nodes*H)
	}
	if c.Cell == TreeChildSum {
		r.sums, r.dsums = tensor(nodes*H), tensor(nodes*H)
	}
	if c.Cell == TreeLSTM || c.Cell == TreeChildSum {
		r.gates, r.forget = tensor(nodes*inputGates*H), tensor(nodes*H)
		r.c, r.dc, r.tanh = tensor(nodes*H), tensor(nodes*H), tensor(nodes*H)
	}
	r.labelsAtOnce = max(1, min(nodes, mostLogits/c.Labels))
	r.top, r.dtop = tensor(r.labelsAtOnce*H), tensor(r.labelsAtOnce*H)
	r.logits = tensor(r.labelsAtOnce * c.Labels)
	return r
}

// PassSize is an upper bound of a device's memory for a pass over so many nodes. c must be valid.
func (c TreeConfig) PassSize(on compute.Sizer, nodes int) (size compute.Size) {
	r := c.room(nodes, func(n int) []float32 {
		size = size.And(on.TensorSize(n))
		return nil
	})
	product := func(rows, out, in int) {
		size = size.And(on.GemmSize(rows, out, in)).And(on.GemmSize(rows, in, out)).
			And(on.GemmSize(out, in, rows))
	}
	product(r.labelsAtOnce, c.Labels, c.width())
	for _, v := range c.Layout() {
		if v.role == roleProjection {
			product(nodes, v.Shape[0], v.Shape[1])
		}
	}
	return size
}

// NewPass makes a pass for at most so many nodes. It fails if the device lacks memory. Close frees
// it.
func (t *Tree) NewPass(nodes int) (p *TreePass, err error) {
	if nodes < 1 {
		return nil, errors.New("model: a pass without nodes")
	}
	p = &TreePass{tree: t, most: nodes}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	defer compute.Catch(&err)
	p.room = t.config.room(nodes, func(n int) []float32 {
		p.memory = append(p.memory, t.dev.Alloc(n))
		return p.memory[len(p.memory)-1]
	})
	switch part := (treePart{p}); t.config.Cell {
	case TreeLSTM, TreeChildSum:
		p.cell = treeLSTM{part}
	case TreeRNN:
		p.cell = treeRNN{part}
	default:
		p.cell = treeBag{part}
	}
	return p, nil
}

// Nodes is the most nodes of a pass.
func (p *TreePass) Nodes() int { return p.most }

// forward computes h of all nodes.
func (p *TreePass) forward(in Trees) error {
	c := p.tree.config
	if len(in.Children) > p.most {
		return fmt.Errorf("model: %d nodes for a pass of %d", len(in.Children), p.most)
	}
	if err := p.forest.load(in, c.Vocab, c.Labels, c.Cell.Binary()); err != nil {
		return err
	}
	x := p.room.x[:len(p.forest.words)*c.Embed]
	p.tree.dev.Embed(x, p.tree.view(embeddingWeight, p.tree.params), p.forest.words)
	p.cell.leaves(p.forest.level(0), x)
	for height := 1; height < p.forest.heights(); height++ {
		p.cell.compose(p.forest.level(height))
	}
	return nil
}

// Backward computes the loss of the targets, summed, and overwrites the gradients with those of
// scale times it.
func (p *TreePass) Backward(in Trees, scale float32, hooks Hooks) (lossSum float64, err error) {
	t := p.tree
	if err := t.checkHooks(hooks); err != nil {
		return 0, err
	}
	defer compute.Catch(&err)
	if err := p.forward(in); err != nil {
		return 0, err
	}
	if hooks.BeforeBackward != nil {
		if err := hooks.BeforeBackward(); err != nil {
			return 0, err
		}
	}
	n := len(in.Children)
	t.dev.Zero(t.Gradients())
	clear(p.room.dh[:n*t.config.width()])
	lossSum = p.output(scale, true)
	finished := func(tensor string) {
		if hooks.Finished != nil {
			hooks.Finished(find(t.views, tensor).end())
		}
	}
	finished(outputBias)
	clear(p.room.dc[:min(len(p.room.dc), n*t.config.width())])
	for height := p.forest.heights() - 1; height > 0; height-- {
		p.cell.composeBackward(p.forest.level(height))
	}
	words := p.forest.words
	x, dx := p.room.x[:len(words)*t.config.Embed], p.room.dx[:len(words)*t.config.Embed]
	p.cell.leavesBackward(p.forest.level(0), x, dx)
	p.cell.weights(len(words), n)
	t.dev.EmbedBackward(t.view(embeddingWeight, t.grads), dx, words)
	finished(embeddingWeight)
	return lossSum, nil
}

// Score returns the loss summed over the targets, in nats, and computes Predicted.
func (p *TreePass) Score(in Trees) (lossSum float64, err error) {
	defer compute.Catch(&err)
	if err := p.forward(in); err != nil {
		return 0, err
	}
	return p.output(0, false), nil
}

// Predicted returns the most likely label of each node that has a target, and its probability, in
// the order of the nodes. The next call of Score or Backward overwrites them.
func (p *TreePass) Predicted() (labels []int32, probabilities []float32) {
	return p.predicted, p.probabilities
}

// output computes the loss and the predictions, and with backward its gradients.
func (p *TreePass) output(scale float32, backward bool) (lossSum float64) {
	t, r, H, C := p.tree, &p.room, p.tree.config.width(), p.tree.config.Labels
	w, b := t.view(outputWeight, t.params), t.view(outputBias, t.params)
	p.predicted, p.probabilities = p.predicted[:0], p.probabilities[:0]
	for from := 0; from < len(p.forest.labels); from += r.labelsAtOnce {
		to := min(from+r.labelsAtOnce, len(p.forest.labels))
		n, rows := to-from, p.forest.labeled[from:to]
		gather(r.top, r.h, rows, H)
		logits := r.logits[:n*C]
		t.dev.Gemm(false, true, n, C, H, 1, r.top[:n*H], w, 0, logits)
		t.dev.AddBias(logits, b)
		for i, label := range p.forest.labels[from:to] {
			lossSum += p.classify(logits[i*C:][:C], label, scale)
		}
		if !backward {
			continue
		}
		t.dev.Gemm(true, false, C, H, n, 1, logits, r.top[:n*H], 1, t.view(outputWeight, t.grads))
		addRows(t.view(outputBias, t.grads), logits)
		t.dev.Gemm(false, false, n, H, C, 1, logits, w, 0, r.dtop[:n*H])
		scatter(r.dh, r.dtop, rows, H)
	}
	return lossSum
}

// classify returns the loss of a node, and overwrites its logits with the gradient of scale times
// it.
func (p *TreePass) classify(logits []float32, label int32, scale float32) float64 {
	best := 0
	for i, y := range logits {
		if y > logits[best] {
			best = i
		}
	}
	largest, right, sum := logits[best], logits[label], 0.0
	for i, y := range logits {
		e := math.Exp(float64(y - largest))
		logits[i] = float32(e)
		sum += e
	}
	p.predicted = append(p.predicted, int32(best))
	p.probabilities = append(p.probabilities, float32(1/sum))
	for i := range logits {
		logits[i] *= scale / float32(sum)
	}
	logits[label] -= scale
	return math.Log(sum) - float64(right-largest)
}

// Close frees the pass's memory.
func (p *TreePass) Close() {
	for _, x := range p.memory {
		p.tree.dev.Free(x)
	}
	p.memory = nil
}

// gather copies rows of src to those of dst in order; width: of both.
func gather(dst, src []float32, rows []int32, width int) {
	for i, row := range rows {
		copy(dst[i*width:][:width], src[int(row)*width:])
	}
}

// scatter adds the rows of src, in order, to rows of dst.
func scatter(dst, src []float32, rows []int32, width int) {
	for i, row := range rows {
		addTo(dst[int(row)*width:][:width], src[i*width:][:width])
	}
}

// addRows adds all rows of x to y.
func addRows(y, x []float32) {
	for at := 0; at < len(x); at += len(y) {
		addTo(y, x[at:][:len(y)])
	}
}

func addTo(y, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += x[i]
	}
}
