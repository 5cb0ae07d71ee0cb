package grpclink_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
	"rondo/internal/port"
)

// silence is the rings' chunk timeout: short, but long enough for a busy machine.
const silence = time.Second

func ringOf(t *testing.T, rank, world int, links allreduce.Links) *allreduce.Ring {
	t.Helper()
	ring, err := allreduce.New(allreduce.Config{
		Rank: allreduce.Rank(rank), World: world, Generation: 1,
		ChunkTimeout: silence, StepTimeout: linktest.Moment,
	}, links)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// TestLostNeighbourHoldsNobodyUp: a neighbour is killed, or stopped in a collective or while idle.
// The ring notices within the chunk timeout. Close then takes no longer than the attempt to tell
// the neighbour.
func TestLostNeighbourHoldsNobodyUp(t *testing.T) {
	const (
		world, lost = 3, 1
		notice      = 5 * silence // 1.25 times silence on an idle machine
		leave       = time.Second // covers the 250 ms that Abort may take
	)
	for name, test := range map[string]struct {
		busy bool
		lose func(w *worker)
	}{
		"killed":          {true, func(w *worker) { w.kill() }},
		"killed idle":     {false, func(w *worker) { w.kill() }},
		"stopped":         {true, func(w *worker) { w.stop() }},
		"stopped idle":    {false, func(w *worker) { w.stop() }},
		"stopped planned": {false, nil}, // the others learn of it from a plan
	} {
		t.Run(name, func(t *testing.T) {
			workers, nodes := formWorkers(t, world, grpclink.ByTCP, 0)
			rings := make([]*allreduce.Ring, world)
			for rank := range rings {
				rings[rank] = ringOf(t, rank, world, nodes[rank].Links)
			}
			first := linktest.Each(world, func(rank int) error {
				return rings[rank].AllReduce(context.Background(), make([]float32, 1000))
			})
			if err := errors.Join(first...); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if test.lose == nil {
				workers[lost].stop()
				for _, ring := range rings {
					ring.Break(errors.New("superseded"))
				}
			} else {
				test.lose(workers[lost])
			}
			linktest.Each(world, func(rank int) error {
				if test.busy && rank != lost {
					return rings[rank].AllReduce(context.Background(), make([]float32, 4<<20))
				}
				return nil
			})
			for rank, ring := range rings {
				if rank == lost {
					continue
				}
				await(t, ring.Broken(), "the end of the ring")
				noticed := time.Since(start)
				began := time.Now()
				ring.Close()
				closed := time.Since(began)
				t.Logf("rank %d: broken after %v, closed in %v: %v",
					rank, noticed, closed, ring.Err())
				if noticed > notice || closed > leave {
					t.Errorf("rank %d: broken after %v, closed in %v", rank, noticed, closed)
				}
			}
			workers[lost].kill() // releases the stopped worker
			rings[lost].Close()
		})
	}
}

// TestNextGenerationDoesNotWaitForTheLast: a worker forms the next ring with a neighbour while the
// last ring's link is still open and full.
func TestNextGenerationDoesNotWaitForTheLast(t *testing.T) {
	workers, old := formWorkers(t, 2, grpclink.ByTCP, 0)
	failed := make(chan error, 1)
	go func() {
		h := allreduce.Header{Generation: 1, Phase: allreduce.AllGather,
			Length: allreduce.MaxChunkBytes / 4, Total: allreduce.MaxChunkBytes / 4}
		for {
			if err := old[0].Successor.Send(h, make([]byte, 4*h.Length)); err != nil {
				failed <- err
				return
			}
		}
	}()
	addresses := []string{workers[0].address, workers[1].address}
	links := make([]allreduce.Links, 2)
	start := time.Now()
	for rank, err := range linktest.Each(2, func(rank int) (err error) {
		next := seat(rank, 2)
		next.Generation = 2
		links[rank], err = grpclink.Connect(context.Background(), workers[rank].server, next,
			addresses, workers[rank].dial)
		return err
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	t.Logf("connected in %v", time.Since(start))
	for rank := range links {
		for _, link := range []allreduce.Link{links[rank].Predecessor, links[rank].Successor,
			old[rank].Predecessor, old[rank].Successor} {
			link.Abort("done")
			link.Close()
		}
	}
	<-failed
}

// TestReachedSoon: a successor that starts is reached soon, however long it was absent. The test
// has three tries, because a busy machine can delay it.
func TestReachedSoon(t *testing.T) {
	const (
		soon  = 500 * time.Millisecond // covers lastRetry and a busy machine
		tries = 3
	)
	for _, absent := range []time.Duration{5 * time.Millisecond, time.Second} {
		best := time.Hour
		for i := 0; i < tries && best > soon; i++ {
			best = min(best, reached(t, absent))
		}
		if best > soon {
			t.Errorf("absent for %v, reached %v later", absent, best)
		}
	}
}

// reached returns the time to reach a successor after it was absent for a while.
func reached(t *testing.T, absent time.Duration) time.Duration {
	t.Helper()
	address := port.ForTest(t).Address()
	dialled := make(chan time.Time, 1)
	go func() {
		_, err := grpclink.Dial(context.Background(), address, seat(0, 2),
			grpclink.DialConfig{Timeout: linktest.Moment})
		if err == nil || !strings.Contains(err.Error(), "unknown service") {
			t.Errorf("Dial: %v", err)
		}
		dialled <- time.Now()
	}()
	time.Sleep(absent) // the measured time starts here
	up := serveNothing(t, address)
	took := (<-dialled).Sub(up)
	t.Logf("absent for %v, reached %v later", absent, took)
	return took
}

// serveNothing starts a gRPC server without services at address, and returns the time of its start.
func serveNothing(t *testing.T, address string) time.Time {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	g := grpc.NewServer()
	go g.Serve(listener)
	t.Cleanup(g.Stop)
	return up
}

// mute returns the address of a peer that accepts connections and sends only words on each.
func mute(t *testing.T, words []byte) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go io.Copy(io.Discard, conn)
			conn.Write(words)
		}
	}()
	t.Cleanup(func() { listener.Close(); <-ended })
	return listener.Addr().String()
}

// settings is the first frame of an HTTP/2 server.
var settings = []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}

// TestMutePeers: a successor that accepts and never answers is reported at the dial's deadline. A
// predecessor that connects but never calls is reported at Accept's.
func TestMutePeers(t *testing.T) {
	for name, words := range map[string][]byte{
		"no preface": nil, "no headers": settings, "garbage": []byte("HTTP/1.1 418 teapot\r\n\r\n"),
	} {
		t.Run("successor/"+name, func(t *testing.T) {
			address := mute(t, words)
			start := time.Now()
			_, err := grpclink.Dial(context.Background(), address, seat(0, 2),
				grpclink.DialConfig{Timeout: brief})
			checkMute(t, err, "rank 1 ("+address+")", time.Since(start))
		})
	}
	for name, words := range map[string]string{
		"no preface": "", "no headers": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + string(settings),
	} {
		t.Run("predecessor/"+name, func(t *testing.T) {
			w := startWorker(t, "opticks", grpclink.ServerConfig{})
			conn, err := net.Dial("tcp", w.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(words)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), brief)
			defer cancel()
			_, err = w.server.Accept(ctx, seat(1, 2), "host-a:7000")
			checkMute(t, err, "rank 0 (host-a:7000)", time.Since(start))
		})
	}
	t.Run("both", func(t *testing.T) {
		w := startWorker(t, "opticks", grpclink.ServerConfig{})
		address := mute(t, settings)
		cfg := w.dial
		cfg.Timeout = brief
		start := time.Now()
		_, err := grpclink.Connect(context.Background(), w.server, seat(0, 2),
			[]string{w.address, address}, cfg)
		checkMute(t, err, "rank 1 ("+address+")", time.Since(start))
	})
}

func checkMute(t *testing.T, err error, who string, took time.Duration) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), who) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the deadline, and %s named", err, who)
	}
	if took < brief || took > linktest.Moment/2 {
		t.Errorf("it took %v, want about %v", took, brief)
	}
}
