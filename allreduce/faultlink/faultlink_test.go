package faultlink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"rondo/allreduce"
	"rondo/allreduce/faultlink"
	"rondo/allreduce/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	world      = 3
	generation = allreduce.Generation(2)
	floats     = 90
	faulty     = 1 // the rank whose links are disturbed
)

func peer(rank int) allreduce.Peer {
	return allreduce.Peer{Rank: allreduce.Rank(rank), Address: fmt.Sprint("host-", rank)}
}

func pass(faultlink.Direction, allreduce.Header) faultlink.Fault { return faultlink.Fault{} }

// disturbed connects ranks by memory links. The faulty rank's have hook, the others' a hook without
// faults.
func disturbed(world int, hook faultlink.Hook) []linktest.Node {
	nodes := make([]linktest.Node, world)
	for rank := range world {
		next := (rank + 1) % world
		nodes[rank].Successor, nodes[next].Predecessor = allreduce.Pipe(peer(rank), peer(next))
	}
	for rank := range nodes {
		h := pass
		if rank == faulty {
			h = hook
		}
		nodes[rank].Links = faultlink.Wrap(nodes[rank].Links, h)
	}
	return nodes
}

// TestLink runs the conformance suite with a hook that passes every message.
func TestLink(t *testing.T) {
	linktest.Run(t, func(_ *testing.T, world int) []linktest.Node { return disturbed(world, pass) })
}

// at disturbs one message of a direction and phase. Its segment is one that the rank both receives
// and sends in that phase.
func at(d faultlink.Direction, phase allreduce.Phase, f faultlink.Fault) faultlink.Hook {
	offset := 0
	if phase == allreduce.ReduceScatter {
		offset = 2 * floats / world
	}
	return func(direction faultlink.Direction, h allreduce.Header) faultlink.Fault {
		if direction == d && h.Phase == phase && h.Offset == offset {
			return f
		}
		return faultlink.Fault{}
	}
}

// sum runs an all-reduce with one disturbed rank, and returns each rank's error and result.
func sum(t *testing.T, hook faultlink.Hook) (errs []error, bufs [][]float32) {
	t.Helper()
	rings := linktest.Rings(t, disturbed(world, hook), generation, 64, 10*time.Second)
	bufs = make([][]float32, world)
	return linktest.Each(world, func(rank int) error {
		bufs[rank] = slices.Repeat([]float32{float32(rank + 1)}, floats)
		return rings[rank].AllReduce(context.Background(), bufs[rank])
	}), bufs
}

// TestDropKeepsFlight: a dropped chunk counts as sent, so dropping it must first make the link
// finish the payloads that MaxFlight promises the sender.
func TestDropKeepsFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drop := func(_ faultlink.Direction, h allreduce.Header) faultlink.Fault {
			if h.Offset > 0 {
				return faultlink.Fault{Action: faultlink.Drop}
			}
			return faultlink.Fault{}
		}
		nodes := disturbed(2, drop)
		to, from := nodes[faulty].Successor, nodes[1-faulty].Predecessor
		payload := make([]byte, 4)
		if err := to.Send(allreduce.Header{Length: 1, Total: 9}, payload); err != nil {
			t.Fatal(err)
		}
		var lost atomic.Int32
		done := make(chan error)
		go func() {
			for i := range allreduce.MaxFlight {
				h := allreduce.Header{Offset: i + 1, Length: 1, Total: 9}
				if err := to.Send(h, payload); err != nil {
					done <- err
					return
				}
				lost.Add(1)
			}
			done <- nil
		}()
		synctest.Wait()
		if n := lost.Load(); n != 0 {
			t.Errorf("%d chunks are lost while the link still reads the one before them", n)
		}
		var m allreduce.Message
		if err := from.Receive(&m); err != nil {
			t.Fatal(err)
		}
		m.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, node := range nodes {
			_ = node.Successor.Close()
			_ = node.Predecessor.Close()
		}
	})
}

// TestOrderFaults: the ring names the sender of a lost or doubled message, and both places,
// whichever end of the link had the fault.
func TestOrderFaults(t *testing.T) {
	for _, direction := range []faultlink.Direction{
		faultlink.ToSuccessor, faultlink.FromPredecessor,
	} {
		from, to := faulty, faulty+1
		if direction == faultlink.FromPredecessor {
			from, to = faulty-1, faulty
		}
		for action, name := range map[faultlink.Action]string{
			faultlink.Drop: "drop", faultlink.Duplicate: "duplicate",
		} {
			t.Run(fmt.Sprintf("%s %v", name, direction), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					errs, _ := sum(t, at(direction, allreduce.ReduceScatter,
						faultlink.Fault{Action: action}))
					var seen *allreduce.PeerError
					if !errors.As(errs[to], &seen) || seen.Peer != peer(from) ||
						!strings.Contains(errs[to].Error(), "this rank is at {collective 1") {
						t.Errorf("rank %d: %v, want that rank %d sent another chunk",
							to, errs[to], from)
					}
				})
			})
		}
	}
}

// TestCorruption: a bit that flips in the reduce-scatter gives all ranks the same wrong sum. One
// that flips in the all-gather makes the ranks differ.
func TestCorruption(t *testing.T) {
	const exponent = 30
	fault := faultlink.Fault{Action: faultlink.Corrupt, Bit: exponent}
	right := slices.Repeat([]float32{6}, floats)
	for _, direction := range []faultlink.Direction{
		faultlink.ToSuccessor, faultlink.FromPredecessor,
	} {
		errs, bufs := sum(t, at(direction, allreduce.ReduceScatter, fault))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for rank, buf := range bufs {
			if slices.Equal(buf, right) || !slices.Equal(buf, bufs[0]) {
				t.Errorf("%v, reduce-scatter: rank %d has %v, rank 0 %v; want the same wrong sum",
					direction, rank, buf[0], bufs[0][0])
			}
		}
		errs, bufs = sum(t, at(direction, allreduce.AllGather, fault))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		wrong := 0
		for _, buf := range bufs {
			if !slices.Equal(buf, right) {
				wrong++
			}
		}
		if wrong == 0 || wrong == world {
			t.Errorf("%v, all-gather: %d ranks of %d have a wrong sum", direction, wrong, world)
		}
	}
}

// TestDelay: the ring waits for a late message. A message that never arrives ends with the ring's
// own deadline: a delay does not outlive its link.
func TestDelay(t *testing.T) {
	for delay, late := range map[time.Duration]bool{time.Second: false, time.Hour: true} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			errs, bufs := sum(t, at(faultlink.ToSuccessor, allreduce.AllGather,
				faultlink.Fault{Delay: delay}))
			took := time.Since(start)
			if late {
				if errs[faulty+1] == nil || took < 5*time.Second || took > 12*time.Second {
					t.Errorf("after %v: %v", took, errs)
				}
				return
			}
			if err := errors.Join(errs...); err != nil || took != delay || bufs[0][0] != 6 {
				t.Errorf("after %v: %v, sum %v", took, err, bufs[0][0])
			}
		})
	}
}

// TestRun: Run is called once, before its message is sent.
func TestRun(t *testing.T) {
	var ran atomic.Int64
	errs, _ := sum(t, at(faultlink.FromPredecessor, allreduce.AllGather,
		faultlink.Fault{Run: func() { ran.Add(1) }}))
	if err := errors.Join(errs...); err != nil || ran.Load() != 1 {
		t.Errorf("ran %d times, %v; want once", ran.Load(), err)
	}
}

func cut(directions ...faultlink.Direction) faultlink.Hook {
	return func(d faultlink.Direction, _ allreduce.Header) faultlink.Fault {
		if slices.Contains(directions, d) {
			return faultlink.Fault{Action: faultlink.Drop}
		}
		return faultlink.Fault{}
	}
}

// TestIdleRingNoticesCuts: without any collective, a rank whose signs of life are lost is accused
// by the neighbour that misses them.
func TestIdleRingNoticesCuts(t *testing.T) {
	for direction, witness := range map[faultlink.Direction]int{
		faultlink.ToSuccessor:     faulty + 1,
		faultlink.FromPredecessor: faulty, // the faulty rank is the deaf one
		faultlink.ToPredecessor:   faulty - 1,
	} {
		t.Run(direction.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var silent atomic.Bool
				hook := cut(direction)
				rings := linktest.Rings(t, disturbed(world,
					func(d faultlink.Direction, h allreduce.Header) faultlink.Fault {
						if silent.Load() {
							return hook(d, h)
						}
						return faultlink.Fault{}
					}), generation, 64, 10*time.Second) // the chunk timeout is 5 s
				time.Sleep(time.Minute)
				for rank, ring := range rings {
					if ring.Err() != nil {
						t.Fatalf("rank %d: %v", rank, ring.Err())
					}
				}
				silent.Store(true)
				start := time.Now()
				<-rings[witness].Broken()
				if took := time.Since(start); took > 7*time.Second {
					t.Errorf("noticed after %v", took)
				}
				accused := peer(faulty)
				if witness == faulty {
					accused = peer(faulty - 1)
				}
				var seen *allreduce.PeerError
				if err := rings[witness].Err(); !errors.As(err, &seen) || seen.Peer != accused ||
					!strings.Contains(err.Error(), "silent for 5s") {
					t.Errorf("rank %d: %v, want that %v is silent", witness, err, accused)
				}
			})
		})
	}
}
