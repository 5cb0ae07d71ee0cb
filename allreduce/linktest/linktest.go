// Package linktest is the conformance suite of links between the ranks of a ring. It tests the
// contract of allreduce.Link, and rings over the links. Each implementation runs it from its own
// tests. It imports allreduce, and only tests import it.
package linktest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"rondo/allreduce"
)

// Moment is the longest time for operations that must not wait for a timeout.
const Moment = 10 * time.Second

// generation is the generation of the suite's rings.
const generation = allreduce.Generation(7)

// Node is one rank's end of a newly formed ring.
type Node struct {
	allreduce.Links

	// Kill cuts the rank's connections silently, as the end of its process does. It is nil for
	// links that cannot lose a process.
	Kill func()
}

// Form connects the ranks of a ring of world ranks, at least 2. The suite closes the links.
type Form func(t *testing.T, world int) []Node

// Run runs the suite.
func Run(t *testing.T, form Form) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Form)
	}{
		{"Order", testOrder},
		{"Backpressure", testBackpressure},
		{"Flush", testFlush},
		{"Flight", testFlight},
		{"Heartbeats", testHeartbeats},
		{"CloseEndsCalls", testCloseEndsCalls},
		{"AbortReachesReceiver", testAbortReachesReceiver},
		{"AbortReachesSender", testAbortReachesSender},
		{"SenderLeaves", testSenderLeaves},
		{"ReceiverLeaves", testReceiverLeaves},
		{"Sums", testSums},
		{"Gathers", testGathers},
		{"Scatters", testScatters},
		{"Trees", testTrees},
		{"Queued", testQueued},
		{"RankCloses", testRankCloses},
		{"RankDies", testRankDies},
		{"IdleRanksLearn", testIdleRanksLearn},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, form) })
	}
}

// pair returns the link from rank 0 to rank 1 of a ring of two. The test's end closes both ranks'
// links.
func pair(t *testing.T, form Form) (allreduce.Successor, allreduce.Predecessor) {
	t.Helper()
	nodes := form(t, 2)
	t.Cleanup(func() {
		for _, node := range nodes {
			node.Predecessor.Close()
		}
		for _, node := range nodes {
			node.Successor.Close()
		}
	})
	s, p := nodes[0].Successor, nodes[1].Predecessor
	if s.Peer().Rank != 1 || p.Peer().Rank != 0 {
		t.Fatalf("rank 0 sends to %v, rank 1 receives from %v", s.Peer(), p.Peer())
	}
	return s, p
}

// chunk returns n floats of random bits, NaNs among them, and a header for them.
func chunk(rng *rand.Rand, sequence, n int) (allreduce.Header, []float32) {
	floats := make([]float32, n)
	for i := range floats {
		floats[i] = math.Float32frombits(rng.Uint32())
	}
	return allreduce.Header{
		Generation: generation,
		Sequence:   uint64(sequence),
		Phase:      allreduce.AllGather,
		Step:       sequence % 13,
		Offset:     sequence,
		Length:     n,
		Total:      sequence + n,
	}, floats
}

// receive receives one message and compares it with want and floats.
func receive(p allreduce.Predecessor, want allreduce.Header, floats []float32) error {
	var m allreduce.Message
	if err := p.Receive(&m); err != nil {
		return err
	}
	defer m.Release()
	if m.Header != want {
		return fmt.Errorf("received {%v}, want {%v}", m.Header, want)
	}
	if !slices.Equal(slices.Concat(m.Pieces...), allreduce.Bytes(floats)) {
		return fmt.Errorf("payload of {%v} is not what was sent", want)
	}
	return nil
}

// within runs f, and fails the test if f takes longer than Moment.
func within(t *testing.T, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(Moment):
		t.Fatalf("%s: no end within %v", what, Moment)
		return nil
	}
}

// soon is within for a function without an error.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	if err := within(t, what, func() error { f(); return nil }); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// broken waits for the link to break, and returns its error.
func broken(t *testing.T, link allreduce.Link) error {
	t.Helper()
	select {
	case <-link.Broken():
		return link.Err()
	case <-time.After(Moment):
		t.Fatalf("link to %v: not broken within %v", link.Peer(), Moment)
		return nil
	}
}

func checkAbort(t *testing.T, err error, reason string) {
	t.Helper()
	var abort *allreduce.AbortError
	if !errors.As(err, &abort) || abort.Reason != reason {
		t.Errorf("error %v, want an abort because of %q", err, reason)
	}
}

func testOrder(t *testing.T, form Form) {
	s, p := pair(t, form)
	sizes := []int{255, 256, 257, 4095, 4096, 4097, 16383, 65537, allreduce.MaxChunkBytes / 4}
	for n := 1; n <= 70; n++ {
		sizes = append(sizes, n)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var headers []allreduce.Header
	var payloads [][]float32
	for i, n := range sizes {
		h, floats := chunk(rng, i, n)
		headers, payloads = append(headers, h), append(payloads, floats)
	}
	sent := make(chan error, 1)
	go func() {
		for i := range headers {
			if err := s.Send(headers[i], allreduce.Bytes(payloads[i])); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.Flush()
	}()
	err := within(t, "receive", func() error {
		for i := range headers {
			if err := receive(p, headers[i], payloads[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := within(t, "send", func() error { return <-sent }); err != nil {
		t.Fatal(err)
	}
}

// testBackpressure: a link holds a bounded number of bytes and loses none.
func testBackpressure(t *testing.T, form Form) {
	s, p := pair(t, form)
	const chunks, bound = 40, 24 // chunks of 1 MiB; a link may hold at most bound
	h, floats := chunk(rand.New(rand.NewPCG(3, 4)), 0, allreduce.MaxChunkBytes/4)
	sent := make(chan int, chunks)
	failed := make(chan error, 1)
	go func() {
		for i := range chunks {
			if err := s.Send(h, allreduce.Bytes(floats)); err != nil {
				failed <- err
				return
			}
			sent <- i
		}
		failed <- nil
	}()
	last := 0
	for quiet := false; !quiet; {
		select {
		case last = <-sent:
			if last > bound {
				t.Fatalf("%d chunks were sent before any was received", last)
			}
		case <-time.After(200 * time.Millisecond):
			quiet = true
		}
	}
	err := within(t, "receive", func() error {
		for range chunks - 1 {
			var m allreduce.Message
			if err := p.Receive(&m); err != nil {
				return err
			}
			m.Release()
		}
		return receive(p, h, floats)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := within(t, "send", func() error { return <-failed }); err != nil {
		t.Fatal(err)
	}
}

// testFlush: after Flush the sender may overwrite the payload.
func testFlush(t *testing.T, form Form) {
	s, p := pair(t, form)
	rng := rand.New(rand.NewPCG(5, 6))
	for i, n := range []int{1, 200, 300, 100_000, allreduce.MaxChunkBytes / 4} {
		h, floats := chunk(rng, i, n)
		want := slices.Clone(floats)
		received := make(chan error, 1)
		go func() { received <- receive(p, h, want) }()
		err := within(t, "send and flush", func() error {
			if err := s.Send(h, allreduce.Bytes(floats)); err != nil {
				return err
			}
			return s.Flush()
		})
		if err != nil {
			t.Fatal(err)
		}
		clear(floats)
		if err := within(t, "receive", func() error { return <-received }); err != nil {
			t.Fatal(err)
		}
	}
}

// testFlight: the sender may overwrite a payload after it has sent MaxFlight more.
func testFlight(t *testing.T, form Form) {
	s, p := pair(t, form)
	const messages, floats = 40, 10_000
	received := make(chan error, 1)
	go func() {
		var m allreduce.Message
		for i := range messages {
			if err := p.Receive(&m); err != nil {
				received <- err
				return
			}
			want := allreduce.Bytes(slices.Repeat([]float32{float32(i)}, m.Header.Length))
			same := slices.Equal(slices.Concat(m.Pieces...), want)
			m.Release()
			if !same {
				received <- fmt.Errorf("message %d is not what was sent", i)
				return
			}
		}
		received <- nil
	}()
	var slots [allreduce.MaxFlight + 1][floats]float32
	err := within(t, "send", func() error {
		for i := range messages {
			slot := slots[i%len(slots)][:]
			for j := range slot {
				slot[j] = float32(i)
			}
			h := allreduce.Header{Generation: generation, Phase: allreduce.AllGather,
				Sequence: uint64(i), Length: floats, Total: floats}
			if err := s.Send(h, allreduce.Bytes(slot)); err != nil {
				return err
			}
		}
		return s.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := within(t, "receive", func() error { return <-received }); err != nil {
		t.Fatal(err)
	}
}

// testHeartbeats: a message without payload keeps its place in the stream. The receiver's beats
// arrive even while it takes no chunks.
func testHeartbeats(t *testing.T, form Form) {
	s, p := pair(t, form)
	heartbeat := allreduce.Header{Generation: generation, Phase: allreduce.Heartbeat}
	h, floats := chunk(rand.New(rand.NewPCG(12, 13)), 0, 1000)
	err := within(t, "send", func() error {
		return errors.Join(s.Send(heartbeat, nil), s.Send(h, allreduce.Bytes(floats)),
			s.Send(heartbeat, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = within(t, "receive", func() error {
		return errors.Join(receive(p, heartbeat, nil), receive(p, h, floats),
			receive(p, heartbeat, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	failed := fill(t, s)
	for want := uint64(1); want <= 2; want++ {
		soon(t, "beat", func() {
			for s.Beats() < want {
				p.Beat() // repeated, because a call may do nothing
				runtime.Gosched()
			}
		})
	}
	soon(t, "close", func() { p.Close() })
	p.Beat() // does nothing on a closed link
	_ = within(t, "send", func() error { return <-failed })
}

// fill sends until the link takes no more or fails. The channel receives the error.
func fill(t *testing.T, s allreduce.Successor) <-chan error {
	t.Helper()
	h, floats := chunk(rand.New(rand.NewPCG(7, 8)), 0, allreduce.MaxChunkBytes/4)
	sent, failed := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			if err := s.Send(h, allreduce.Bytes(floats)); err != nil {
				failed <- err
				return
			}
			select {
			case sent <- struct{}{}:
			default:
			}
		}
	}()
	for {
		select {
		case <-sent:
		case <-time.After(200 * time.Millisecond):
			return failed
		}
	}
}
