package allreduce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

const generation = allreduce.Generation(3)

// ragged cuts the messages of a link into pieces of random length at odd addresses, like a
// transport's buffers.
type ragged struct {
	allreduce.Predecessor
	rng *rand.Rand
}

func (r *ragged) Receive(m *allreduce.Message) error {
	if err := r.Predecessor.Receive(m); err != nil {
		return err
	}
	payload := slices.Concat(m.Pieces...)
	h := m.Header
	m.Release()
	m.Header = h
	for len(payload) > 0 {
		n := min(1+r.rng.IntN(23), len(payload))
		m.Pieces, payload = append(m.Pieces, payload[:n]), payload[n:]
	}
	return nil
}

func raggedRing(world int) []linktest.Node {
	nodes := connect(world)
	for rank := range nodes {
		if world > 1 {
			rng := rand.New(rand.NewPCG(uint64(rank), 9))
			nodes[rank].Predecessor = &ragged{nodes[rank].Predecessor, rng}
		}
	}
	return nodes
}

func TestAllReduce(t *testing.T) {
	for world := 1; world <= 8; world++ {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			const chunk = 16 // floats
			rings := linktest.Rings(t, raggedRing(world), generation, 4*chunk, time.Minute)
			rng := rand.New(rand.NewPCG(uint64(world), 1))
			for n := range 71 {
				linktest.CheckSum(t, rings, rng, n)
				for _, e := range []allreduce.Element{allreduce.BFloat16, allreduce.Float16} {
					linktest.CheckRounded(t, rings, rng, n, e, false)
					linktest.CheckRounded(t, rings, rng, n, e, true)
				}
			}
			for _, chunks := range []int{1, 2, 5} {
				for off := -1; off <= 1; off++ {
					linktest.CheckSum(t, rings, rng, chunks*chunk*world+off)
					linktest.CheckSum(t, rings, rng, chunks*chunk*world+off*world)
					n := chunks*2*chunk*world + off // chunks of 16 bits a number
					linktest.CheckRounded(t, rings, rng, n, allreduce.BFloat16, off != 0)
					linktest.CheckRounded(t, rings, rng, n, allreduce.Float16, off == 0)
				}
			}
		})
	}
}

func TestRanges(t *testing.T) {
	for world := 1; world <= 8; world++ {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			rings := linktest.Rings(t, raggedRing(world), generation, 64, time.Minute)
			rng := rand.New(rand.NewPCG(uint64(world), 2))
			for range 50 {
				ends, at := make([]int, world), 0
				for i := range ends {
					if rng.IntN(3) > 0 {
						at += rng.IntN(60)
					}
					ends[i] = at
				}
				linktest.CheckGather(t, rings, rng, ends)
				linktest.CheckScatter(t, rings, rng, ends)
				linktest.CheckSum(t, rings, rng, rng.IntN(100)) // on the same ring, in turn
			}
		})
	}
}

func TestWrongArguments(t *testing.T) {
	rings := linktest.Rings(t, connect(2), generation, 0, time.Minute)
	for _, test := range []struct {
		ends []int
		want string
	}{
		{[]int{10}, "1 ranges for 2 ranks"},
		{[]int{6, 5}, "range of rank 1 is [6:5]"},
		{[]int{-1, 10}, "range of rank 0 is [0:-1]"},
		{[]int{5, 9}, "ranges end at 9, the buffer at 10"},
	} {
		for what, call := range map[string]func(context.Context, []float32, []int) error{
			"all-gather": rings[0].AllGather, "reduce-scatter": rings[0].ReduceScatter,
		} {
			err := call(context.Background(), make([]float32, 10), test.ends)
			if want := what + ": " + test.want; err == nil || err.Error() != want {
				t.Errorf("ends %v: %v, want %q", test.ends, err, want)
			}
		}
	}
	linktest.CheckSum(t, rings, rand.New(rand.NewPCG(0, 0)), 10) // the ring is whole
}

func TestConfig(t *testing.T) {
	good := allreduce.Config{Rank: 1, World: 3, Generation: 1, ChunkTimeout: time.Second,
		StepTimeout: time.Minute}
	nodes := connect(3)
	for _, test := range []struct {
		change func(*allreduce.Config, *allreduce.Links)
		want   string
	}{
		{func(c *allreduce.Config, _ *allreduce.Links) { c.World = 0 }, "world 0"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.World = 1 << 20 }, "world 1048576"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.Rank = 3 }, "rank 3 is not 0 to 2"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.Rank = -1 }, "rank -1"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.ChunkBytes = 6 }, "chunks of 6 bytes"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.ChunkBytes = 2 << 20 }, "2097152 bytes"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.ChunkTimeout = 0 }, "timeout 0s"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.StepTimeout = time.Second },
			"step timeout 1s is not longer than the chunk timeout, 1s"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.Rank = 0 },
			"the predecessor of rank 0 of 3 is rank 2, the link's is rank 0"},
		{func(_ *allreduce.Config, l *allreduce.Links) { l.Successor = nil }, "needs two links"},
		{func(c *allreduce.Config, _ *allreduce.Links) { c.Rank, c.World = 0, 1 }, "no links"},
	} {
		config, links := good, nodes[1].Links
		test.change(&config, &links)
		if _, err := allreduce.New(config, links); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("New: %v, want %q", err, test.want)
		}
	}
}

// TestStuckPredecessor: the successor of a stuck rank reports the rank, the place and the time. All
// others pass that on.
func TestStuckPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const world, silent = 4, 2
		rings := linktest.Rings(t, connect(world), generation, 0, 5*time.Second)
		start := time.Now()
		errs := linktest.Each(world, func(rank int) error {
			if rank == silent {
				return nil
			}
			return rings[rank].AllReduce(context.Background(), make([]float32, 100))
		})
		if took := time.Since(start).Truncate(time.Millisecond); took != 5*time.Second {
			t.Errorf("it took %v to fail, want the timeout of 5s", took)
		}
		want := "collective 1, ring step 1 of 6, chunk 1 of 1, rank 2 (host-c:7000): " +
			"is alive, but no chunk came for 5s"
		if errs[3] == nil || errs[3].Error() != want {
			t.Errorf("rank 3: %v, want %q", errs[3], want)
		}
		var seen *allreduce.PeerError
		if !errors.As(errs[3], &seen) || seen.Peer != peer(silent) {
			t.Errorf("rank 3 says that it saw %+v, want %v", seen, peer(silent))
		}
		for _, rank := range []int{0, 1} {
			if errors.As(errs[rank], &seen) {
				t.Errorf("rank %d says that it saw what it was told: %v", rank, errs[rank])
			}
			if errs[rank] == nil || !strings.HasSuffix(errs[rank].Error(), "at rank 3: "+want) {
				t.Errorf("rank %d: %v, want what rank 3 found", rank, errs[rank])
			}
		}
	})
}

// TestSlowRank: a rank may be as late as the timeout allows.
func TestSlowRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rings := linktest.Rings(t, connect(3), generation, 0, 5*time.Second)
		for range 3 {
			for rank, err := range linktest.Each(3, func(rank int) error {
				time.Sleep(time.Duration(rank) * 2 * time.Second)
				return rings[rank].AllReduce(context.Background(), make([]float32, 100))
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		}
	})
}

// alone returns rank 0 of a ring of two, and rank 1's ends of its links.
func alone(t *testing.T, chunkBytes int, timeout time.Duration) (
	*allreduce.Ring, allreduce.Successor, allreduce.Predecessor,
) {
	t.Helper()
	nodes := connect(2)
	ring, err := allreduce.New(allreduce.Config{
		World: 2, Generation: generation, ChunkBytes: chunkBytes, ChunkTimeout: timeout / 2,
		StepTimeout: timeout,
	}, nodes[0].Links)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ring.Close() })
	return ring, nodes[1].Successor, nodes[1].Predecessor
}

// awaitChunk receives the next message that is not a heartbeat.
func awaitChunk(p allreduce.Predecessor, m *allreduce.Message) error {
	for {
		if err := p.Receive(m); err != nil || m.Header.Phase != allreduce.Heartbeat {
			return err
		}
		m.Release()
	}
}

// breathe sends rank 0 rank 1's signs of life until the test ends.
func breathe(t *testing.T, successor allreduce.Successor, predecessor allreduce.Predecessor) {
	t.Helper()
	heartbeat := allreduce.Header{Generation: generation, Phase: allreduce.Heartbeat}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			predecessor.Beat()
			if successor.Send(heartbeat, nil) != nil {
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
}

// TestStuckSuccessor: the successor is accused of chunks that it does not take.
func TestStuckSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, successor, predecessor := alone(t, 4, time.Second)
		breathe(t, successor, predecessor)
		go func() {
			time.Sleep(time.Second / 2) // so that the untaken chunks wait longer than the receiver
			successor.Send(allreduce.Header{
				Generation: generation, Sequence: 1, Phase: allreduce.ReduceScatter,
				Offset: 0, Length: 1, Total: 100,
			}, allreduce.Bytes([]float32{1}))
		}()
		err := ring.AllReduce(context.Background(), make([]float32, 100))
		// The link holds 4 messages, and the first is a heartbeat.
		want := "collective 1, ring step 1 of 2, chunk 4 of 50, rank 1 (host-b:7000): " +
			"is alive, but has not taken a chunk for 1s"
		if err == nil || err.Error() != want {
			t.Errorf("all-reduce: %v, want %q", err, want)
		}
		<-predecessor.Broken()
		if got := predecessor.Err().Error(); got != "at rank 0: "+want {
			t.Errorf("the successor was told %q, want %q", got, "at rank 0: "+want)
		}
	})
}

func TestContext(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("before=%v", before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ring, _, predecessor := alone(t, 0, time.Hour)
				reason := errors.New("stop at this step")
				ctx, cancel := context.WithCancelCause(context.Background())
				if before {
					cancel(reason)
				} else {
					time.AfterFunc(time.Second, func() { cancel(reason) })
				}
				err := ring.AllReduce(ctx, make([]float32, 10))
				if !errors.Is(err, reason) {
					t.Errorf("all-reduce: %v, want %v", err, reason)
				}
				if again := ring.AllReduce(context.Background(), nil); !errors.Is(again, err) {
					t.Errorf("all-reduce on the broken ring: %v, want %v", again, err)
				}
				<-predecessor.Broken()
				if err := predecessor.Err(); !strings.Contains(err.Error(), reason.Error()) {
					t.Errorf("the neighbour was told %q", err)
				}
			})
		})
	}
}

func TestClose(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		ring, successor, predecessor := alone(t, 0, time.Minute)
		if err := errors.Join(ring.Close(), ring.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
		err := ring.AllReduce(context.Background(), make([]float32, 1))
		if !errors.Is(err, allreduce.ErrClosed) {
			t.Errorf("all-reduce after Close: %v", err)
		}
		var m allreduce.Message
		if err := awaitChunk(predecessor, &m); !errors.Is(err, allreduce.ErrLeft) {
			t.Errorf("the successor sees %v, want ErrLeft", err)
		}
		err = successor.Send(allreduce.Header{Length: 1}, allreduce.Bytes([]float32{1}))
		if !errors.Is(err, allreduce.ErrLeft) {
			t.Errorf("the predecessor sees %v, want ErrLeft", err)
		}
	})
	t.Run("busy", func(t *testing.T) {
		ring, _, _ := alone(t, 0, time.Minute)
		done := make(chan error)
		go func() { done <- ring.AllReduce(context.Background(), make([]float32, 9)) }()
		go ring.Close()
		if err := <-done; !errors.Is(err, allreduce.ErrClosed) {
			t.Errorf("all-reduce while Close is called: %v", err)
		}
	})
}

// TestNeighbourLeaves: a ring that still needs a neighbour fails when that has closed its ring.
func TestNeighbourLeaves(t *testing.T) {
	ring, successor, predecessor := alone(t, 0, time.Minute)
	successor.Close()
	predecessor.Close()
	err := ring.AllReduce(context.Background(), make([]float32, 10))
	if !errors.Is(err, allreduce.ErrLeft) || !strings.Contains(err.Error(), peer(1).String()) {
		t.Errorf("all-reduce: %v, want that rank 1 has left", err)
	}
}

func TestNoAllocations(t *testing.T) {
	rings := linktest.Rings(t, connect(2), generation, 64, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	bufs := [2][]float32{make([]float32, 1000), make([]float32, 1000)}
	ends, leaves := []int{300, 1000}, []int{1, 2}
	parts := [2][][]float32{{make([]float32, 1000)}, {make([]float32, 1000)}}
	both := func(rank int) error {
		ring, buf := rings[rank], bufs[rank]
		first, err := ring.Start(ctx, allreduce.Sum{Buf: buf[:500]})
		if err != nil {
			return err
		}
		second, err := ring.Start(ctx, allreduce.Sum{Buf: buf[500:]})
		if err != nil {
			return err
		}
		tree := allreduce.TreeSum{Buf: buf, Ends: leaves, Parts: parts[rank]}
		return errors.Join(first.Wait(ctx), second.Wait(ctx), ring.AllGather(ctx, buf, ends),
			ring.AllReduceTree(ctx, tree))
	}
	checkAllocations(t, "two all-reduces, an all-gather and a tree's sum", both)
}

// checkAllocations fails the test if the concurrent calls of two ranks allocate.
func checkAllocations(t *testing.T, what string, both func(rank int) error) {
	t.Helper()
	step, stepped := make(chan struct{}), make(chan error)
	go func() {
		for range step {
			stepped <- both(1)
		}
	}()
	defer close(step)
	allocated := testing.AllocsPerRun(100, func() {
		step <- struct{}{}
		if err := errors.Join(both(0), <-stepped); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > 0 {
		t.Errorf("%v allocations in %s", allocated, what)
	}
}
