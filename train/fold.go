package train

import "rondo/compute"

// fold adds up the gradients that a step's passes leave in one place, one after the other: those of
// a group's segments in their order, and those of the groups in the order of a binary tree whose
// leaves are all groups of the batch, whoever has them. Of the leaves [0, N), node i of level l
// stands for [i*2^l, (i+1)*2^l), as far as these are below N; what it has is the sum of the two
// nodes below it, or what the only one has. So a node's sum is the same bits on whatever rank it is
// computed, and what a rank has in the end are the nodes that have no other parent than one whose
// leaves are partly another rank's: at most two for each level.
//
// Its memory is device memory: one gradient where a step has several segments, and one for each of
// a rank's nodes that wait for others, but the last, which stays where the passes leave it.
type fold struct {
	dev    compute.Device
	grads  []float32 // where a pass leaves its gradient
	leaves int       // N

	segments []float32   // the sum over a group's segments so far; nil until there are several
	several  bool        // it has such a sum
	added    int         // up to where that has been added to the last one's
	nodes    []node      // that wait, from left to right
	free     [][]float32 // memory for others
	waiting  [][]float32 // used again
}

// node is one of the tree's.
type node struct {
	level, index int
	sum          []float32
}

// begin begins a step.
func (f *fold) begin() {
	f.several, f.added = false, 0
	for len(f.nodes) > 0 {
		f.pop()
	}
}

// pop frees the last node that waits.
func (f *fold) pop() {
	last := len(f.nodes) - 1
	f.free = append(f.free, f.nodes[last].sum)
	f.nodes = f.nodes[:last]
}

// addSegment adds a pass's gradient, of a group's segment i of n, to those before it. The last
// one's place has the sum then.
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

// addSegmentsUpTo adds the sum over a group's segments, but the last, to the gradient of the last,
// as far as that is finished.
func (f *fold) addSegmentsUpTo(end int) {
	if f.several && end > f.added {
		f.dev.Add(f.grads[f.added:end], f.segments[f.added:end])
		f.added = end
	}
}

// addLeaf adds a group's gradient to those of this rank's groups before it. The last one's place
// has the last node then, and the others wait.
func (f *fold) addLeaf(leaf int, last bool) {
	at := node{index: leaf}
	for 1<<at.level < f.leaves {
		if at.index%2 == 1 {
			n := len(f.nodes)
			if n == 0 || f.nodes[n-1].level != at.level || f.nodes[n-1].index != at.index-1 {
				break // it is another rank's
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

// collapse adds the nodes that wait to the last one.
func (f *fold) collapse() {
	for len(f.nodes) > 0 {
		f.dev.Add(f.grads, f.nodes[len(f.nodes)-1].sum)
		f.pop()
	}
}

// sums are what the nodes that wait have, device memory, from left to right.
func (f *fold) sums() [][]float32 {
	f.waiting = f.waiting[:0]
	for _, n := range f.nodes {
		f.waiting = append(f.waiting, n.sum)
	}
	return f.waiting
}

// zero makes the nodes that wait zeros.
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
