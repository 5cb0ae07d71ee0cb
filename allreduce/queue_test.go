package allreduce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

// TestQueuedSums: queued sums of different lengths, with gathers and carries between them, have the
// same results as one by one, for each element.
func TestQueuedSums(t *testing.T) {
	for world := 1; world <= 8; world++ {
		rings := linktest.Rings(t, raggedRing(world), generation, 64, time.Minute)
		inPlace := linktest.Rings(t, connect(world), generation, 64, time.Minute)
		rng := rand.New(rand.NewPCG(uint64(world), 4))
		for range 20 {
			lengths := make([]int, 1+rng.IntN(10))
			for i := range lengths {
				lengths[i] = rng.IntN(4) * rng.IntN(120)
			}
			linktest.CheckQueued(t, rings, rng, lengths)
			linktest.CheckQueuedRounded(t, inPlace, rng, lengths)
		}
	}
}

// TestNoBarrierBetweenCollectives: a rank sends chunks of the next collective while it still waits
// for the last chunks of this one.
func TestNoBarrierBetweenCollectives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, successor, predecessor := alone(t, 0, time.Minute)
		var sums [2]*allreduce.Pending
		for i := range sums {
			var err error
			sums[i], err = ring.Start(context.Background(), allreduce.Sum{Buf: []float32{1, 2}})
			if err != nil {
				t.Fatal(err)
			}
		}
		send := func(sequence uint64, phase allreduce.Phase, offset int, value float32) {
			t.Helper()
			err := successor.Send(allreduce.Header{Generation: generation, Sequence: sequence,
				Phase: phase, Step: int(phase) - 1, Offset: offset, Length: 1, Total: 2,
			}, allreduce.Bytes([]float32{value}))
			if err != nil {
				t.Fatal(err)
			}
		}
		var m allreduce.Message
		receive := func(sequence uint64, phase allreduce.Phase) {
			t.Helper()
			err := awaitChunk(predecessor, &m)
			if err != nil || m.Header.Sequence != sequence || m.Header.Phase != phase {
				t.Fatalf("received {%v}, %v, want collective %d, %v", m.Header, err, sequence,
					phase)
			}
			m.Release()
		}
		receive(1, allreduce.ReduceScatter)
		send(1, allreduce.ReduceScatter, 0, 10)
		receive(1, allreduce.AllGather)
		receive(2, allreduce.ReduceScatter) // before any rank has gathered the first sum
		send(1, allreduce.AllGather, 1, 12)
		if err := sums[0].Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		send(2, allreduce.ReduceScatter, 0, 20)
		receive(2, allreduce.AllGather)
		send(2, allreduce.AllGather, 1, 22)
		if err := sums[1].Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestStartWaitsForRoom: a full queue makes Start wait, and the end of its context ends that.
func TestStartWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, _, _ := alone(t, 0, time.Hour)
		var sums []*allreduce.Pending
		ctx, cancel := context.WithCancelCause(context.Background())
		reason := errors.New("no more")
		time.AfterFunc(time.Second, func() { cancel(reason) })
		start := time.Now()
		for {
			p, err := ring.Start(ctx, allreduce.Sum{Buf: make([]float32, 2)})
			if err != nil {
				if !errors.Is(err, reason) || time.Since(start) != time.Second {
					t.Errorf("Start: %v after %v, want %v", err, time.Since(start), reason)
				}
				break
			}
			sums = append(sums, p)
		}
		if len(sums) != allreduce.MaxQueued {
			t.Errorf("%d collectives are on the way, want %d", len(sums), allreduce.MaxQueued)
		}
		for _, p := range sums {
			if err := p.Wait(context.Background()); !errors.Is(err, reason) {
				t.Fatalf("a collective of the broken ring: %v", err)
			}
		}
	})
}

// TestWaitEndsWithItsContext: the end of Wait's context breaks the ring and all queued collectives.
func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, _, _ := alone(t, 0, time.Hour)
		first, _ := ring.Start(context.Background(), allreduce.Sum{Buf: make([]float32, 2)})
		second, _ := ring.Start(context.Background(), allreduce.Sum{Buf: make([]float32, 2)})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		want := "collective 2: context deadline exceeded"
		if err := second.Wait(ctx); err == nil || err.Error() != want {
			t.Errorf("the second: %v, want %q", err, want)
		}
		if err := first.Wait(context.Background()); err == nil || err.Error() != want {
			t.Errorf("the first: %v, want %q", err, want)
		}
		defer func() {
			if recover() == nil {
				t.Error("no panic at a second Wait")
			}
		}()
		_ = first.Wait(context.Background())
	})
}

// TestCloseEndsQueued: Close ends all unfinished collectives and a waiting Start.
func TestCloseEndsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, _, _ := alone(t, 0, time.Hour)
		started := make(chan *allreduce.Pending, allreduce.MaxQueued)
		failed := make(chan error)
		go func() {
			for {
				p, err := ring.Start(context.Background(), allreduce.Sum{Buf: make([]float32, 2)})
				if err != nil {
					close(started)
					failed <- err
					return
				}
				started <- p
			}
		}()
		synctest.Wait()
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; !errors.Is(err, allreduce.ErrClosed) {
			t.Errorf("a Start that waits: %v", err)
		}
		for p := range started {
			if err := p.Wait(context.Background()); !errors.Is(err, allreduce.ErrClosed) {
				t.Errorf("a collective: %v", err)
			}
		}
	})
}

// TestLateToStart: a rank that starts one collective but not the next is accused in the next by its
// successor. The first is complete on all ranks.
func TestLateToStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const world, late = 4, 2
		rings := linktest.Rings(t, connect(world), generation, 64, 8*time.Second)
		errs := linktest.Each(world, func(rank int) error {
			var sums []*allreduce.Pending
			for i := range 3 {
				if rank == late && i == 1 {
					break
				}
				s := allreduce.Sum{Buf: make([]float32, 200)}
				p, err := rings[rank].Start(context.Background(), s)
				if err != nil {
					return err
				}
				sums = append(sums, p)
			}
			if err := sums[0].Wait(context.Background()); err != nil {
				return fmt.Errorf("the first: %w", err)
			}
			if rank == late {
				<-rings[rank].Broken()
				return nil
			}
			return sums[1].Wait(context.Background())
		})
		want := "collective 2, ring step 1 of 6, chunk 1 of 4, rank 2 (host-c:7000): " +
			"is alive, but no chunk came for 8s"
		for rank, err := range errs {
			if rank != late && (err == nil || !strings.HasSuffix(err.Error(), want)) {
				t.Errorf("rank %d: %v, want %q", rank, err, want)
			}
		}
	})
}
