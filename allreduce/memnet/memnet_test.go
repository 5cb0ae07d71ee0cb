package memnet_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
	"rondo/allreduce/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addresses(world int) []string {
	names := make([]string, world)
	for rank := range names {
		names[rank] = fmt.Sprintf("host-%d:7000", rank)
	}
	return names
}

func form(t *testing.T, n *memnet.Network, world int, g allreduce.Generation) []linktest.Node {
	t.Helper()
	names := addresses(world)
	nodes := make([]linktest.Node, world)
	for rank, err := range linktest.Each(world, func(rank int) (err error) {
		nodes[rank].Kill = func() { n.Crash(names[rank]) }
		nodes[rank].Links, err = n.Connect(t.Context(), names[rank],
			memnet.Seat{Generation: g, Rank: allreduce.Rank(rank), World: world}, names)
		return err
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	return nodes
}

func TestLink(t *testing.T) {
	linktest.Run(t, func(t *testing.T, world int) []linktest.Node {
		return form(t, memnet.New(), world, 1)
	})
}

const stepTimeout = 30 * time.Second // linktest sets half of it as the chunk timeout

// simulate runs f in a synctest bubble on a ring of 4 that has completed a sum.
func simulate(t *testing.T, f func(*memnet.Network, []*allreduce.Ring, []string)) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		rings := linktest.Rings(t, form(t, n, 4, 1), 1, 64, stepTimeout)
		linktest.CheckSum(t, rings, rand.New(rand.NewPCG(1, 1)), 100)
		f(n, rings, addresses(4))
	})
}

func sumAll(rings []*allreduce.Ring) []error {
	return linktest.Each(len(rings), func(rank int) error {
		return rings[rank].AllReduce(context.Background(), make([]float32, 100))
	})
}

// checkAccused checks that at least one rank observed a failure itself, that such ranks accuse only
// peers in who, and that no rank has the sum.
func checkAccused(t *testing.T, errs []error, who ...string) {
	t.Helper()
	accusers := 0
	for rank, err := range errs {
		var seen *allreduce.PeerError
		if err == nil {
			t.Errorf("rank %d has a sum", rank)
		}
		if !errors.As(err, &seen) {
			continue
		}
		accusers++
		if !strings.Contains(strings.Join(who, " "), seen.Peer.Address) {
			t.Errorf("rank %d accuses %v, want one of %v: %v", rank, seen.Peer, who, err)
		}
	}
	if accusers == 0 {
		t.Errorf("no rank accuses another: %v", errs)
	}
}

func TestCrash(t *testing.T) {
	simulate(t, func(n *memnet.Network, rings []*allreduce.Ring, names []string) {
		start := time.Now()
		n.Crash(names[2])
		errs := sumAll(rings)
		checkAccused(t, append(errs[:2:2], errs[3]), names[2])
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v to notice", took)
		}
	})
}

func TestBreak(t *testing.T) {
	simulate(t, func(n *memnet.Network, rings []*allreduce.Ring, names []string) {
		n.Break(names[1], names[2])
		checkAccused(t, sumAll(rings), names[1], names[2])
	})
}

// TestCuts: a cut of either direction or both is noticed little later than the chunk timeout, in a
// collective and without one.
func TestCuts(t *testing.T) {
	for _, busy := range []bool{true, false} {
		for name, ways := range map[string][][2]int{
			"forward": {{1, 2}}, "backward": {{2, 1}}, "both": {{1, 2}, {2, 1}},
		} {
			t.Run(fmt.Sprintf("%s/busy=%v", name, busy), func(t *testing.T) {
				simulate(t, func(n *memnet.Network, rings []*allreduce.Ring, names []string) {
					time.Sleep(time.Minute) // all alive
					start := time.Now()
					for _, w := range ways {
						n.Cut(names[w[0]], names[w[1]])
					}
					if !busy {
						for _, ring := range rings {
							<-ring.Broken()
						}
					}
					errs := sumAll(rings) // beats alone are no obstacle to a sum
					for errors.Join(errs...) == nil {
						time.Sleep(time.Second)
						errs = sumAll(rings)
					}
					checkAccused(t, errs, names[1], names[2])
					if took := time.Since(start); took > stepTimeout*3/4 {
						t.Errorf("it took %v to notice", took)
					}
				})
			})
		}
	}
}

// TestHeal: after Heal the held-back messages arrive, and none is lost.
func TestHeal(t *testing.T) {
	simulate(t, func(n *memnet.Network, rings []*allreduce.Ring, names []string) {
		n.Cut(names[0], names[1])
		n.Cut(names[1], names[0])
		time.AfterFunc(5*time.Second, func() {
			n.Heal(names[0], names[1])
			n.Heal(names[1], names[0])
		})
		start := time.Now()
		linktest.CheckSum(t, rings, rand.New(rand.NewPCG(2, 2)), 1000)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestDelay(t *testing.T) {
	simulate(t, func(n *memnet.Network, rings []*allreduce.Ring, names []string) {
		n.Delay(names[0], names[1], 300*time.Millisecond)
		start := time.Now()
		linktest.CheckSum(t, rings, rand.New(rand.NewPCG(3, 3)), 4)
		// Rank 0 sends rank 1 one float in each half, one after the other.
		if took := time.Since(start); took < 300*time.Millisecond || took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestConnect: a Connect waits for its neighbours and refuses others.
func TestConnect(t *testing.T) {
	seat := func(g allreduce.Generation, rank, world int) memnet.Seat {
		return memnet.Seat{Generation: g, Rank: allreduce.Rank(rank), World: world}
	}
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		names := addresses(2)
		connect := func(timeout time.Duration, rank int, s memnet.Seat) error {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			links, err := n.Connect(ctx, names[rank], s, names[:s.World])
			if err == nil && s.World > 1 {
				links.Predecessor.Close()
				links.Successor.Close()
			}
			return err
		}
		check := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		check(connect(time.Second, 0, seat(1, 0, 2)), "rank 1 (host-1:7000): no answer after 1s")
		check(connect(time.Second, 0, seat(1, 0, 2)), "generation 1 is not newer than 1")
		if err := connect(time.Second, 0, seat(5, 0, 1)); err != nil {
			t.Errorf("a ring of one: %v", err)
		}
		check(connect(time.Hour, 1, seat(4, 1, 2)),
			"refused: generation 4 is stale, this worker is at 5")
		check(connect(time.Hour, 1, seat(5, 1, 2)), "refused: this worker waits for no link")
		older := make(chan error, 1)
		go func() { older <- connect(time.Hour, 0, seat(6, 0, 2)) }()
		synctest.Wait()
		late := make(chan error, 1)
		go func() {
			time.Sleep(time.Minute) // the neighbour learns of the plan later
			late <- connect(time.Hour, 1, seat(7, 1, 2))
		}()
		if err := connect(time.Hour, 0, seat(7, 0, 2)); err != nil {
			t.Errorf("with a late neighbour: %v", err)
		}
		check(<-older, "a newer generation has come")
		if err := <-late; err != nil {
			t.Error(err)
		}
		// A cut keeps the peers apart, and a crash forgets the generations.
		n.Cut(names[1], names[0])
		both := linktest.Each(2, func(rank int) error {
			return connect(time.Second, rank, seat(8, rank, 2))
		})
		check(both[0], "no answer")
		n.Heal(names[1], names[0])
		n.Crash(names[0])
		n.Crash(names[1])
		if err := errors.Join(linktest.Each(2, func(rank int) error {
			return connect(time.Second, rank, seat(1, rank, 2))
		})...); err != nil {
			t.Errorf("after a crash: %v", err)
		}
	})
}
