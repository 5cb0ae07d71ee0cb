package train

import "rondo/compute"

// fold sums the gradients of a step's passes. A group's segments are added in order. The groups are
// added as the leaves [0, N) of one binary tree over the whole batch: node i of level l covers the
// leaves [i*2^l, (i+1)*2^l) below N, and holds the sum of its one or two children. So a node's sum
// has the same bits on every rank. In the end a rank holds the nodes whose parent also covers
// another rank's leaves: at most two per level.
//
// It uses device memory: one gradient if a step has several segments, and one for each waiting
// node. The last node stays where the passes leave their gradient.
type fold struct {
	dev    compute.Device
	grads  []float32 // where each pass leaves its gradient
	leaves int       // N

	segments []float32   // sum over the group's earlier segments; nil until needed
	several  bool        // segments holds a sum
	added    int         // the prefix of segments that was added to the last segment's gradient
	nodes    []node      // nodes that wait for a sibling, from left to right
	free     [][]float32 // buffers for later nodes
	waiting  [][]float32 // returned by sums; reused
}

// node is a node of the tree.
type node struct {
	level, index int
	sum          []float32
}

// begin starts a step.
func (f *fold) begin() {
	f.several, f.added = false, 0
	for len(f.nodes) > 0 {
		f.pop()
	}
}

// pop frees the last waiting node.
func (f *fold) pop() {
	last := len(f.nodes) - 1
	f.free = append(f.free, f.nodes[last].sum)
	f.nodes = f.nodes[:last]
}

// addSegment adds the gradient of a group's segment i of n to the sum. After the last segment,
// grads holds the group's sum.
func (f *fold) addSegment(i, n int) {
	switch {
	case n == 1:
	case i == n-1:
		f.addSegmentsUpTo(len(f.grads))
		f.several, f.added = false, 0
	case i == 0:
		if f.segments == nil {
			f.segments = f.dev.Alloc(len(f.grads))
		}
		f.dev.Zero(f.segments)
		f.dev.Add(f.segments, f.grads)
		f.several = true
	default:
		f.dev.Add(f.segments, f.grads)
	}
}

// addSegmentsUpTo adds the sum of the earlier segments to the last segment's gradient, up to end,
// where backward has finished it.
func (f *fold) addSegmentsUpTo(end int) {
	if f.several && end > f.added {
		f.dev.Add(f.grads[f.added:end], f.segments[f.added:end])
		f.added = end
	}
}

// addLeaf adds a group's gradient to this rank's earlier groups. The resulting node waits in nodes,
// but after the last group it stays in grads.
func (f *fold) addLeaf(leaf int, last bool) {
	at := node{index: leaf}
	for 1<<at.level < f.leaves {
		if at.index%2 == 1 {
			n := len(f.nodes)
			if n == 0 || f.nodes[n-1].level != at.level || f.nodes[n-1].index != at.index-1 {
				break // the sibling is another rank's
			}
			f.dev.Add(f.grads, f.nodes[n-1].sum)
			f.pop()
		} else if (at.index+1)<<at.level < f.leaves {
			break // its sibling is to come
		}
		at.level, at.index = at.level+1, at.index/2
	}
	if last {
		return
	}
	if n := len(f.free); n > 0 {
		at.sum, f.free = f.free[n-1], f.free[:n-1]
		f.dev.Zero(at.sum)
	} else {
		at.sum = f.dev.Alloc(len(f.grads))
	}
	f.dev.Add(at.sum, f.grads)
	f.nodes = append(f.nodes, at)
}

// collapse adds the waiting nodes to grads.
func (f *fold) collapse() {
	for len(f.nodes) > 0 {
		f.dev.Add(f.grads, f.nodes[len(f.nodes)-1].sum)
		f.pop()
	}
}

// sums returns the waiting nodes' sums, device memory, from left to right.
func (f *fold) sums() [][]float32 {
	f.waiting = f.waiting[:0]
	for _, n := range f.nodes {
		f.waiting = append(f.waiting, n.sum)
	}
	return f.waiting
}

// finite reports whether all sums are finite.
func (f *fold) finite() bool {
	for _, n := range f.nodes {
		if !isFinite(f.dev.SumSquares(n.sum)) {
			return false
		}
	}
	return isFinite(f.dev.SumSquares(f.grads))
}

// zero zeroes the waiting nodes.
func (f *fold) zero() {
	for _, n := range f.nodes {
		f.dev.Zero(n.sum)
	}
}

// close frees the fold's memory.
func (f *fold) close() {
	f.begin()
	for _, x := range append(f.free, f.segments) {
		f.dev.Free(x)
	}
	f.free, f.segments = nil, nil
}
