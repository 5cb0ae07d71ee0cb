package allreduce_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

// TestAllReduceTree compares the sum's bits with the tree's definition, which is independent of the
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

// TestWrongNodes: a node in another's place, or sent twice, fails the sum, and the error names the
// sender.
func TestWrongNodes(t *testing.T) {
	for name, change := range map[string]func(letter, *[]letter) []letter{
		"swapped": func(l letter, held *[]letter) []letter {
			if len(*held) == 0 {
				*held = []letter{l}
				return nil
			}
			return append([]letter{l}, *held...)
		},
		"twice": func(l letter, _ *[]letter) []letter { return []letter{l, l} },
		"too short": func(l letter, _ *[]letter) []letter {
			return []letter{{l.header, l.payload[4:]}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var held []letter
			changed := func(l letter) []letter { return change(l, &held) }
			rings := linktest.Rings(t, hostileRing(changed), generation, 64, time.Minute)
			errs := linktest.Each(3, func(rank int) error {
				return treeOfThree(rings[rank], rank, make([]float32, 100))
			})
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), "rank 0 (host-a:7000): sent") {
					t.Errorf("rank %d: %v, want what rank 0 sent", rank, err)
				}
			}
		})
	}
}

func TestWrongTrees(t *testing.T) {
	rings := linktest.Rings(t, connect(2), generation, 0, time.Minute)
	buf, short := make([]float32, 10), make([]float32, 9)
	for _, test := range []struct {
		ends  []int
		parts [][]float32
		want  string
	}{
		{[]int{8}, [][]float32{buf}, "tree sum: 1 ranges for 2 ranks"},
		{[]int{9, 8}, [][]float32{buf}, "tree sum: range of rank 1 is [9:8]"},
		{[]int{8, 8}, [][]float32{buf}, "tree sum: rank 1 has no leaf, of 8"},
		{[]int{3, 8}, [][]float32{buf}, "tree sum: 1 parts, this rank has the nodes [{0 2} {2 3}]"},
		{[]int{4, 8}, [][]float32{short}, "tree sum: part 0 has 9 floats, the buffer 10"},
	} {
		err := rings[0].AllReduceTree(context.Background(),
			allreduce.TreeSum{Buf: buf, Ends: test.ends, Parts: test.parts})
		if err == nil || err.Error() != test.want {
			t.Errorf("ends %v: %v, want %q", test.ends, err, test.want)
		}
	}
	linktest.CheckTree(t, rings, rand.New(rand.NewPCG(0, 0)), []int{3, 8}, 10) // the ring is whole
}

// TestTreeFailsMidway: a message cut off between a sum's blocks fails the sum and later collectives
// on all ranks.
func TestTreeFailsMidway(t *testing.T) {
	const floats, cut = 10_000, 100
	count := 0
	rings := linktest.Rings(t, hostileRing(func(l letter) []letter {
		if count++; count == cut {
			l.payload = l.payload[4:]
		}
		return []letter{l}
	}), generation, 64, time.Minute)
	for range 2 {
		for rank, err := range linktest.Each(3, func(rank int) error {
			return treeOfThree(rings[rank], rank, make([]float32, floats))
		}) {
			if err == nil || !strings.Contains(err.Error(), "rank 0 (host-a:7000): sent") {
				t.Errorf("rank %d: %v, want what rank 0 sent", rank, err)
			}
		}
	}
	if count < cut {
		t.Errorf("only %d messages came", count)
	}
}
