package grpclink_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
)

// worker is one process of a test: its listener, its gRPC server and its connections.
type worker struct {
	server  *grpclink.Server
	address string
	kill    func()
	stop    func() // like SIGSTOP: the connections stay open, and nothing is read or written
	dial    grpclink.DialConfig
}

// startWorker serves a ring of job on loopback TCP until the test ends.
func startWorker(t testing.TB, job string, cfg grpclink.ServerConfig) *worker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := grpclink.NewServer(job, cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpclink.ServerOptions(nil)...)
	server.Register(g)
	conns := &connections{listeners: []net.Listener{listener}, stopped: make(chan struct{})}
	if local := server.ListenLocal(); local != nil {
		conns.listeners = append(conns.listeners, local)
	}
	for _, listener := range conns.listeners {
		go g.Serve(kept{listener, conns})
	}
	t.Cleanup(g.Stop)
	return &worker{
		server:  server,
		address: listener.Addr().String(),
		kill:    conns.cut,
		stop:    conns.stop,
		dial:    grpclink.DialConfig{Dialer: conns.dial, Timeout: 10 * time.Second},
	}
}

// connections holds all of a worker's connections, to cut them as its death would.
type connections struct {
	listeners []net.Listener

	mu   sync.Mutex
	all  []net.Conn
	dead bool

	stopped chan struct{}
}

// socketBytes is the kernel's buffer for a worker that does not read.
const socketBytes = 64 << 10

// stoppable is a connection whose worker can be stopped.
type stoppable struct {
	net.Conn
	stopped <-chan struct{}
	closed  chan struct{}
	once    sync.Once
}

func (s *stoppable) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// hold blocks until the connection is closed if the worker is stopped.
func (s *stoppable) hold() {
	select {
	case <-s.stopped:
		<-s.closed
	default:
	}
}

func (s *stoppable) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.hold()
	return n, err
}

func (s *stoppable) Write(b []byte) (int, error) {
	s.hold()
	return s.Conn.Write(b)
}

func (c *connections) keep(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		conn.Close()
		return nil, net.ErrClosed
	}
	conn = &stoppable{Conn: conn, stopped: c.stopped, closed: make(chan struct{})}
	c.all = append(c.all, conn)
	return conn, nil
}

// kept is a listener that records its worker's connections.
type kept struct {
	net.Listener
	conns *connections
}

func (k kept) Accept() (net.Conn, error) { return k.conns.keep(k.Listener.Accept()) }

func (c *connections) dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(address, "@") {
		network = "unix"
	}
	return c.keep((&net.Dialer{}).DialContext(ctx, network, address))
}

// stop stops the worker's reads and writes, and shrinks its kernel buffers.
func (c *connections) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.stopped)
	for _, conn := range c.all {
		if tcp, ok := conn.(*stoppable).Conn.(*net.TCPConn); ok {
			tcp.SetReadBuffer(socketBytes)
		}
	}
}

func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	for _, listener := range c.listeners {
		listener.Close()
	}
	for _, conn := range c.all {
		conn.Close()
	}
}

func seat(rank, world int) grpclink.Seat {
	return grpclink.Seat{
		Job:        "opticks",
		Generation: 1,
		Rank:       allreduce.Rank(rank),
		World:      world,
	}
}

// form connects world workers in a ring whose chunks travel by way.
func form(t testing.TB, world int, way grpclink.Way) []linktest.Node {
	t.Helper()
	// The conformance suite requires each Abort's reason to arrive, also on a busy machine.
	_, nodes := formWorkers(t, world, way, linktest.Moment/2)
	return nodes
}

func formWorkers(
	t testing.TB, world int, way grpclink.Way, abortGrace time.Duration,
) ([]*worker, []linktest.Node) {
	t.Helper()
	workers, addresses := make([]*worker, world), make([]string, world)
	for rank := range world {
		workers[rank] = startWorker(t, "opticks", grpclink.ServerConfig{Way: way})
		workers[rank].dial.Way = way
		workers[rank].dial.AbortGrace = abortGrace
		addresses[rank] = workers[rank].address
	}
	nodes := make([]linktest.Node, world)
	for rank, err := range linktest.Each(world, func(rank int) (err error) {
		w := workers[rank]
		nodes[rank].Kill = w.kill
		t.Cleanup(w.kill)
		nodes[rank].Links, err = grpclink.Connect(
			context.Background(), w.server, seat(rank, world), addresses, w.dial)
		return err
	}) {
		if err != nil {
			t.Fatal(fmt.Errorf("rank %d: %w", rank, err))
		}
	}
	return workers, nodes
}

func TestLink(t *testing.T) {
	linktest.Run(t, func(t *testing.T, world int) []linktest.Node {
		return form(t, world, grpclink.ByTCP)
	})
}

// BenchmarkAllReduce times all-reduces for each Way.
func BenchmarkAllReduce(b *testing.B) {
	for _, way := range []grpclink.Way{grpclink.ByTCP, grpclink.ByUnix, grpclink.ByShm} {
		b.Run(way.String(), func(b *testing.B) {
			linktest.Benchmark(b, func(b *testing.B, world int) []linktest.Node {
				return form(b, world, way)
			})
		})
	}
}
