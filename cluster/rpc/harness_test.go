package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"rondo/cluster"
	"rondo/cluster/memstore"
	rondov1 "rondo/proto/rondo/v1"
)

func TestMain(m *testing.M) {
	// With the race detector, Go 1.26's runtime crashes if two Ps start timers of one bubble that
	// are due at once, as every dial of bufconn does. One P is enough, because time is simulated.
	runtime.GOMAXPROCS(1)
	goleak.VerifyTestMain(m)
}

// testJob is the job of all tests.
var testJob = cluster.Job{Workers: 2, MinWorkers: 1, Lanes: 4, JoinTimeout: time.Minute,
	PauseTimeout: time.Minute}

// network is a set of coordinators connected in memory, one of which may lead. It lives in one
// synctest bubble.
type network struct {
	t         *testing.T
	store     *memstore.Store // if set, it names the leader
	mu        sync.Mutex
	leader    string
	listeners map[string]*bufconn.Listener
	conns     []net.Conn // the clients' ends
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, listeners: make(map[string]*bufconn.Listener)}
}

// inBubble runs a test in a synctest bubble, and waits for gRPC's goroutines to block.
func inBubble(t *testing.T, test func(*testing.T, *network)) {
	synctest.Test(t, func(t *testing.T) { test(t, newNetwork(t)) })
}

func (n *network) find(ctx context.Context) (cluster.Leader, error) {
	if n.store != nil {
		return n.store.Leader(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leader == "" {
		return cluster.Leader{}, cluster.ErrNoLeader
	}
	return cluster.Leader{ID: n.leader, Address: n.leader}, nil
}

func (n *network) lead(s *Server) {
	n.mu.Lock()
	n.leader = s.id
	n.mu.Unlock()
	s.Lead()
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	listener := n.listeners[address]
	n.mu.Unlock()
	if listener == nil {
		return nil, fmt.Errorf("nobody listens at %s", address)
	}
	conn, err := listener.DialContext(ctx)
	if err == nil {
		n.mu.Lock()
		n.conns = append(n.conns, conn)
		n.mu.Unlock()
	}
	return conn, err
}

func (n *network) breakConnections() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		conn.Close()
	}
	n.conns = nil
}

func (n *network) listen(id string) *bufconn.Listener {
	listener := bufconn.Listen(1 << 16)
	n.mu.Lock()
	n.listeners[id] = listener
	n.mu.Unlock()
	n.t.Cleanup(func() { listener.Close() })
	return listener
}

// server starts a coordinator's service that does not lead.
func (n *network) server(id string) *Server {
	s, err := NewServer(id, testJob, n.find)
	if err != nil {
		n.t.Fatal(err)
	}
	server := s.GRPC()
	listener := n.listen(id)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	n.t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			n.t.Errorf("serving %s: %v", id, err)
		}
	})
	return s
}

func (n *network) client() *Client {
	c, err := NewClient(func(ctx context.Context) (string, error) {
		l, err := n.find(ctx)
		return l.Address, err
	}, ClientConfig{
		Dial: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(n.dial),
		},
		Log: slog.New(slog.NewTextHandler(n.t.Output(), nil)),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

func (n *network) reporter(id string) *Reporter {
	r, err := n.client().NewReporter(id)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.Close(ctx)
	})
	return r
}

// watcher collects events until the watch ends.
type watcher struct {
	mu     sync.Mutex
	events []string
	ended  chan error
}

func (n *network) watch() *watcher {
	w := &watcher{ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ended <- n.client().Watch(ctx, func(e *rondov1.Event) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, show(e))
			return nil
		})
	}()
	n.t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *watcher) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func (w *watcher) want(t *testing.T, want ...string) {
	t.Helper()
	if got := w.all(); !slices.Equal(got, want) {
		t.Errorf("watched %q, want %q", got, want)
	}
}

// taken collects the events that a server passes to the coordinator's loop.
type taken struct {
	mu     sync.Mutex
	events []cluster.Event
}

func take(t *testing.T, s *Server) *taken {
	c := &taken{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case e := <-s.Events():
				c.mu.Lock()
				c.events = append(c.events, e)
				c.mu.Unlock()
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return c
}

func (c *taken) all() []cluster.Event {
	synctest.Wait() // until all events are recorded
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

func report(t *testing.T, r *Reporter, events ...*rondov1.Event) {
	t.Helper()
	for _, e := range events {
		if err := r.Report(t.Context(), e); err != nil {
			t.Fatalf("Report(%v): %v", e, err)
		}
	}
}

func flush(t *testing.T, r *Reporter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Flush(ctx); err != nil {
		t.Fatalf("Flush: %v", err)
	}
}

// Events of the tests, each with a number that show prints.

func step(n int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Step{Step: &rondov1.StepEvent{Step: n}}}
}

func checkpoint(n int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Checkpoint{
		Checkpoint: &rondov1.CheckpointEvent{Step: n}}}
}

func done(n int64) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Done{Done: &rondov1.DoneEvent{Step: n}}}
}

func failure(f *rondov1.FailureEvent) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Failure{Failure: f}}
}

func show(e *rondov1.Event) string {
	switch k := e.Kind.(type) {
	case *rondov1.Event_Step:
		return fmt.Sprintf("step %d", k.Step.Step)
	case *rondov1.Event_Checkpoint:
		return fmt.Sprintf("checkpoint %d", k.Checkpoint.Step)
	case *rondov1.Event_Done:
		text := fmt.Sprintf("done %d stopped %t", k.Done.Step, k.Done.Stopped)
		if k.Done.Reason != "" {
			text += ", " + k.Done.Reason
		}
		return text
	case *rondov1.Event_Notice:
		return fmt.Sprintf("notice %s: %s", k.Notice.Id, k.Notice.Text)
	case *rondov1.Event_Failure:
		return fmt.Sprintf("failure %s usage %t", k.Failure.Text, k.Failure.Usage)
	case *rondov1.Event_Scale:
		return fmt.Sprintf("scale %d", k.Scale.Workers)
	}
	return fmt.Sprintf("%T", e.Kind)
}

func ring(phase cluster.Phase) cluster.Plan {
	return cluster.Plan{
		Generation: 1, Members: []cluster.Member{{ID: "w1"}, {ID: "w2"}},
		LaneEnds: []cluster.Lane{1, 2}, Phase: phase, Reason: "as the test has it",
	}
}
