package allreduce

import (
	"context"
	"fmt"
	"slices"
)

// TreeSum is a sum over the leaves of the global batch, in the order of one binary tree ([Node]).
type TreeSum struct {
	// Buf is replaced on every rank by the sum over the leaves.
	Buf []float32
	// Ends deals the leaves: rank i has [Ends[i-1], Ends[i]), at least one. It is the same on all
	// ranks.
	Ends []int
	// Parts are the sums of this rank's nodes ([Nodes] of its leaves), each as long as Buf. The
	// ring owns and overwrites them as it does Buf. One of them may be Buf.
	Parts [][]float32
}

// treeChunks is the number of chunks that each segment of a block has. The sum is made block by
// block, so the scratch memory does not grow with the buffer.
const treeChunks = 2

// treeBlocks is the number of blocks that are summed at once: the next begins while one ends. They
// share their scratch memory. That is safe: a rank that receives the first chunk of a block has
// received all sums of the block before. Those sums came through its successor, which had by then
// received every chunk sent from the scratch memory.
const treeBlocks = 2

// AllReduceTree replaces s.Buf on every rank by the sum over all leaves, as float32. Its bits are
// the same on every rank, for any number of ranks and any dealing of leaves, unless the sum is NaN.
//
// The ring's steps are those of [Ring.AllReduce]. In the first N-1 steps a segment travels as its
// pending nodes, those whose parents are not complete. Each rank joins its own nodes with them and
// sends on the nodes that are then pending. The segment's owner ends with the root. So a step may
// send up to two segments' floats per level of the tree. With 8 leaves, dealt as evenly as
// possible, the busiest rank sends this multiple of the buffer's bytes (reduce-scatter + all-
// gather):
//
//	N   AllReduce            AllReduceTree
//	2   1     (1/2 + 1/2)    1     (1/2 + 1/2)
//	3   1.33  (2/3 + 2/3)    2.33  (5/3 + 2/3)
//	4   1.5   (3/4 + 3/4)    2     (5/4 + 3/4)
//	8   1.75  (7/8 + 7/8)    3.13  (18/8 + 7/8)
//
// It has no carry. A following [Ring.AllReduceCarry] proves that every rank has the sum.
func (r *Ring) AllReduceTree(ctx context.Context, s TreeSum) error {
	plan, err := r.treePlan(s)
	if err != nil {
		return err
	}
	if r.config.World == 1 {
		put(s.Buf, s.Parts[plan.root])
		return r.wait(ctx, Sum{Buf: s.Buf})
	}
	block := min(treeChunks*r.config.World*(r.config.ChunkBytes/4), len(s.Buf))
	run := treeRun{treePlan: plan, parts: s.Parts, scratch: r.trees.slots(plan.scratch, block)}
	var running [treeBlocks]*Pending
	started, ended := 0, 0
	for run.base < len(s.Buf) && err == nil {
		if started-ended == treeBlocks {
			err = running[ended%treeBlocks].Wait(ctx)
			ended++
			continue
		}
		buf := s.Buf[run.base:min(run.base+block, len(s.Buf))]
		steps := schedule{last: 2 * (r.config.World - 1), tree: run}
		if running[started%treeBlocks], err = r.start(ctx, Sum{Buf: buf}, steps); err == nil {
			started, run.base = started+1, run.base+block
		}
	}
	for ; ended < started; ended++ {
		if late := running[ended%treeBlocks].Wait(ctx); err == nil {
			err = late
		}
	}
	return err
}

// trees holds what a ring reuses for its next tree sum.
type trees struct {
	plan    *treePlan // made anew only when leaves have moved
	scratch [][]float32
}

// slots returns n scratch slots of at least so many floats.
func (t *trees) slots(n, floats int) [][]float32 {
	for len(t.scratch) < n {
		t.scratch = append(t.scratch, nil)
	}
	for i := range t.scratch[:n] {
		if len(t.scratch[i]) < floats {
			t.scratch[i] = make([]float32, floats)
		}
	}
	return t.scratch[:n]
}

func (r *Ring) treePlan(s TreeSum) (*treePlan, error) {
	const what = "tree sum"
	if err := r.checkEnds(what, s.Ends); err != nil {
		return nil, err
	}
	first := 0
	for i, end := range s.Ends {
		if end == first {
			return nil, fmt.Errorf("%s: rank %d has no leaf, of %d", what, i, s.Ends[len(s.Ends)-1])
		}
		first = end
	}
	plan := r.trees.plan
	if plan == nil || !slices.Equal(plan.ends, s.Ends) {
		plan = planTree(s.Ends, int(r.config.Rank))
		r.trees.plan = plan
	}
	if len(s.Parts) != len(plan.own) {
		return nil, fmt.Errorf("%s: %d parts, this rank has the nodes %v",
			what, len(s.Parts), plan.own)
	}
	for i, part := range s.Parts {
		if len(part) != len(s.Buf) {
			return nil, fmt.Errorf("%s: part %d has %d floats, the buffer %d",
				what, i, len(part), len(s.Buf))
		}
	}
	return plan, nil
}

// treeRun is the sum of one block of the buffer.
type treeRun struct {
	*treePlan
	parts, scratch [][]float32
	base           int // start of the block in the parts
}

// floats returns chunk h of a slot.
func (t *treeRun) floats(slot int, h Header) []float32 {
	if slot < len(t.parts) {
		return h.of(t.parts[slot][t.base:])
	}
	return h.of(t.scratch[slot-len(t.parts)])
}

func (s *schedule) ofNodes(step int) bool { return s.tree.treePlan != nil && step < s.world-1 }

// ofNode returns the header of chunk h of node i of n. The n nodes travel as one buffer, one behind
// the other.
func ofNode(h Header, i, n int) Header {
	h.Offset += i * h.Total
	h.Total *= n
	return h
}

func (s *sender) sendNodes(p *Pending, h Header, step, chunk int) error {
	tree := &p.plan.tree
	sent := tree.steps[step].sent
	for i, slot := range sent {
		payload := Bytes(tree.floats(slot, h))
		if err := s.sendMessage(p, ofNode(h, i, len(sent)), payload, step, chunk); err != nil {
			return err
		}
	}
	return nil
}

// receiveNodes receives chunk h of all nodes of a step, and joins them with this rank's own.
func (r *receiver) receiveNodes(p *Pending, h Header, m *Message, step, chunk int) error {
	tree := &p.plan.tree
	received := tree.steps[step].received
	for i, a := range received {
		if err := r.receive(p, ofNode(h, i, len(received)), m, step, chunk); err != nil {
			return err
		}
		phase := AllGather
		if a.added {
			phase = ReduceScatter
		}
		dst := tree.floats(a.slot, h)
		combine(dst, m.Pieces, phase, h.Element)
		m.Release()
		for _, other := range a.folded {
			add(dst, Bytes(tree.floats(other, h)))
		}
	}
	if step == p.plan.world-2 { // the last step: this rank owns the segment
		put(h.of(p.Buf), tree.floats(tree.root, h))
	}
	return nil
}

// put copies src to dst unless they are the same memory.
func put(dst, src []float32) {
	if len(dst) > 0 && &dst[0] != &src[0] {
		copy(dst, src)
	}
}
