package sum

import (
	"context"
	"fmt"
	"time"
)

// Tree sums the gradients of the batch's lane groups as the leaves of one binary tree. The sum has
// the same bits on any number of ranks.
type Tree struct {
	*buckets
	ends  []int              // where each rank's leaves end
	nodes func() [][]float32 // this rank's nodes except the last, device memory
	host  [][]float32        // host copies of nodes in device memory; reused
	parts [][]float32        // reused
}

// NewTree returns the sum over the leaves of a tree. Rank r has the leaves [ends[r-1], ends[r]).
// nodes returns this rank's topmost nodes, from left to right, except the last, which is in the
// gradient's memory.
func NewTree(c Config, ring Ring, ends []int, nodes func() [][]float32) *Tree {
	c.Overlaps = false
	return &Tree{buckets: newBuckets(c, ring), ends: ends, nodes: nodes}
}

// Leaves returns where each rank's leaves end. The ranks' lanes end at laneEnds, and each leaf is a
// group of this many lanes.
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

// Load implements train.Sum. Nodes in host memory are summed in place.
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
	err = t.ring.AllReduceTree(ctx, t.Gradient.Gradient(), t.ends, t.parts)
	t.lastEnded()
	return 0, err
}

// Finish implements train.Sum.
func (t *Tree) Finish(ctx context.Context, out, in [][]float32) error {
	return t.finishApart(ctx, out, in)
}
