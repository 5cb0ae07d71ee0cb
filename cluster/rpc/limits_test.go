package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// stuck is a coordinator that accepts every call and never answers.
type stuck struct {
	rondov1.UnimplementedCoordinatorServer
}

func (stuck) Stop(ctx context.Context, _ *rondov1.StopRequest) (*rondov1.StopResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuck) Scale(ctx context.Context, _ *rondov1.ScaleRequest) (*rondov1.ScaleResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuck) Watch(_ *rondov1.WatchRequest,
	stream grpc.ServerStreamingServer[rondov1.Record]) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (stuck) Report(stream reportStream) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestSilentPeer: a coordinator that accepts connections or calls and never answers delays its
// callers only shortly.
func TestSilentPeer(t *testing.T) {
	peers := map[string]func(*network){
		"accepts connections": func(n *network) { n.listen("mute") },
		"accepts calls": func(n *network) {
			server := grpc.NewServer()
			rondov1.RegisterCoordinatorServer(server, stuck{})
			listener := n.listen("mute")
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(listener) }()
			n.t.Cleanup(func() {
				server.Stop()
				<-ended
			})
		},
	}
	for name, start := range peers {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				n.leader = "mute"
				start(n)
				silentPeer(t, n)
			})
		})
	}
}

func silentPeer(t *testing.T, n *network) {
	r := n.reporter("w1")
	calls := map[string]func(context.Context) error{
		"Watch": func(ctx context.Context) error {
			return n.client().Watch(ctx, func(*rondov1.Event) error { return nil })
		},
		"Stop":  func(ctx context.Context) error { return n.client().Stop(ctx, "") },
		"Scale": func(ctx context.Context) error { return n.client().Scale(ctx, 2) },
	}
	for name, call := range calls {
		began := time.Now()
		err := call(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no coordinator answered for 30s") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 45*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	report(t, r, done(1))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	began := time.Now()
	err := r.Close(ctx)
	if err == nil || !strings.Contains(err.Error(), "1 events still wait") {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// TestReporterLeavesASilentLeader: a worker leaves a leader that does not answer within the answer
// timeout, and finds its successor.
func TestReporterLeavesASilentLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		n.leader = "mute"
		n.listen("mute")
		r := n.reporter("w1")
		report(t, r, done(1))
		synctest.Wait()
		s := n.server("c1")
		n.lead(s)
		said := take(t, s)
		began := time.Now()
		flush(t, r)
		if took := time.Since(began); took > answerTimeout+2*pauseMax {
			t.Errorf("the new leader was told only after %v", took)
		}
		if got := said.all(); len(got) != 1 {
			t.Errorf("it was told %v", got)
		}
	})
}

// TestNobodyLeads: a watcher gives up although a coordinator that does not lead answers.
func TestNobodyLeads(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		n.server("c1")
		n.leader = "c1"
		began := time.Now()
		err := n.client().Watch(t.Context(), func(*rondov1.Event) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "no coordinator answered for 30s") ||
			!strings.Contains(err.Error(), "c1 is about to lead") {
			t.Errorf("Watch: %v", err)
		}
		if took := time.Since(began); took > 35*time.Second {
			t.Errorf("Watch took %v", took)
		}
	})
}

// TestQueueIsBounded: without a leader the oldest steps are dropped, and Report of a step never
// waits. Other events wait until their deadline only.
func TestQueueIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		r := n.reporter("w1")
		began := time.Now()
		for i := range int64(QueueLimit + 10) {
			report(t, r, step(i))
		}
		for i := range int64(QueueLimit - 1) {
			report(t, r, checkpoint(i))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("with room for all but steps: %v", took)
		}
		report(t, r, done(7)) // takes the last step's place
		report(t, r, step(0)) // finds no room and is dropped
		if took := time.Since(began); took != 0 {
			t.Errorf("a step without room: %v", took)
		}
		err := r.Report(t.Context(), checkpoint(9999))
		if took := time.Since(began); err == nil || took != queueTimeout {
			t.Errorf("a full queue: %v after %v", err, took)
		}
		s := n.server("c1")
		n.lead(s)
		said := take(t, s)
		flush(t, r)
		if got := said.all(); len(got) != 1 {
			t.Errorf("the coordinator was told %v", got)
		}
		s.Planned(cluster.Plan{Phase: cluster.Ended})
		w := n.watch()
		<-w.ended
		got := w.all()
		if len(got) != QueueLimit || got[0] != "checkpoint 0" ||
			got[QueueLimit-2] != fmt.Sprintf("checkpoint %d", QueueLimit-2) {
			t.Errorf("%d events, from %q to %q", len(got), got[0], got[len(got)-1])
		}
	})
}

// TestSlowWatcher: a watcher that does not read delays no other, and misses steps only.
func TestSlowWatcher(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		started, goOn := make(chan struct{}), make(chan struct{})
		var got []string
		ended := make(chan error, 1)
		go func() {
			ended <- n.client().Watch(t.Context(), func(e *rondov1.Event) error {
				if len(got) == 0 {
					close(started)
					<-goOn
				}
				got = append(got, show(e))
				return nil
			})
		}()
		r := n.reporter("w1")
		report(t, r, checkpoint(0))
		<-started
		const steps = 4 * HistoryLimit
		for i := range int64(steps) {
			report(t, r, step(i))
			if i%100 == 99 {
				report(t, r, checkpoint(i))
				flush(t, r)
			}
		}
		flush(t, r)
		s.Planned(cluster.Plan{Phase: cluster.Ended})
		close(goOn)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		checkpoints := 0
		for _, e := range got {
			if strings.HasPrefix(e, "checkpoint") {
				checkpoints++
			}
		}
		if want := 1 + steps/100; checkpoints != want {
			t.Errorf("%d checkpoints, want %d", checkpoints, want)
		}
		if len(got) >= steps {
			t.Errorf("%d events: nothing was dropped, and the test shows nothing", len(got))
		}
		last := got[len(got)-1]
		if !strings.HasPrefix(last, "done ") || last == "done 0 stopped true" {
			t.Errorf("the last event is %q", got[len(got)-1])
		}
	})
}
