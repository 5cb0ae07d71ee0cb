package worker

import (
	"slices"
	"strings"
	"testing"

	"rondo/cluster"
)

// TestReach: any --copies hosts may be lost, and each lane's states are with another worker.
func TestReach(t *testing.T) {
	for _, c := range []struct {
		hosts  string
		copies int
		want   []int
	}{
		{"a", 2, []int{0}}, {"ab", 2, []int{1, 1}}, {"aaa", 2, []int{2, 2, 2}},
		{"aaa", 1, []int{1, 1, 1}}, {"aabb", 1, []int{2, 1, 2, 1}},
		{"aabb", 2, []int{2, 2, 2, 2}}, {"aabbccdd", 2, []int{4, 3, 4, 3, 4, 3, 4, 3}},
		{"abcdabcd", 2, []int{2, 2, 2, 2, 2, 2, 2, 2}}, {"aaaab", 2, []int{4, 3, 2, 2, 2}},
	} {
		members := make([]cluster.Member, len(c.hosts))
		for i, host := range c.hosts {
			members[i].Host = string(host)
		}
		got := reach(members, c.copies)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, %d copies: %v, want %v", c.hosts, c.copies, got, c.want)
		}
		hosts := slices.Compact(slices.Sorted(slices.Values(strings.Split(c.hosts, ""))))
		if len(hosts) <= c.copies {
			continue
		}
		for _, one := range hosts {
			for _, other := range append(hosts, "") {
				if other != "" && c.copies < 2 {
					continue
				}
				if lane := lostLane(c.hosts, got, one+other); lane >= 0 {
					t.Errorf("%s, %d copies: without %s and %s nobody has rank %d's lanes",
						c.hosts, c.copies, one, other, lane)
				}
			}
		}
	}
}

// lostLane returns a rank whose lanes nobody knows when some hosts are gone; -1: there is none.
func lostLane(hosts string, reach []int, gone string) int {
	for rank := range hosts {
		known := false
		for d := range reach[rank] + 1 {
			host := hosts[(rank+d)%len(hosts)]
			known = known || !strings.ContainsRune(gone, rune(host))
		}
		if !known {
			return rank
		}
	}
	return -1
}
