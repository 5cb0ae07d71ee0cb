package train

import (
	"context"
	"fmt"
)

// TreeReducer is a Reducer that adds up in an order which does not depend on the ranks.
type TreeReducer interface {
	Reducer
	// AllReduceTree replaces buf on every rank by the sum over all leaves, added up as a binary
	// tree has it (see fold): the same bits on all, and whatever the ranks. Rank r has the leaves
	// [ends[r-1], ends[r]), and parts are its nodes of the tree that have no parent among them,
	// from left to right, each as long as buf. They may be anything afterwards; the last may be
	// buf itself.
	AllReduceTree(ctx context.Context, buf []float32, ends []int, parts [][]float32) error
}

// leafEnds are where the ranks' lane groups end.
func (t *Trainer) leafEnds() ([]int, error) {
	if !t.cfg.Canonical || t.ring.Reducer == nil {
		return nil, nil
	}
	if _, ok := t.ring.Reducer.(TreeReducer); !ok || t.ring.Group != nil || t.ring.Summer != nil {
		return nil, fmt.Errorf("train: --reduce canonical is not for a sum by %T, %T and %T",
			t.ring.Reducer, t.ring.Group, t.ring.Summer)
	}
	size := t.cfg.Lanes / t.cfg.LaneGroups
	ends := make([]int, len(t.ring.LaneEnds))
	for rank, end := range t.ring.LaneEnds {
		if end%size != 0 {
			return nil, fmt.Errorf("train: rank %d's lanes end at %d, and groups are of %d", rank,
				end, size)
		}
		ends[rank] = end / size
	}
	return ends, nil
}

// sumTree replaces the gradient by the sum of all leaves. In host memory the nodes are summed where
// they lie; otherwise they are copied to it, one after the other.
func (x *exchange) sumTree(ctx context.Context) error {
	buf := x.wire[:len(x.grads)]
	x.parts = x.parts[:0]
	for i, node := range x.fold.nodes {
		if x.inPlace {
			x.parts = append(x.parts, node.sum)
			continue
		}
		if i == len(x.hostParts) {
			x.hostParts = append(x.hostParts, make([]float32, len(buf)))
		}
		x.dev.Download(x.hostParts[i], node.sum)
		x.parts = append(x.parts, x.hostParts[i])
	}
	x.handOverAll(ctx) // it is one bucket, which is left
	x.reached = x.now()
	x.parts = append(x.parts, buf)
	return x.reducer.(TreeReducer).AllReduceTree(ctx, buf, x.leafEnds, x.parts)
}
