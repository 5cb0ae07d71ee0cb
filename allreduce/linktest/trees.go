package linktest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"rondo/allreduce"
)

// CheckTree sums leaves of n random floats; rank i has the leaves [ends[i-1], ends[i]). It compares
// every rank's bits with the tree's definition. Ranks of odd number use one of their parts as the
// buffer.
func CheckTree(t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, ends []int, n int) {
	t.Helper()
	leaves := make([][]float32, ends[len(ends)-1])
	for i := range leaves {
		leaves[i] = make([]float32, n)
		for j := range leaves[i] {
			leaves[i][j] = (rng.Float32() - 0.5) * float32(int(1)<<rng.IntN(12))
		}
	}
	sums := make([]allreduce.TreeSum, len(rings))
	first := 0
	for rank, end := range ends {
		s := allreduce.TreeSum{Buf: make([]float32, n), Ends: ends}
		for _, node := range allreduce.Nodes(first, end, len(leaves)) {
			s.Parts = append(s.Parts, treeSum(leaves[node.First:node.End]))
		}
		if rank%2 == 1 {
			s.Buf = s.Parts[rng.IntN(len(s.Parts))]
		}
		sums[rank], first = s, end
	}
	want := treeSum(leaves)
	for rank, err := range Each(len(rings), func(rank int) error {
		return rings[rank].AllReduceTree(context.Background(), sums[rank])
	}) {
		if err != nil {
			t.Fatalf("%d floats, leaves %v, rank %d: %v", n, ends, rank, err)
		}
	}
	for rank, s := range sums {
		for i, got := range s.Buf {
			if math.Float32bits(got) != math.Float32bits(want[i]) {
				t.Fatalf("%d floats, leaves %v, float %d: rank %d has %v, the tree has %v",
					n, ends, i, rank, got, want[i])
			}
		}
	}
}

// treeSum sums a node by the tree's definition: the largest power of two below the number of leaves
// on the left, the rest on the right.
func treeSum(leaves [][]float32) []float32 {
	if len(leaves) == 1 {
		return slices.Clone(leaves[0])
	}
	half := 1
	for 2*half < len(leaves) {
		half *= 2
	}
	sum := treeSum(leaves[:half])
	for i, x := range treeSum(leaves[half:]) {
		sum[i] += x
	}
	return sum
}

// Deal deals leaves to ranks as evenly as possible.
func Deal(world, leaves int) []int {
	ends := make([]int, world)
	for i := range ends {
		ends[i] = (i+1)*(leaves/world) + min(i+1, leaves%world)
	}
	return ends
}

func testTrees(t *testing.T, form Form) {
	for _, world := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			rings := Rings(t, form(t, world), generation, chunkBytes, time.Minute)
			rng := rand.New(rand.NewPCG(uint64(world), 1))
			for n := range 71 {
				CheckTree(t, rings, rng, Deal(world, 8), n)
			}
			for _, n := range []int{127, 128, 129, 1000} {
				CheckTree(t, rings, rng, Deal(world, 7), n)
				CheckSum(t, rings, rng, n) // on the same ring, in turn
			}
			uneven := make([]int, world)
			for i := range uneven {
				uneven[i] = i*i + 1
			}
			CheckTree(t, rings, rng, uneven, 100)
		})
	}
	t.Run("large", func(t *testing.T) {
		rings := Rings(t, form(t, 2), generation, 0, time.Minute)
		rng := rand.New(rand.NewPCG(23, 0))
		CheckTree(t, rings, rng, Deal(2, 3), 2*(allreduce.MaxChunkBytes/4)+1)
	})
}
