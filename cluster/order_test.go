package cluster

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// everyHosting calls try with n members in every assignment to up to hosts hosts.
func everyHosting(n, hosts int, try func([]Member)) {
	ways := 1
	for range n {
		ways *= hosts
	}
	for way := range ways {
		members := make([]Member, n)
		for i := range members {
			members[i] = Member{ID: fmt.Sprintf("w%d", i), Host: string(rune('a' + way%hosts))}
			way /= hosts
		}
		try(members)
	}
}

// sharing counts the neighbours in a ring that share a host.
func sharing(hosts []string) (n int) {
	for i, host := range hosts {
		if len(hosts) > 1 && host == hosts[(i+1)%len(hosts)] {
			n++
		}
	}
	return n
}

func hostsOf(members []Member) []string {
	hosts := make([]string, len(members))
	for i, m := range members {
		hosts[i] = m.Host
	}
	return hosts
}

// leastSharing returns the least sharing of all rings of these hosts.
func leastSharing(hosts []string, known map[string]int) int {
	hosts = slices.Sorted(slices.Values(hosts))
	key := fmt.Sprint(hosts)
	if least, is := known[key]; is || len(hosts) == 0 {
		return least
	}
	least := len(hosts)
	var fill func(at int)
	fill = func(at int) {
		if at == len(hosts) {
			least = min(least, sharing(hosts))
			return
		}
		for i := at; i < len(hosts); i++ {
			hosts[at], hosts[i] = hosts[i], hosts[at]
			fill(at + 1)
			hosts[at], hosts[i] = hosts[i], hosts[at]
		}
	}
	fill(1) // the first stays, because a ring may be rotated
	known[key] = least
	return least
}

// TestSpreadOrderAgainstEveryRing compares the order with the best of all rings, for every
// assignment of up to seven members to up to four hosts.
func TestSpreadOrderAgainstEveryRing(t *testing.T) {
	known := make(map[string]int)
	random := rand.New(rand.NewPCG(1, 1))
	apart := 0
	for n := range 8 {
		everyHosting(n, 4, func(members []Member) {
			ring := SpreadOrder(members)
			got, want := sharing(hostsOf(ring)), leastSharing(hostsOf(members), known)
			if got != want {
				t.Fatalf("%v: %d neighbours share a host, and %d would be possible", hostsOf(ring),
					got, want)
			}
			if want == 0 && n > 1 {
				apart++
			}
			if !slices.Equal(RingOrder(ring), RingOrder(members)) {
				t.Fatalf("%v is not a permutation of %v", ring, members)
			}
			random.Shuffle(n, func(i, j int) { members[i], members[j] = members[j], members[i] })
			if other := SpreadOrder(members); !slices.Equal(other, ring) {
				t.Fatalf("%v or %v, depending on who came first", ring, other)
			}
		})
	}
	if apart == 0 || len(known) < 300 {
		t.Errorf("only %d rings were tried, %d of them could be spread", len(known), apart)
	}
}

// TestSpreadOrderOfMany: in large rings, too, no neighbours share a host unless one host has more
// than half of the members.
func TestSpreadOrderOfMany(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for range 300 {
		members := make([]Member, 2+random.IntN(200))
		hosts := 1 + random.IntN(12)
		fullest, size := 0, make(map[string]int)
		for i := range members {
			host := fmt.Sprint(min(random.IntN(hosts), random.IntN(hosts)))
			members[i] = Member{ID: fmt.Sprint(i), Host: host}
			size[host]++
			fullest = max(fullest, size[host])
		}
		want := max(0, 2*fullest-len(members))
		if got := sharing(hostsOf(SpreadOrder(members))); got != want {
			t.Fatalf("%v: %d neighbours share a host, not %d", size, got, want)
		}
	}
}

// TestInterleaveHostsChoosesWhatCanBeSpread compares the first k members with every choice of k
// that skips no member of better standing.
func TestInterleaveHostsChoosesWhatCanBeSpread(t *testing.T) {
	const n, ranks = 5, 3
	known := make(map[string]int)
	for first := range n + 1 {
		for second := first; second <= n; second++ {
			rankOf := func(m Member) int {
				at := int(m.ID[1] - '0')
				switch {
				case at < first:
					return 0
				case at < second:
					return 1
				}
				return ranks - 1
			}
			everyHosting(n, 3, func(members []Member) {
				mixed := slices.Clone(members)
				interleaveHosts(mixed, rankOf)
				if !slices.IsSortedFunc(mixed, func(a, b Member) int {
					return rankOf(a) - rankOf(b)
				}) || mixed[0] != members[0] {
					t.Fatalf("%v became %v", members, mixed)
				}
				for k := 1; k <= n; k++ {
					got := leastSharing(hostsOf(mixed[:k]), known)
					if best := bestChoice(members, k, rankOf, known); got != best {
						t.Fatalf("%v of %v: %d share a host, not %d", mixed[:k], members, got, best)
					}
				}
			})
		}
	}
}

// bestChoice returns the least sharing of all choices of k members.
func bestChoice(members []Member, k int, rank func(Member) int, known map[string]int) int {
	best := len(members)
	worst := rank(members[k-1])
	for set := range uint(1) << len(members) {
		if bits.OnesCount(set) != k {
			continue
		}
		var chosen []Member
		fair := true
		for i, m := range members {
			in := set>>i&1 == 1
			fair = fair && (in || rank(m) >= worst) && (!in || rank(m) <= worst)
			if in {
				chosen = append(chosen, m)
			}
		}
		if fair {
			best = min(best, leastSharing(hostsOf(chosen), known))
		}
	}
	return best
}
