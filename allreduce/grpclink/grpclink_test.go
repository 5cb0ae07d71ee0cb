package grpclink_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/grpclink/framing"
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
	return startWorkerWith(t, job, cfg, nil)
}

func startWorkerWith(
	t testing.TB, job string, cfg grpclink.ServerConfig, creds credentials.TransportCredentials,
) *worker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := grpclink.NewServer(job, cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpclink.ServerOptions(creds)...)
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
func form(t testing.TB, world int, way grpclink.Transport) []linktest.Node {
	t.Helper()
	// The conformance suite requires each Abort's reason to arrive, also on a busy machine.
	_, nodes := formWorkers(t, world, way, linktest.Moment/2)
	return nodes
}

// bare are the credentials of connections without TLS of which package grpclink does not know that.
// So gRPC reads and writes these connections itself, without package framing.
type bare struct {
	credentials.TransportCredentials
}

func (bare) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "bare"}
}

func (b bare) Clone() credentials.TransportCredentials {
	return bare{b.TransportCredentials.Clone()}
}

func formWorkers(
	t testing.TB, world int, way grpclink.Transport, abortGrace time.Duration,
) ([]*worker, []linktest.Node) {
	t.Helper()
	return formWith(t, world, way, abortGrace, ends{})
}

// ends are the two ends' credentials; nil: those of the package.
type ends struct {
	server, client credentials.TransportCredentials
}

func formWith(
	t testing.TB, world int, way grpclink.Transport, abortGrace time.Duration, creds ends,
) ([]*worker, []linktest.Node) {
	t.Helper()
	workers, addresses := make([]*worker, world), make([]string, world)
	for rank := range world {
		workers[rank] = startWorkerWith(t, "opticks", grpclink.ServerConfig{Transport: way},
			creds.server)
		workers[rank].dial.Credentials = creds.client
		workers[rank].dial.Transport = way
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

// combinations are the ways in which an end with package framing meets one of plain gRPC.
func combinations() map[string]ends {
	plain := bare{insecure.NewCredentials()}
	return map[string]ends{
		"framing":    {},
		"plain gRPC": {plain, plain},
		"from plain": {client: plain},
		"to plain":   {server: plain},
	}
}

// TestLinkToPlainGRPC holds ends with plain gRPC to the contract of links.
func TestLinkToPlainGRPC(t *testing.T) {
	for name, creds := range combinations() {
		if creds == (ends{}) {
			continue // TestLink
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			linktest.Run(t, func(t *testing.T, world int) []linktest.Node {
				_, nodes := formWith(t, world, grpclink.ByTCP, linktest.Moment/2, creds)
				return nodes
			})
		})
	}
}

// TestSameAsPlainGRPC sends the same messages, of lengths and pauses drawn from a seed, over a link
// with package framing, over plain gRPC, and from each to the other. What arrives is the same, also
// if the receiver keeps messages for a while, and if both ends send heartbeats.
func TestSameAsPlainGRPC(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, creds := range combinations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, nodes := formWith(t, 2, grpclink.ByTCP, linktest.Moment/2, creds)
			limit := time.AfterFunc(6*linktest.Moment, func() {
				t.Errorf("no end within %v", 6*linktest.Moment)
				nodes[0].Kill()
			})
			defer limit.Stop()
			sent := make(chan error, 1)
			go func() { sent <- sendDrawn(nodes[0].Successor, seed) }()
			if err := receiveDrawn(nodes[1].Predecessor, seed); err != nil {
				t.Error(err)
				nodes[0].Kill()
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			for _, node := range nodes {
				node.Successor.Close()
				node.Predecessor.Close()
			}
		})
	}
}

const (
	// drawnMessages is the number of messages in TestSameAsPlainGRPC.
	drawnMessages = 120
	// keptBytes is the longest payload that may be kept while the longest message arrives: both
	// need the window, of which up to three eighths are not returned yet.
	keptBytes = framing.WindowBytes*5/8 - allreduce.MaxChunkBytes - 16<<10
)

// drawn returns the messages' headers, and a function that fills a payload. Lengths are as often
// near a multiple of an HTTP/2 frame, of the room of a window, and near 1, as between.
func drawn(seed uint64) iter.Seq2[allreduce.Header, []byte] {
	return func(yield func(allreduce.Header, []byte) bool) {
		rng := rand.New(rand.NewPCG(seed, 1))
		for k := range drawnMessages {
			length := 1 + rng.IntN(allreduce.MaxChunkBytes/4)
			switch rng.IntN(4) {
			case 0:
				length = 1 + rng.IntN(40)
			case 1: // a frame has 16 KiB, of which a message's first spends 53 bytes
				length = max(1, (1+rng.IntN(8))*4096-20+rng.IntN(16))
			}
			h := allreduce.Header{Generation: 1, Sequence: uint64(k), Phase: allreduce.AllGather,
				Length: length, Offset: k, Total: 1 << 28}
			payload := make([]byte, 4*length)
			for i := range payload {
				payload[i] = byte(i*7 + k + i>>12)
			}
			if !yield(h, payload) {
				return
			}
		}
	}
}

func sendDrawn(s allreduce.Successor, seed uint64) error {
	for h, payload := range drawn(seed) {
		if h.Sequence%5 == 0 {
			beat := allreduce.Header{Generation: 1, Phase: allreduce.Heartbeat}
			if err := s.Send(beat, nil); err != nil {
				return fmt.Errorf("heartbeat before %d: %w", h.Sequence, err)
			}
		}
		if err := s.Send(h, payload); err != nil {
			return fmt.Errorf("message %d: %w", h.Sequence, err)
		}
		if h.Sequence%7 == 0 {
			if err := s.Flush(); err != nil {
				return fmt.Errorf("flush after %d: %w", h.Sequence, err)
			}
		}
	}
	return s.Flush()
}

func receiveDrawn(p allreduce.Predecessor, seed uint64) error {
	var kept []allreduce.Message
	release := func(keep int) {
		for len(kept) > keep {
			kept[0].Release()
			kept = kept[1:]
		}
	}
	defer release(0)
	rng := rand.New(rand.NewPCG(seed, 2))
	for want, payload := range drawn(seed) {
		var m allreduce.Message
		for m.Header.Phase != allreduce.AllGather {
			if err := p.Receive(&m); err != nil {
				return fmt.Errorf("message %d: %w", want.Sequence, err)
			}
			if m.Header.Phase == allreduce.Heartbeat {
				m.Release()
				p.Beat()
			}
		}
		if m.Header != want || !bytes.Equal(bytes.Join(m.Pieces, nil), payload) {
			return fmt.Errorf("message %d, %v, is not what was sent: %v", want.Sequence, m.Header,
				want)
		}
		kept = append(kept, m)
		keep := rng.IntN(2)
		if 4*m.Header.Length > keptBytes {
			keep = 0
		}
		release(keep)
	}
	return nil
}

// BenchmarkAllReduce times all-reduces for each Transport.
func BenchmarkAllReduce(b *testing.B) {
	for _, way := range []grpclink.Transport{grpclink.ByTCP, grpclink.ByUnix, grpclink.ByShm} {
		b.Run(way.String(), func(b *testing.B) {
			linktest.Benchmark(b, func(b *testing.B, world int) []linktest.Node {
				return form(b, world, way)
			})
		})
	}
}
