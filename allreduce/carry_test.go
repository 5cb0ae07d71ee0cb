package allreduce_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

// carried returns the n floats that rank hands its successor, all of rank's own value.
func carried(rank, n int) []float32 {
	return slices.Repeat([]float32{float32(rank + 1)}, n)
}

// carryAll reduces n floats on all ranks. Rank i carries lengths[i] floats out, reach[i] places on.
// It returns each rank's error, what it carried in by hops, and its sum.
func carryAll(rings []*allreduce.Ring, lengths, reach []int, n int) (
	errs []error, in [][][]float32, bufs [][]float32) {
	world := len(rings)
	in, bufs = make([][][]float32, world), make([][]float32, world)
	errs = linktest.Each(world, func(rank int) error {
		carry := allreduce.Carry{In: make([][]float32, slices.Max(reach))}
		for hop := range carry.In {
			out := carried(rank, lengths[rank])
			if hop > 0 {
				out = carry.In[hop-1]
			}
			if reach[(rank+world-hop)%world] <= hop {
				out = nil
			}
			carry.Out = append(carry.Out, out)
			if from := (rank + world - hop - 1) % world; reach[from] > hop {
				carry.In[hop] = make([]float32, lengths[from])
			}
		}
		in[rank] = carry.In
		bufs[rank] = slices.Repeat([]float32{float32(rank + 1)}, n)
		return rings[rank].AllReduceCarry(context.Background(), bufs[rank], carry)
	})
	return errs, in, bufs
}

// completeIn reports whether rank received the whole carry of each rank that reaches it.
func completeIn(in [][]float32, rank int, lengths, reach []int) bool {
	for hop := range in {
		from := (rank + 2*len(lengths) - hop - 1) % len(lengths)
		if reach[from] > hop && !slices.Equal(in[hop], carried(from, lengths[from])) {
			return false
		}
	}
	return true
}

// reaches are how far the ranks of a ring carry: all one place, all as far as can be, and mixed.
func reaches(world int) [][]int {
	mixed := make([]int, world)
	for rank := range mixed {
		mixed[rank] = 1 + rank%(world-1)
	}
	return [][]int{slices.Repeat([]int{1}, world), slices.Repeat([]int{world - 1}, world), mixed}
}

func TestCarry(t *testing.T) {
	for world := 2; world <= 6; world++ {
		rings := linktest.Rings(t, raggedRing(world), generation, 64, time.Minute)
		for round := range 5 { // lengths of 0, below and above a chunk
			lengths := make([]int, world)
			for rank := range lengths {
				lengths[rank] = (rank*13 + round*11) % 50 * min(round, 1)
			}
			reach := reaches(world)[round%3]
			for _, n := range []int{2, world - 1, world, 10 * world, 100} {
				n = max(n, 2)
				errs, in, bufs := carryAll(rings, lengths, reach, n)
				sum := float32(world*(world+1)) / 2
				for rank, err := range errs {
					if err != nil {
						t.Fatalf("world %d, rank %d: %v", world, rank, err)
					}
					if !completeIn(in[rank], rank, lengths, reach) {
						t.Errorf("world %d, lengths %v, rank %d: carried in %v",
							world, lengths, rank, in[rank])
					}
					if !slices.Equal(bufs[rank], slices.Repeat([]float32{sum}, n)) {
						t.Errorf("world %d, rank %d: sum %v", world, rank, bufs[rank])
					}
				}
			}
		}
	}
}

// counted stops sending at the chunk that fuse counts down to, by the death of its rank or by
// losing its messages. Heartbeats do not count.
type counted struct {
	allreduce.Successor
	fuse int
	kill func() // nil: messages are lost from then on
}

func (c *counted) Send(h allreduce.Header, payload []byte) error {
	if h.Phase != allreduce.Heartbeat {
		c.fuse--
	}
	if c.fuse <= 0 {
		if c.kill == nil {
			return nil
		}
		c.kill()
	}
	return c.Successor.Send(h, payload)
}

// TestCarryIsCompleteBeforeTheSum: whichever chunk and rank break the ring, no rank has the sum
// while another's carry is incomplete.
func TestCarryIsCompleteBeforeTheSum(t *testing.T) {
	for _, dies := range []bool{true, false} {
		some := 0
		for world := 2; world <= 5; world++ {
			for _, reach := range reaches(world) {
				for _, n := range []int{2, world, 2*world + 1} {
					some += breakEverywhere(t, reach, n, dies)
				}
			}
		}
		if some == 0 {
			t.Error("no break came after a rank had the sum: nothing is shown")
		}
	}
}

// breakEverywhere breaks a collective at each chunk of each rank. It returns how often a rank had
// the sum.
func breakEverywhere(t *testing.T, reach []int, n int, dies bool) (some int) {
	for gone := range reach {
		for chunk := 1; ; chunk++ {
			var completed, broke bool
			synctest.Test(t, func(t *testing.T) {
				completed, broke = breakAt(t, reach, n, gone, chunk, dies)
			})
			if completed && broke {
				some++
			}
			if !broke {
				break // the collective has no such chunk
			}
		}
	}
	return some
}

// breakAt breaks the link of rank gone before it sends a chunk, counted from 1. It reports whether
// any rank completed the collective, and whether gone sent that many chunks.
func breakAt(t *testing.T, reach []int, n, gone, chunk int, dies bool) (completed, broke bool) {
	const chunkFloats = 1
	world := len(reach)
	nodes := connect(world)
	links := nodes[gone].Links
	last := &counted{Successor: links.Successor, fuse: chunk}
	if dies {
		last.kill = func() {
			links.Predecessor.Abort("killed")
			links.Successor.Abort("killed")
		}
	}
	nodes[gone].Successor = last
	rings := linktest.Rings(t, nodes, generation, 4*chunkFloats, time.Minute)
	lengths := slices.Repeat([]int{2}, world)
	errs, in, _ := carryAll(rings, lengths, reach, n)
	linktest.Each(world, func(rank int) error { return rings[rank].Close() })
	completed = slices.ContainsFunc(errs, func(err error) bool { return err == nil })
	for rank := range world {
		if completed && !completeIn(in[rank], rank, lengths, reach) {
			t.Errorf("rank %d broke off before chunk %d: ranks end with %v, rank %d has %v",
				gone, chunk, errs, rank, in[rank])
		}
	}
	return completed, last.fuse <= 0
}

func TestCarryMismatch(t *testing.T) {
	for _, test := range []struct {
		out, in int // rank 0's carry, and the length that rank 1 expects
		want    string
	}{
		{10, 20, "carries 10 floats, this rank expects 20"},
		{20, 10, "carries 20 floats, this rank expects 10"},
		{10, 0, "carries 10 floats, this rank expects 0"},
		{0, 10, "carries 0 floats, this rank expects 10"},
	} {
		rings := linktest.Rings(t, connect(3), generation, 64, time.Minute)
		errs := linktest.Each(3, func(rank int) error {
			var carry allreduce.Carry
			switch rank {
			case 0:
				carry.Out = [][]float32{make([]float32, test.out)}
			case 1:
				carry.In = [][]float32{make([]float32, test.in)}
			}
			return rings[rank].AllReduceCarry(context.Background(), make([]float32, 100), carry)
		})
		var seen *allreduce.PeerError
		if !errors.As(errs[1], &seen) || seen.Peer != peer(0) ||
			!strings.Contains(errs[1].Error(), test.want) {
			t.Errorf("rank 1: %v, want %q of rank 0", errs[1], test.want)
		}
	}
}

func TestCarryWrongArguments(t *testing.T) {
	ctx := context.Background()
	some := make([]float32, 3)
	rings := linktest.Rings(t, connect(2), generation, 0, time.Minute)
	err := rings[0].AllReduceCarry(ctx, some[:1], allreduce.Carry{Out: [][]float32{some}})
	if want := "ahead of 1 floats, want at least 2"; err == nil ||
		!strings.Contains(err.Error(), want) || rings[0].Err() != nil {
		t.Errorf("%v, want %q", err, want)
	}
	one := linktest.Rings(t, connect(1), generation, 0, time.Minute)[0]
	if err := one.AllReduceCarry(ctx, some, allreduce.Carry{Out: [][]float32{some}}); err != nil {
		t.Errorf("a ring of one: %v", err)
	}
	if err := one.AllReduceCarry(ctx, some, allreduce.Carry{In: [][]float32{some}}); err == nil {
		t.Error("a ring of one carried in 3 floats")
	}
	err = rings[0].AllReduceCarry(ctx, some, allreduce.Carry{In: make([][]float32, 2)})
	if want := "a carry of 2 hops around a ring of 2"; err == nil || err.Error() !=
		"all-reduce: "+want {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestTiming: a wait counts for the neighbour that caused it.
func TestTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rings := linktest.Rings(t, connect(2), generation, 64, time.Minute)
		linktest.Each(2, func(rank int) error {
			time.Sleep(time.Duration(rank) * time.Second)
			return rings[rank].AllReduce(context.Background(), make([]float32, 1000))
		})
		early, late := rings[0].Timing(), rings[1].Timing()
		if early.Waiting != time.Second || early.Sending != time.Second {
			t.Errorf("the rank that came first: %+v, want a second of each", early)
		}
		if late != (allreduce.Timing{}) {
			t.Errorf("the rank that came last: %+v, want none", late)
		}
	})
}
