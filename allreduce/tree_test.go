package allreduce

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNodes(t *testing.T) {
	for _, test := range []struct {
		first, end, leaves int
		want               []Node
	}{
		{0, 8, 8, []Node{{0, 8}}},
		{0, 7, 8, []Node{{0, 4}, {4, 6}, {6, 7}}},
		{1, 8, 8, []Node{{1, 2}, {2, 4}, {4, 8}}},
		{1, 7, 8, []Node{{1, 2}, {2, 4}, {4, 6}, {6, 7}}},
		{3, 5, 8, []Node{{3, 4}, {4, 5}}},
		{4, 4, 8, nil},
		{0, 7, 7, []Node{{0, 7}}},
		{4, 7, 7, []Node{{4, 7}}},
		{5, 7, 7, []Node{{5, 6}, {6, 7}}},
		{8, 9, 9, []Node{{8, 9}}},
		{0, 8, 9, []Node{{0, 8}}},
		{0, 1, 1, []Node{{0, 1}}},
	} {
		if got := Nodes(test.first, test.end, test.leaves); !slices.Equal(got, test.want) {
			t.Errorf("leaves [%d, %d) of %d: %v, want %v",
				test.first, test.end, test.leaves, got, test.want)
		}
	}
}

// naiveSum sums a node by the tree's definition: the largest power of two below the number of
// leaves on the left, the rest on the right.
func naiveSum(leaves []float32) float32 {
	if len(leaves) == 1 {
		return leaves[0]
	}
	half := 1
	for 2*half < len(leaves) {
		half *= 2
	}
	return naiveSum(leaves[:half]) + naiveSum(leaves[half:])
}

func deal(world, leaves int) []int {
	ends := make([]int, world)
	for i := range ends {
		ends[i] = (i+1)*(leaves/world) + min(i+1, leaves%world)
	}
	return ends
}

// spreads returns ways to deal leaves to ranks: evenly, and at random.
func spreads(rng *rand.Rand, world, leaves int) [][]int {
	all := [][]int{deal(world, leaves)}
	for range 3 {
		ends := rng.Perm(leaves - 1)[:world-1]
		for i := range ends {
			ends[i]++
		}
		slices.Sort(ends)
		all = append(all, append(ends, leaves))
	}
	return all
}

// TestTreePlan runs the plans of all ranks in step, with one float per segment.
func TestTreePlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for _, leaves := range []int{1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 31} {
		given := make([]float32, leaves)
		for i := range given {
			given[i] = (rng.Float32() - 0.5) * float32(int(1)<<rng.IntN(20))
		}
		for world := 1; world <= min(9, leaves); world++ {
			for _, ends := range spreads(rng, world, leaves) {
				for segment, got := range walkPlans(t, ends, given) {
					if want := naiveSum(given); got != want {
						t.Fatalf("leaves %v: the owner of segment %d has %v, want %v",
							ends, segment, got, want)
					}
				}
			}
		}
	}
}

// walkPlans returns the root of each rank's segment.
func walkPlans(t *testing.T, ends []int, given []float32) []float32 {
	t.Helper()
	world := len(ends)
	plans, slots := make([]*treePlan, world), make([][][]float32, world)
	for rank := range world {
		plans[rank] = planTree(ends, rank)
		slots[rank] = make([][]float32, len(plans[rank].own)+plans[rank].scratch)
		for i := range slots[rank] {
			slots[rank][i] = make([]float32, world)
		}
		for i, n := range plans[rank].own {
			for segment := range world {
				slots[rank][i][segment] = naiveSum(given[n.First:n.End])
			}
		}
	}
	for k := range world - 1 {
		sent := make([][]float32, world)
		for rank, p := range plans {
			for _, slot := range p.steps[k].sent {
				sent[rank] = append(sent[rank], slots[rank][slot][mod(rank-1-k, world)])
			}
		}
		for rank, p := range plans {
			segment, came := mod(rank-2-k, world), sent[mod(rank-1, world)]
			if len(came) != len(p.steps[k].received) {
				t.Fatalf("leaves %v, step %d: rank %d expects %d nodes, is sent %d",
					ends, k, rank, len(p.steps[k].received), len(came))
			}
			for i, a := range p.steps[k].received {
				if a.added {
					slots[rank][a.slot][segment] += came[i]
				} else {
					slots[rank][a.slot][segment] = came[i]
				}
				for _, other := range a.folded {
					slots[rank][a.slot][segment] += slots[rank][other][segment]
				}
			}
		}
	}
	sums := make([]float32, world)
	for rank, p := range plans {
		sums[rank] = slots[rank][p.root][rank]
	}
	return sums
}

// TestTreeCost checks the table in AllReduceTree's comment, which is for eight leaves.
func TestTreeCost(t *testing.T) {
	for _, test := range []struct{ world, all, busiest, scratch int }{
		{2, 2, 1, 0}, {3, 12, 5, 1}, {4, 18, 5, 1}, {8, 120, 18, 3},
	} {
		ends := deal(test.world, 8)
		all, busiest, scratch := 0, 0, 0
		for rank := range test.world {
			p := planTree(ends, rank)
			sent := 0
			for _, step := range p.steps {
				sent += len(step.sent)
			}
			all, busiest, scratch = all+sent, max(busiest, sent), max(scratch, p.scratch)
		}
		if all != test.all || busiest != test.busiest || scratch != test.scratch {
			t.Errorf("world %d: %d nodes of segments are sent, %d by one rank, with %d slots; "+
				"want %d, %d, %d", test.world, all, busiest, scratch,
				test.all, test.busiest, test.scratch)
		}
	}
}
