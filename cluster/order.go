package cluster

import (
	"cmp"
	"slices"
)

// RingOrder returns the members in ring order: by host, so that as few links as possible leave a
// host, and then by id. It does not depend on the order of joining.
func RingOrder(members []Member) []Member {
	return slices.SortedFunc(slices.Values(members), func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID))
	})
}

// SpreadOrder returns the members in a ring order whose neighbours are on different hosts, the last
// and the first too. If a host is lost, each of its workers' successors survives with its lanes'
// states. If one host has more than half of the members, as few neighbours as possible share a
// host. It does not depend on the order of joining.
//
// It places members at every second position, fullest host first, and then fills the gaps. A host
// other than the fullest is too small to reach around the ring to its own neighbours.
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

// interleaveHosts makes members of equal rank take turns by host, so that a ring of the first few
// can be spread if any choice of them could. The first member stays the first.
func interleaveHosts(members []Member, rank func(Member) int) {
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
