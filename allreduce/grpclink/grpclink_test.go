package grpclink_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// worker is one process of a test: its listener, its gRPC server, and all its connections.
type worker struct {
	server  *grpclink.Server
	address string
	kill    func()
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
	conns := &connections{Listener: listener}
	go g.Serve(conns)
	t.Cleanup(g.Stop)
	return &worker{
		server:  server,
		address: listener.Addr().String(),
		kill:    conns.cut,
		dial:    grpclink.DialConfig{Dialer: conns.dial, Timeout: 10 * time.Second},
	}
}

// connections holds all of a worker's connections, so that they can be cut as if it had died.
type connections struct {
	net.Listener
	mu   sync.Mutex
	all  []net.Conn
	dead bool
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
	c.all = append(c.all, conn)
	return conn, nil
}

func (c *connections) Accept() (net.Conn, error) { return c.keep(c.Listener.Accept()) }

func (c *connections) dial(ctx context.Context, address string) (net.Conn, error) {
	return c.keep((&net.Dialer{}).DialContext(ctx, "tcp", address))
}

func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	c.Close()
	for _, conn := range c.all {
		conn.Close()
	}
}

// seat is rank's in the first generation of a test.
func seat(rank, world int) grpclink.Seat {
	return grpclink.Seat{
		Job:        "opticks",
		Generation: 1,
		Rank:       allreduce.Rank(rank),
		World:      world,
	}
}

// form connects world workers in a ring.
func form(t testing.TB, world int) []linktest.Node {
	t.Helper()
	workers, addresses := make([]*worker, world), make([]string, world)
	for rank := range world {
		workers[rank] = startWorker(t, "opticks", grpclink.ServerConfig{})
		addresses[rank] = workers[rank].address
	}
	nodes := make([]linktest.Node, world)
	for rank, err := range linktest.Each(world, func(rank int) (err error) {
		w := workers[rank]
		nodes[rank].Kill = w.kill
		nodes[rank].Links, err = grpclink.Connect(
			context.Background(), w.server, seat(rank, world), addresses, w.dial)
		return err
	}) {
		if err != nil {
			t.Fatal(fmt.Errorf("rank %d: %w", rank, err))
		}
	}
	return nodes
}

func TestLink(t *testing.T) {
	linktest.Run(t, func(t *testing.T, world int) []linktest.Node { return form(t, world) })
}

func BenchmarkAllReduce(b *testing.B) {
	linktest.Benchmark(b, func(b *testing.B, world int) []linktest.Node { return form(b, world) })
}
