package busbw

import (
	"context"

	"rondo/allreduce"
)

// Groups is how many lane groups a canonical sum is over, a job's default of --lane-groups; so
// many ranks can share them.
const Groups = 8

// The values of [Config.Reduce].
const (
	ReduceRing      = "ring"
	ReduceCanonical = "canonical"
)

// Reduces are the values of [Config.Reduce].
func Reduces() []string { return []string{ReduceRing, ReduceCanonical} }

// tree is a canonical sum. The lane groups are dealt evenly to the ranks. Each rank contributes the
// nodes of the tree that cover its own groups.
type tree struct {
	ring *allreduce.Ring
	ends []int
	own  [][]float32 // of this rank's nodes but the first: zeros, and so are their sums
}

// newTree returns a tree for sums of at most n numbers.
func (r *rank) newTree(n int) tree {
	t := tree{ring: r.ring, ends: make([]int, r.World)}
	for rank := range t.ends {
		t.ends[rank] = (rank + 1) * Groups / r.World
	}
	first := r.Rank * Groups / r.World
	for range len(allreduce.Nodes(first, t.ends[r.Rank], Groups)) - 1 {
		t.own = append(t.own, make([]float32, n))
	}
	return t
}

// AllReduce sums buf, the value of this rank's first node.
func (t tree) AllReduce(ctx context.Context, buf []float32) error {
	parts := [][]float32{buf}
	for _, part := range t.own {
		parts = append(parts, part[:len(buf)])
	}
	return t.ring.AllReduceTree(ctx, allreduce.TreeSum{Buf: buf, Ends: t.ends, Parts: parts})
}
