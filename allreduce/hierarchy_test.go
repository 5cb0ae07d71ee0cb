package allreduce_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

func TestLayout(t *testing.T) {
	type layouts []allreduce.Layout
	for name, test := range map[string]struct {
		hosts []string
		want  layouts
		pays  bool
	}{
		"one host": {[]string{"a", "a"}, layouts{
			{Host: []allreduce.Rank{0, 1}, Across: []allreduce.Rank{0}, Columns: 2},
			{Host: []allreduce.Rank{0, 1}, Across: []allreduce.Rank{1}, Columns: 2}}, false},
		"a rank a host": {[]string{"a", "b"}, layouts{
			{Host: []allreduce.Rank{0}, Across: []allreduce.Rank{0, 1}, Columns: 1},
			{Host: []allreduce.Rank{1}, Across: []allreduce.Rank{0, 1}, Columns: 1}}, false},
		"hosts apart, one larger": {[]string{"a", "b", "a", "b", "b"}, layouts{
			{Host: []allreduce.Rank{0, 2}, Across: []allreduce.Rank{0, 1}, Columns: 2},
			{Host: []allreduce.Rank{1, 3, 4}, Across: []allreduce.Rank{0, 1}, Columns: 2},
			{Host: []allreduce.Rank{0, 2}, Across: []allreduce.Rank{2, 3}, Columns: 2},
			{Host: []allreduce.Rank{1, 3, 4}, Across: []allreduce.Rank{2, 3}, Columns: 2},
			{Host: []allreduce.Rank{1, 3, 4}, Columns: 2}}, true},
	} {
		for rank, want := range test.want {
			got := allreduce.NewLayout(test.hosts, allreduce.Rank(rank))
			want.Hosts, want.Ranks = 2, len(test.hosts)
			if name == "one host" {
				want.Hosts = 1
			}
			if !reflect.DeepEqual(got, want) || got.Pays() != test.pays {
				t.Errorf("%s, rank %d: %+v, pays %v; want %+v", name, rank, got, got.Pays(), want)
			}
		}
	}
	// With many hosts a hierarchy sends as much as a ring, and pays only by its fewer steps.
	for hosts, want := range map[int]bool{2: true, 3: false, 8: false, 1024: true} {
		names := make([]string, 2*hosts)
		for rank := range names {
			names[rank] = fmt.Sprint(rank / 2)
		}
		if got := allreduce.NewLayout(names, 0).Pays(); got != want {
			t.Errorf("two ranks on each of %d hosts: pays %v", hosts, got)
		}
	}
}

// TestBlock: blocks are long enough for full chunks between many hosts.
func TestBlock(t *testing.T) {
	for ranks, want := range map[int]int{2: 1 << 20, 64: 1 << 20, 256: 4 << 20, 2048: 32 << 20} {
		l := allreduce.Layout{Ranks: ranks}
		segment := 4 * l.Block() / ranks // bytes: each host sums one segment of a part
		if l.Block() != want || segment < 64<<10 {
			t.Errorf("%d ranks: blocks of %d floats", ranks, l.Block())
		}
	}
}

// rack holds the ranks of a hierarchy in one process.
type rack struct {
	hierarchies  []*allreduce.Hierarchy
	host, across []*allreduce.Ring
}

// newRack connects the ranks by pipes; hosts[i] is the host of rank i. Its rings close with the
// test.
func newRack(t *testing.T, hosts []string) *rack {
	t.Helper()
	return newPatientRack(t, hosts, 2*linktest.Moment)
}

// newPatientRack is newRack with a given step timeout.
func newPatientRack(t *testing.T, hosts []string, patience time.Duration) *rack {
	t.Helper()
	config := allreduce.Config{Generation: 3, ChunkTimeout: min(5*time.Second, patience/2),
		StepTimeout: patience}
	n := len(hosts)
	r := &rack{make([]*allreduce.Hierarchy, n), make([]*allreduce.Ring, n),
		make([]*allreduce.Ring, n)}
	for rank := range n {
		layout := allreduce.NewLayout(hosts, allreduce.Rank(rank))
		if layout.Host[0] == allreduce.Rank(rank) {
			r.join(t, r.host, layout.Host, config.WithinHost())
		}
		if layout.Across != nil && layout.Across[0] == allreduce.Rank(rank) {
			r.join(t, r.across, layout.Across, config.AcrossHosts())
		}
	}
	for rank := range n {
		var err error
		r.hierarchies[rank], err = allreduce.NewHierarchy(
			allreduce.NewLayout(hosts, allreduce.Rank(rank)), r.host[rank], r.across[rank])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.hierarchies[rank].Close)
	}
	return r
}

func (r *rack) sum(rank int, s allreduce.Sum) error {
	p, err := r.hierarchies[rank].Start(context.Background(), s)
	if err != nil {
		return err
	}
	return p.Wait(context.Background())
}

func (r *rack) join(
	t *testing.T, rings []*allreduce.Ring, ranks []allreduce.Rank, config allreduce.Config,
) {
	t.Helper()
	links := make([]allreduce.Links, len(ranks))
	for i, rank := range ranks {
		if j := (i + 1) % len(ranks); j != i {
			links[i].Successor, links[j].Predecessor = allreduce.Pipe(
				allreduce.Peer{Rank: rank, Address: fmt.Sprint("host-", rank)},
				allreduce.Peer{Rank: ranks[j], Address: fmt.Sprint("host-", ranks[j])})
		}
	}
	for i, rank := range ranks {
		config.Rank, config.World, config.Ranks = allreduce.Rank(i), len(ranks), ranks
		ring, err := allreduce.New(config, links[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ring.Close() })
		rings[rank] = ring
	}
}

// TestHierarchySums: for any hosts and lengths, every rank ends with the same bits, close to a
// float64 sum.
func TestHierarchySums(t *testing.T) {
	lengths := []int{0, 1, 2, 3, 5, 8, 31, 70, 1000}
	const blocks = 2<<20 + 7 // three of them
	for _, hosts := range []string{"a", "aa", "ab", "aab", "aabb", "abab", "aaabb", "aabbcc",
		"abbbccdd", "aaaabbbb"} {
		t.Run(hosts, func(t *testing.T) {
			r := newRack(t, strings.Split(hosts, ""))
			lengths := lengths
			if hosts == "aab" {
				lengths = append(slices.Clone(lengths), blocks)
			}
			for _, n := range lengths {
				testHierarchySum(t, r, n, allreduce.Float32)
				testHierarchySum(t, r, n, allreduce.BFloat16)
			}
		})
	}
}

func testHierarchySum(t *testing.T, r *rack, n int, element allreduce.Element) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(n), uint64(len(r.host))))
	bufs := make([][]float32, len(r.hierarchies))
	want, size := make([]float64, n), make([]float64, n)
	for rank := range bufs {
		bufs[rank] = make([]float32, n)
		for i := range n {
			bufs[rank][i] = rng.Float32() - 0.5
			want[i] += float64(bufs[rank][i])
			size[i] += math.Abs(float64(bufs[rank][i]))
		}
	}
	for rank, err := range linktest.Each(len(bufs), func(rank int) error {
		return r.sum(rank, allreduce.Sum{Buf: bufs[rank], Element: element})
	}) {
		if err != nil {
			t.Fatalf("%d numbers of %v, rank %d: %v", n, element, rank, err)
		}
	}
	unit := 1.0 / (1 << 23)
	if element == allreduce.BFloat16 {
		unit = 1.0 / (1 << 7)
	}
	for rank, buf := range bufs {
		if !slices.Equal(allreduce.Bytes(buf), allreduce.Bytes(bufs[0])) {
			t.Fatalf("%d numbers of %v: rank %d has other bits than rank 0", n, element, rank)
		}
	}
	for i, got := range bufs[0] {
		if bound := unit * float64(len(bufs)) * size[i]; math.Abs(float64(got)-want[i]) > bound {
			t.Fatalf("%d numbers of %v: [%d] = %v, want %v within %.2g", n, element, i, got,
				want[i], bound)
		}
	}
}

// TestHierarchyRounds: numbers travel as 16 bits between hosts, and only the ranks that sent them
// keep their rounding errors. Residuals kept from another ring enter the sum. A single host rounds
// nothing.
func TestHierarchyRounds(t *testing.T) {
	const n = 1<<20 + 1000 // two blocks
	for _, hosts := range []string{"aa", "aabb", "aaabb"} {
		t.Run(hosts, func(t *testing.T) {
			r := newRack(t, strings.Split(hosts, ""))
			rng := rand.New(rand.NewPCG(1, 2))
			bufs, residuals := make([][]float32, len(hosts)), make([][]float32, len(hosts))
			want := make([]float64, n)
			for rank := range bufs {
				bufs[rank], residuals[rank] = make([]float32, n), make([]float32, n)
				for i := range want { // residuals from a ring in which all numbers were rounded
					bufs[rank][i] = rng.Float32() - 0.5
					residuals[rank][i] = 1e-3 * (rng.Float32() - 0.5)
					want[i] += float64(bufs[rank][i]) + float64(residuals[rank][i])
				}
			}
			for rank, err := range linktest.Each(len(bufs), func(rank int) error {
				return r.sum(rank, allreduce.Sum{Buf: bufs[rank], Element: allreduce.BFloat16,
					Residual: residuals[rank]})
			}) {
				if err != nil {
					t.Fatalf("rank %d: %v", rank, err)
				}
			}
			short := 0
			for i, got := range bufs[0] {
				if math.Float32bits(got)<<16 == 0 {
					short++
				}
				all := float64(got)
				for _, residual := range residuals {
					all += float64(residual[i])
				}
				if math.Abs(all-want[i]) > 1e-5 {
					t.Fatalf("[%d] = %v, with what was withheld %v, want %v", i, got, all, want[i])
				}
			}
			for i := range want {
				keep := 0
				for _, residual := range residuals {
					if residual[i] != 0 {
						keep++
					}
				}
				if most := strings.Count(hosts, "b"); keep > min(most, 2) {
					t.Fatalf("[%d]: %d ranks keep something, and fewer sum it", i, keep)
				}
			}
			across := strings.Contains(hosts, "b")
			if across && short < n || !across && short > n/2 {
				t.Errorf("%d of %d numbers have 16 bits", short, n)
			}
		})
	}
}

// TestHierarchyBreaks: when one ring of a rank breaks, all rings of all ranks break with the same
// reason.
func TestHierarchyBreaks(t *testing.T) {
	r := newRack(t, []string{"a", "a", "b", "b"})
	for rank := range r.host {
		t.Cleanup(allreduce.Bind(r.host[rank], r.across[rank]))
	}
	reason := errors.New("the disk of rank 3 is full")
	r.across[3].Break(reason)
	for rank, err := range linktest.Each(4, func(rank int) error {
		return r.sum(rank, allreduce.Sum{Buf: make([]float32, 100)})
	}) {
		if err == nil || !strings.Contains(err.Error(), reason.Error()) {
			t.Errorf("rank %d: %v, want the reason, %v", rank, err, reason)
		}
	}
}

// TestHierarchyBlames: a live rank that does not join a sum is accused by its neighbours on its
// host first. The other host could only accuse those neighbours.
func TestHierarchyBlames(t *testing.T) {
	for _, hosts := range []string{"aaaabbbb", "aaabb"} {
		t.Run(hosts, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testHierarchyBlames(t, strings.Split(hosts, ""), time.Minute)
			})
		})
	}
}

func testHierarchyBlames(t *testing.T, hosts []string, patience time.Duration) {
	r := newPatientRack(t, hosts, patience)
	for rank := range r.host {
		rings := []*allreduce.Ring{r.host[rank]}
		if r.across[rank] != nil {
			rings = append(rings, r.across[rank])
		}
		t.Cleanup(allreduce.Bind(rings...))
	}
	stuck := len(hosts) - 1
	for rank, err := range linktest.Each(len(hosts), func(rank int) error {
		if rank == stuck {
			<-r.host[rank].Broken()
			return r.host[rank].Err()
		}
		if hosts[rank] == "b" {
			time.Sleep(patience / 10) // the slower host
		}
		return r.sum(rank, allreduce.Sum{Buf: make([]float32, 100)})
	}) {
		var lost *allreduce.PeerError
		if errors.As(err, &lost) && lost.Peer.Rank != allreduce.Rank(stuck) || err == nil {
			t.Errorf("rank %d: %v, want nobody but rank %d accused", rank, err, stuck)
		}
	}
}

func TestHierarchyRefused(t *testing.T) {
	r := newRack(t, []string{"a", "a", "b", "b"})
	layout := allreduce.NewLayout([]string{"a", "a", "b", "b"}, 0)
	if _, err := allreduce.NewHierarchy(layout, r.host[0], nil); err == nil {
		t.Error("a hierarchy without its ring across hosts was made")
	}
	layout.Host = layout.Host[:1]
	if _, err := allreduce.NewHierarchy(layout, r.host[0], r.across[0]); err == nil {
		t.Error("a hierarchy with a ring of other ranks was made")
	}
	err := r.sum(0, allreduce.Sum{Buf: make([]float32, 4),
		Carry: allreduce.Carry{Out: make([][]float32, 1)}})
	if err == nil || !strings.Contains(err.Error(), "no carry") {
		t.Errorf("a sum with a carry: %v", err)
	}
}
