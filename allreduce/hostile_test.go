package allreduce_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

// hostile alters the messages of a link: change gets each header and payload and returns the
// messages to deliver instead.
type hostile struct {
	allreduce.Predecessor
	change func(letter) []letter
	queue  []letter
}

type letter struct {
	header  allreduce.Header
	payload []byte
}

func (h *hostile) Receive(m *allreduce.Message) error {
	for len(h.queue) == 0 {
		if err := h.Predecessor.Receive(m); err != nil {
			return err
		}
		if m.Header.Phase == allreduce.Heartbeat {
			return nil // their number depends on time
		}
		l := letter{m.Header, slices.Concat(m.Pieces...)}
		m.Release()
		h.queue = h.change(l)
	}
	next := h.queue[0]
	h.queue = h.queue[1:]
	m.Header, m.Pieces = next.header, [][]byte{next.payload}
	return nil
}

// hostileRing is a ring of three in which rank 1 gets altered messages from rank 0.
func hostileRing(change func(letter) []letter) []linktest.Node {
	nodes := connect(3)
	nodes[1].Predecessor = &hostile{Predecessor: nodes[1].Predecessor, change: change}
	return nodes
}

// TestWrongMessages: any message but the wanted chunk fails the collective, with an error that
// names the sender and both values.
func TestWrongMessages(t *testing.T) {
	header := func(change func(*allreduce.Header)) func(letter) []letter {
		return func(l letter) []letter {
			if l.header.Step == 2 {
				change(&l.header)
			}
			return []letter{l}
		}
	}
	for _, test := range []struct {
		name   string
		change func(letter) []letter
		want   []string
	}{
		{"stale generation", header(func(h *allreduce.Header) { h.Generation-- }),
			[]string{"generation 2,", "generation 3"}},
		{"newer generation", header(func(h *allreduce.Header) { h.Generation++ }),
			[]string{"generation 4,", "generation 3"}},
		{"sequence", header(func(h *allreduce.Header) { h.Sequence = 9 }),
			[]string{"sent {collective 9", "at {collective 1"}},
		{"phase", header(func(h *allreduce.Header) { h.Phase = allreduce.ReduceScatter }),
			[]string{"reduce-scatter step 3", "all-gather step 3"}},
		{"step", header(func(h *allreduce.Header) { h.Step = 3 }), []string{"step 4", "step 3"}},
		{"offset", header(func(h *allreduce.Header) { h.Offset++ }), []string{"[1:17]", "[0:16]"}},
		{"length", header(func(h *allreduce.Header) { h.Length-- }), []string{"[0:15]", "[0:16]"}},
		{"total", header(func(h *allreduce.Header) { h.Total = 96 }), []string{"of 96", "of 100"}},
		{"payload too short", func(l letter) []letter {
			l.payload = l.payload[:len(l.payload)-1]
			return []letter{l}
		}, []string{"sent 63 bytes", "[67:83]"}},
		{"payload too long", func(l letter) []letter {
			l.payload = append(l.payload, 0)
			return []letter{l}
		}, []string{"sent 65 bytes"}},
		{"lost", func(l letter) []letter {
			if l.header.Step == 2 && l.header.Offset == 0 {
				return nil
			}
			return []letter{l}
		}, []string{"[16:32]", "[0:16]"}},
		{"twice", func(l letter) []letter { return []letter{l, l} }, []string{"step 1", "at {"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rings := linktest.Rings(t, hostileRing(test.change), generation, 64, time.Minute)
			errs := linktest.Each(3, func(rank int) error {
				return rings[rank].AllReduce(context.Background(), make([]float32, 100))
			})
			if errs[1] == nil {
				t.Fatal("rank 1 took the message")
			}
			for _, want := range append(test.want, "rank 0 (host-a:7000)") {
				if !strings.Contains(errs[1].Error(), want) {
					t.Errorf("rank 1: %v, want %q in it", errs[1], want)
				}
			}
		})
	}
}

// TestUnlikeBuffers: ranks that differ in buffer length or collective all fail.
func TestUnlikeBuffers(t *testing.T) {
	ctx := context.Background()
	for name, call := range map[string]func(r *allreduce.Ring, rank int) error{
		"length": func(r *allreduce.Ring, rank int) error {
			return r.AllReduce(ctx, make([]float32, 100+rank))
		},
		"collective": func(r *allreduce.Ring, rank int) error {
			if rank == 1 {
				return r.AllGather(ctx, make([]float32, 100), []int{30, 60, 100})
			}
			return r.AllReduce(ctx, make([]float32, 100))
		},
		"ranges": func(r *allreduce.Ring, rank int) error {
			return r.AllGather(ctx, make([]float32, 100), []int{30 + rank, 60 + rank, 100})
		},
	} {
		t.Run(name, func(t *testing.T) {
			rings := linktest.Rings(t, connect(3), generation, 64, time.Minute)
			for rank, err := range linktest.Each(3, func(rank int) error {
				return call(rings[rank], rank)
			}) {
				if err == nil {
					t.Errorf("rank %d: no error", rank)
				}
			}
		})
	}
}

// FuzzMessages alters a ring's messages as the input says: lost, doubled, out of order, of another
// generation, offset or length. A collective then fails, or has the right sum on each rank that
// returns one. It never hangs.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1})
	f.Add([]byte{2, 0, 3, 0})
	f.Add([]byte{0, 4, 5, 6, 7, 8})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 3})
	f.Fuzz(func(t *testing.T, script []byte) {
		at := 0
		var held []letter
		change := func(l letter) []letter {
			kind := byte(0)
			if at < len(script) {
				kind = script[at]
			}
			at++
			var out []letter
			out, held = alter(l, kind, held)
			return out
		}
		synctest.Test(t, func(t *testing.T) { runAltered(t, change) })
	})
}

// alter applies one kind of fault to a message. held are messages kept back before.
func alter(l letter, kind byte, held []letter) (out, stillHeld []letter) {
	by := int(kind) / 10
	switch kind % 10 {
	case 1: // lost
		return nil, held
	case 2: // twice
		return []letter{l, l}, held
	case 3: // late
		return nil, append(held, l)
	case 4:
		l.header.Generation += allreduce.Generation(by)
	case 5:
		l.header.Sequence += uint64(by)
	case 6:
		l.header.Offset += by
	case 7:
		l.header.Length -= by
	case 8:
		l.payload = l.payload[:max(0, len(l.payload)-by)]
	case 9:
		l.header.Step += by
	}
	return append([]letter{l}, held...), nil
}

func plainSum(ring *allreduce.Ring, _ int, buf []float32) error {
	return ring.AllReduce(context.Background(), buf)
}

// treeOfThree sums over three ranks in a tree that leaves two nodes pending between them. The ranks
// have 3, 3 and 2 leaves, and buf is the sum of a rank's leaves.
func treeOfThree(ring *allreduce.Ring, rank int, buf []float32) error {
	s := allreduce.TreeSum{Buf: buf, Ends: []int{3, 6, 8}}
	first := []int{0, 3, 6}[rank]
	for range allreduce.Nodes(first, s.Ends[rank], 8) {
		s.Parts = append(s.Parts, make([]float32, len(buf)))
	}
	copy(s.Parts[0], buf)
	return ring.AllReduceTree(context.Background(), s)
}

func runAltered(t *testing.T, change func(letter) []letter) {
	const floats, value = 100, 1.5
	rings := linktest.Rings(t, hostileRing(change), generation, 64, time.Second)
	bufs := make([][]float32, 3)
	errs := linktest.Each(3, func(rank int) error {
		for i := range 3 {
			bufs[rank] = slices.Repeat([]float32{value}, floats)
			sum := plainSum
			if i == 1 {
				sum = treeOfThree
			}
			if err := sum(rings[rank], rank, bufs[rank]); err != nil {
				return err
			}
			for i, got := range bufs[rank] {
				if math.Float32bits(got) != math.Float32bits(3*value) {
					t.Errorf("rank %d: [%d] = %v, want %v", rank, i, got, 3*value)
				}
			}
		}
		return nil
	})
	failed := fmt.Sprint(errs)
	for rank, err := range errs {
		if err == nil && failed != "[<nil> <nil> <nil>]" {
			// Its last collective was complete before another rank's failed.
			select {
			case <-rings[rank].Broken():
			case <-time.After(time.Minute):
				t.Errorf("rank %d never learned of %v", rank, failed)
			}
		}
	}
}
