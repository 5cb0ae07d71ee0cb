package allreduce_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

// TestIdleRingLives: a ring without collectives lives as long as its ranks. A rank that left in
// good order does not count as dead.
func TestIdleRingLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rings := linktest.Rings(t, connect(3), generation, 0, 10*time.Second)
		time.Sleep(time.Hour)
		rings[1].Close()
		time.Sleep(time.Hour)
		for _, rank := range []int{0, 2} {
			if err := rings[rank].Err(); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		err := rings[2].AllReduce(context.Background(), make([]float32, 10))
		if !errors.Is(err, allreduce.ErrLeft) {
			t.Errorf("all-reduce: %v, want that rank 1 has left", err)
		}
	})
}

// TestSilence: each end of a link reports a silent neighbour: after the chunk timeout if it was
// heard before, and otherwise after the step timeout, as its ring may still be forming. This holds
// in a collective and without one.
func TestSilence(t *testing.T) {
	const step, chunk = 10 * time.Second, 5 * time.Second
	for name, test := range map[string]struct {
		busy       bool
		breath     time.Duration // how long the neighbour lives
		stream     bool          // what it sends afterwards: true: heartbeats; false: beats
		atLeast    time.Duration
		atMost     time.Duration
		neverHeard bool
	}{
		"idle, no heartbeats": {breath: time.Minute, atLeast: chunk, atMost: chunk},
		"idle, no signs of life": {breath: time.Minute, stream: true, atLeast: chunk,
			atMost: chunk * 5 / 4},
		"busy, no heartbeats": {busy: true, breath: time.Minute, atLeast: chunk, atMost: chunk},
		"never heard":         {neverHeard: true, atLeast: step, atMost: step},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ring, successor, predecessor := alone(t, 0, step)
				heartbeat := allreduce.Header{Generation: generation, Phase: allreduce.Heartbeat}
				start := time.Now()
				lives := func() bool { return time.Since(start) < test.breath && !test.neverHeard }
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for ring.Err() == nil && !test.neverHeard {
						if test.stream || lives() {
							successor.Send(heartbeat, nil)
						}
						if !test.stream || lives() {
							predecessor.Beat()
						}
						time.Sleep(time.Second)
					}
				}()
				defer func() { <-ended }()
				if test.busy {
					time.Sleep(test.breath)
					ring.AllReduce(context.Background(), make([]float32, 10))
				}
				<-ring.Broken()
				var seen *allreduce.PeerError
				if err := ring.Err(); !errors.As(err, &seen) || seen.Peer != peer(1) ||
					!strings.Contains(err.Error(), "rank 1 (host-b:7000): silent for") {
					t.Errorf("%v, want that rank 1 is silent", err)
				}
				took := time.Since(start) - test.breath
				if took < test.atLeast-time.Second || took > test.atMost {
					t.Errorf("noticed after %v, want %v to %v", took, test.atLeast, test.atMost)
				}
			})
		})
	}
}

// TestSilent: when a ring breaks, for whatever reason, each rank knows which neighbour had nearly
// been silent for too long. Ranks that are lost together are all noticed in this way.
func TestSilent(t *testing.T) {
	const chunk = 5 * time.Second
	for silent, want := range map[time.Duration]bool{chunk / 2: false, chunk * 9 / 10: true} {
		synctest.Test(t, func(t *testing.T) {
			ring, successor, predecessor := alone(t, 0, 2*chunk)
			heartbeat := allreduce.Header{Generation: generation, Phase: allreduce.Heartbeat}
			for range 60 {
				predecessor.Beat()
				if err := successor.Send(heartbeat, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
			time.Sleep(silent - time.Second)
			ring.Break(errors.New("superseded by generation 4"))
			if got, found := ring.Silent(); found != want || found && got != peer(1) {
				t.Errorf("after %v of silence %v counts as silent: %v", silent, got, found)
			}
		})
	}
}

// TestBreak: a rank that breaks the ring tells the others why, also between collectives.
func TestBreak(t *testing.T) {
	rings := linktest.Rings(t, connect(3), generation, 0, time.Minute)
	rings[1].Break(errors.New("superseded by generation 4"))
	for _, rank := range []int{0, 2} {
		<-rings[rank].Broken()
		var hearsay *allreduce.AbortError
		if err := rings[rank].Err(); !errors.As(err, &hearsay) ||
			hearsay.Reason != "at rank 1: superseded by generation 4" {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestUnreadHeartbeats: unread heartbeats fill the link and no more. The collective behind them
// still ends at its deadline, and so does Close.
func TestUnreadHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leaveGrace = 250 * time.Millisecond
		ring, successor, predecessor := alone(t, 0, 10*time.Second)
		breathe(t, successor, predecessor)
		time.Sleep(time.Hour)
		if err := ring.Err(); err != nil {
			t.Fatalf("an idle ring whose neighbours live: %v", err)
		}
		idle, _, _ := alone(t, 0, time.Hour)
		time.Sleep(time.Hour / 2) // its heartbeats have filled the link too
		start := time.Now()
		if err := idle.Close(); err != nil || time.Since(start) != leaveGrace {
			t.Errorf("Close: %v after %v, want %v", err, time.Since(start), leaveGrace)
		}
		start = time.Now()
		err := ring.AllReduce(context.Background(), make([]float32, 10))
		if took := time.Since(start); err == nil || took != 10*time.Second {
			t.Errorf("all-reduce: %v after %v, want the step timeout", err, took)
		}
	})
}

// TestEnded: a sum's time is that of its end, however late somebody waits for it.
func TestEnded(t *testing.T) {
	type pending interface{ Wait(context.Context) error }
	synctest.Test(t, func(t *testing.T) {
		rings := linktest.Rings(t, connect(2), generation, 0, 10*time.Second)
		rack := newPatientRack(t, []string{"a", "a", "b", "b"}, 10*time.Second)
		for name, starts := range map[string]struct {
			ranks int
			start func(rank int, s allreduce.Sum) (pending, error)
		}{
			"ring": {2, func(rank int, s allreduce.Sum) (pending, error) {
				return rings[rank].Start(t.Context(), s)
			}},
			"hierarchy": {4, func(rank int, s allreduce.Sum) (pending, error) {
				return rack.hierarchies[rank].Start(t.Context(), s)
			}},
		} {
			started, ended := make([]pending, starts.ranks), make([]time.Time, starts.ranks)
			want := time.Now()
			for rank := range started {
				var err error
				started[rank], err = starts.start(rank,
					allreduce.Sum{Buf: make([]float32, 100), Ended: &ended[rank]})
				if err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
			for rank, p := range started {
				if err := p.Wait(t.Context()); err != nil || !ended[rank].Equal(want) {
					t.Errorf("%s, rank %d: %v, ended %v; want %v", name, rank, err, ended[rank],
						want)
				}
			}
		}
	})
}
