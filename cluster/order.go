package cluster

import (
	"cmp"
	"slices"
)

// RingOrder returns the members in the order of the ring: one host's workers side by side, so
// that as few links as possible leave a host, then by id. The order does not depend on who joined
// first.
func RingOrder(members []Member) []Member {
	return slices.SortedFunc(slices.Values(members), func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID))
	})
}

// SpreadOrder returns the members in the order of a ring whose neighbours, the last and the first
// among them, are of different hosts: then the successor of each worker of a lost host, which knows
// its lanes' states, is still there. Where one host has more than half of the members, as few
// neighbours as possible share it. The order does not depend on who joined first.
//
// The fullest host takes every second place, and the others fill up after it: a host that is not
// the fullest cannot go round as far as its own neighbours.
func SpreadOrder(members []Member) []Member {
	ordered := RingOrder(members)
	size := make(map[string]int)
	for _, m := range ordered {
		size[m.Host]++
	}
	slices.SortStableFunc(ordered, func(a, b Member) int {
		return cmp.Or(cmp.Compare(size[b.Host], size[a.Host]), cmp.Compare(a.Host, b.Host))
	})
	ring := make([]Member, len(ordered))
	at := 0
	for _, m := range ordered {
		if at >= len(ring) {
			at = 1
		}
		ring[at] = m
		at += 2
	}
	return ring
}

// mix has members that are as good as each other, which rank tells, take turns by host: a ring of
// the first of them can be spread if a ring of any of them could. The first stays the first.
func mix(members []Member, rank func(Member) int) {
	type turn struct{ rank, of int }
	turns, seen := make(map[string]turn), make(map[string]int)
	for _, m := range members {
		turns[m.ID] = turn{rank(m), seen[m.Host]}
		seen[m.Host]++
	}
	slices.SortStableFunc(members, func(a, b Member) int {
		x, y := turns[a.ID], turns[b.ID]
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.of, y.of))
	})
}
