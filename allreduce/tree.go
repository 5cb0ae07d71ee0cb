package allreduce

import "slices"

// Node is a node of the binary tree over leaves 0 to L-1. The leaves [First, End) are below it.
//
// The tree is the perfect one over the next power of two, cut off at L: node i of level k has the
// leaves from i*2^k to (i+1)*2^k that exist. A node's value is the sum of its two children, or its
// left child's value if it has no right one. With seven leaves the root is ((0+1)+(2+3)) +
// ((4+5)+6).
type Node struct{ First, End int }

// Nodes returns the fewest nodes of the tree over leaves 0 to leaves-1 that together have the
// leaves [first, end), from left to right. There are at most two of each level.
func Nodes(first, end, leaves int) []Node {
	var nodes []Node
	for first < end {
		size := 1
		for size < leaves && first%(2*size) == 0 && min(first+2*size, leaves) <= end {
			size *= 2
		}
		n := Node{first, min(first+size, leaves)}
		nodes = append(nodes, n)
		first = n.End
	}
	return nodes
}

// isNode reports whether n is a node of the tree over so many leaves. If two adjacent nodes
// together form a node, they are its children.
func isNode(n Node, leaves int) bool {
	size := 1
	for size < n.End-n.First {
		size *= 2
	}
	return n.First%size == 0 && min(n.First+size, leaves) == n.End
}

// pendingNodes returns the nodes that ranks first to last, counted around the ring, can sum
// together, and whose parents they cannot. Rank i has the leaves [ends[i-1], ends[i]), at least
// one.
func pendingNodes(ends []int, first, last int) []Node {
	leaves := ends[len(ends)-1]
	lo, hi := 0, ends[last]
	if first > 0 {
		lo = ends[first-1]
	}
	switch {
	case first <= last:
		return Nodes(lo, hi, leaves)
	case lo == hi:
		return Nodes(0, leaves, leaves)
	}
	return append(Nodes(0, hi, leaves), Nodes(lo, leaves, leaves)...)
}

// treePlan is one rank's plan for the reduce-scatter of a tree sum. A segment travels as its
// pending nodes: those whose parents are not complete. They go from the rank after its owner around
// to the owner, which computes the root. A rank keeps nodes in slots: first its own nodes, then
// scratch.
//
// A slot is as long as the buffer, and each segment keeps its own range in it. So work on one
// segment leaves the others unchanged.
type treePlan struct {
	ends    []int
	own     []Node
	scratch int        // number of scratch slots
	steps   []treeStep // one for each ring step of a reduce-scatter
	root    int        // slot that has the sum of the owned segment after the last step
}

// treeStep lists the nodes of a chunk that are sent and received in a ring step, one message each,
// from left to right.
type treeStep struct {
	sent     []int // slots
	received []arrival
}

// arrival says how a received node is stored. It is copied to a slot, or added to its sibling's
// slot. Then the slots in folded are added in order, each of which completes the next parent.
type arrival struct {
	slot   int
	added  bool
	folded []int
}

func planTree(ends []int, rank int) *treePlan {
	world := len(ends)
	p := &treePlan{ends: slices.Clone(ends), own: pendingNodes(ends, rank, rank)}
	sent := make([]int, len(p.own))
	for i := range sent {
		sent[i] = i
	}
	for k := range world - 1 {
		before := pendingNodes(ends, mod(rank-1-k, world), mod(rank-1, world))
		received, pending := p.merge(before)
		p.steps = append(p.steps, treeStep{sent, received})
		sent = pending
	}
	p.root = sent[0] // the last step leaves only the root
	return p
}

// slotted is a node and the slot of its sum.
type slotted struct {
	Node
	slot int
}

// merge plans how the nodes in came join this rank's own. pending are the slots of the nodes that
// then remain.
func (p *treePlan) merge(came []Node) (arrivals []arrival, pending []int) {
	leaves := p.ends[len(p.ends)-1]
	var have []slotted
	for i, n := range p.own {
		have = append(have, slotted{n, i})
	}
	scratch := 0
	for _, n := range came {
		at, _ := slices.BinarySearchFunc(have, n, func(h slotted, n Node) int {
			return h.First - n.First
		})
		have = slices.Insert(have, at, slotted{n, -1})
		var a arrival
		for {
			other, ok := sibling(have, at, leaves)
			if !ok {
				break
			}
			if a.added {
				a.folded = append(a.folded, have[other].slot)
			} else {
				a.added, a.slot = true, have[other].slot
			}
			have[at].First = min(have[at].First, have[other].First)
			have[at].End = max(have[at].End, have[other].End)
			have = slices.Delete(have, other, other+1)
			if other < at {
				at--
			}
		}
		if !a.added {
			a.slot = len(p.own) + scratch
			scratch++
		}
		have[at].slot = a.slot
		arrivals = append(arrivals, a)
	}
	p.scratch = max(p.scratch, scratch)
	for _, h := range have {
		pending = append(pending, h.slot)
	}
	return arrivals, pending
}

// sibling returns the index of the other child of the parent of node at, if have contains it.
func sibling(have []slotted, at, leaves int) (other int, ok bool) {
	n := have[at].Node
	if at > 0 && have[at-1].End == n.First && isNode(Node{have[at-1].First, n.End}, leaves) {
		return at - 1, true
	}
	next := at + 1
	return next, next < len(have) && n.End == have[next].First &&
		isNode(Node{n.First, have[next].End}, leaves)
}
