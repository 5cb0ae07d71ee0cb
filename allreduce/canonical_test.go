package allreduce_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"rondo/allreduce/linktest"
)

// TestAllReduceTree: the bits of the sum are those of the tree's definition, which knows of no
// ranks.
func TestAllReduceTree(t *testing.T) {
	for world := 1; world <= 8; world++ {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			const chunk = 16 // floats
			rings := linktest.Rings(t, raggedRing(world), generation, 4*chunk, time.Minute)
			rng := rand.New(rand.NewPCG(uint64(world), 5))
			for n := range 71 {
				linktest.CheckTree(t, rings, rng, linktest.Deal(world, 8), n)
			}
			for _, chunks := range []int{1, 2, 4, 9} {
				for off := -1; off <= 1; off++ {
					n := chunks*chunk*world + off
					linktest.CheckTree(t, rings, rng, linktest.Deal(world, 8), n)
					linktest.CheckTree(t, rings, rng, linktest.Deal(world, world+rng.IntN(20)), n)
				}
			}
			linktest.CheckSum(t, rings, rng, 100) // on the same ring, in turn
		})
	}
}
