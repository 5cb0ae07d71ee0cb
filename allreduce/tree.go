package allreduce

import "slices"

// Node is a node of the binary tree over leaves 0 to L-1, by the leaves [First, End) below it.
//
// The tree is the perfect one over the next power of two, without what lies from L on: node i of
// level k has the leaves from i*2^k to (i+1)*2^k, as far as there are any, and the sum of its two
// children, or what the left one has where there is no right one. With seven leaves the root is
// ((0+1)+(2+3)) + ((4+5)+6).
type Node struct{ First, End int }

// Nodes returns the fewest nodes of the tree over leaves 0 to leaves-1 that have just the leaves
// [first, end), from left to right: no two of them have a parent within. There are at most two of
// each level.
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

// isNode reports whether the tree over so many leaves has node n. The sum of two nodes side by side
// that are one together is that node's, as they can only be its children.
func isNode(n Node, leaves int) bool {
	size := 1
	for size < n.End-n.First {
		size *= 2
	}
	return n.First%size == 0 && min(n.First+size, leaves) == n.End
}

// pendingNodes are what ranks first to last, around the ring, have together: the nodes whose sums
// they can make, and no parent's. Rank i has the leaves [ends[i-1], ends[i]), at least one.
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

// treePlan is what one rank does in the reduce-scatter of a tree's sum. The nodes that are pending
// of a segment travel with it, from the rank behind its owner around to the owner, who gets to the
// root. What a rank has of them lies in slots: first those of its own nodes, then scratch.
//
// A slot is as long as the buffer, and each segment has its place in it. So what is done to one
// segment leaves the others alone, as in the buffer of a plain sum.
type treePlan struct {
	ends    []int
	own     []Node
	scratch int        // slots that are none of the rank's own
	steps   []treeStep // one for each ring step of a reduce-scatter
	root    int        // the slot that has the sum of the owned segment after them
}

// treeStep is what is sent and received of a chunk in a ring step, one message for each node, from
// left to right.
type treeStep struct {
	sent     []int // slots
	received []arrival
}

// arrival is what becomes of a node that is received: it is copied to a slot, or added to one that
// has its sibling, and then to the slots in folded, one after the other, are added to that, as with
// them the parent is there, and the parent's parent.
type arrival struct {
	slot   int
	added  bool
	folded []int
}

// planTree returns the plan of a rank.
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
	p.root = sent[0] // all leaves have come together
	return p
}

// slotted is a node and where its sum is.
type slotted struct {
	Node
	slot int
}

// merge says how the nodes that come are joined with the rank's own, and in which slots what is
// pending then lies.
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

// sibling returns where the other child of the parent of node at is, if it is there.
func sibling(have []slotted, at, leaves int) (other int, ok bool) {
	n := have[at].Node
	if at > 0 && have[at-1].End == n.First && isNode(Node{have[at-1].First, n.End}, leaves) {
		return at - 1, true
	}
	next := at + 1
	return next, next < len(have) && n.End == have[next].First &&
		isNode(Node{n.First, have[next].End}, leaves)
}
