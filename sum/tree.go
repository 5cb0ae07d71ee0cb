package sum

import (
	"context"
	"fmt"
	"time"
)

// Tree sums the gradients of the batch's lane groups in the order of one binary tree, whose leaves
// are the groups: the same bits on any number of ranks.
type Tree struct {
	*buckets
	ends  []int              // where each rank's leaves end
	nodes func() [][]float32 // this rank's nodes but the last, device memory
	host  [][]float32        // copies of the nodes that are in device memory; used again
	parts [][]float32        // used again
}

// NewTree returns the sum over the leaves of a tree. Rank r has those up to ends[r]. nodes are this
// rank's nodes that have no parent among them, from left to right, less the last, which the
// gradient's memory has.
func NewTree(c Config, ring Ring, ends []int, nodes func() [][]float32) *Tree {
	c.Overlaps = false
	return &Tree{buckets: newBuckets(c, ring), ends: ends, nodes: nodes}
}

// Leaves returns where each rank's leaves end if the ranks' lanes end at laneEnds, and groups of so
// many lanes are the leaves.
func Leaves(laneEnds []int, lanes int) ([]int, error) {
	ends := make([]int, len(laneEnds))
	for rank, end := range laneEnds {
		if end%lanes != 0 {
			return nil, fmt.Errorf("rank %d's lanes end at %d, and groups are of %d", rank, end,
				lanes)
		}
		ends[rank] = end / lanes
	}
	return ends, nil
}

// Load implements train.Sum. In host memory the nodes are summed where they lie.
func (t *Tree) Load(ctx context.Context) {
	t.parts = t.parts[:0]
	for i, node := range t.nodes() {
		if !t.Gradient.InPlace {
			if i == len(t.host) {
				t.host = append(t.host, make([]float32, len(node)))
			}
			t.Gradient.Copy(t.host[i], node)
			node = t.host[i]
		}
		t.parts = append(t.parts, node)
	}
	t.buckets.Load(ctx)
	t.parts = append(t.parts, t.Gradient.Gradient())
}

// Sum implements train.Sum.
func (t *Tree) Sum(ctx context.Context) (busy time.Duration, err error) {
	return 0, t.ring.AllReduceTree(ctx, t.Gradient.Gradient(), t.ends, t.parts)
}

// Finish implements train.Sum.
func (t *Tree) Finish(ctx context.Context, out, in []float32) error {
	return t.finishApart(ctx, out, in)
}
