package grpclink_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/grpclink/framing"
	"rondo/allreduce/linktest"
	"rondo/internal/port"
	rondov1 "rondo/proto/rondo/v1"
)

// brief is the length of waits that a test expects to run out.
const brief = 200 * time.Millisecond

// accept calls w's Accept in the background until the test ends.
func accept(t *testing.T, w *worker, s grpclink.Seat) <-chan allreduce.Predecessor {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	links, done := make(chan allreduce.Predecessor, 1), make(chan struct{})
	go func() {
		defer close(done)
		if p, err := w.server.Accept(ctx, s, "host-a:7000"); err == nil {
			links <- p
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return links
}

// refused is what a stranger is told, whatever is wrong.
const refused = "refused: this worker expects another neighbour"

// awaitGeneration returns when the server at w has left generation 1. Until then the server makes a
// stream of generation 1 wait; after that it refuses it.
func awaitGeneration(t *testing.T, w *worker) {
	t.Helper()
	_, err := grpclink.Dial(context.Background(), w.address, seat(0, 3), w.dial)
	if err == nil || !strings.Contains(err.Error(), refused) {
		t.Fatalf("%v, want %q", err, refused)
	}
}

// TestRefusals: rank 1 of 3 of job opticks, generation 5, waits for rank 0, and tells nobody else
// any of this.
func TestRefusals(t *testing.T) {
	w := startWorker(t, "opticks", grpclink.ServerConfig{PlanTimeout: brief})
	self := grpclink.Seat{Job: "opticks", Generation: 5, Rank: 1, World: 3, Nonce: "secret"}
	links := accept(t, w, self)
	good := self
	good.Rank = 0
	awaitGeneration(t, w)
	for name, change := range map[string]func(*grpclink.Seat){
		"job":      func(s *grpclink.Seat) { s.Job = "optics" },
		"stale":    func(s *grpclink.Seat) { s.Generation = 4 },
		"world":    func(s *grpclink.Seat) { s.World = 4 },
		"rank":     func(s *grpclink.Seat) { s.Rank = 2 },
		"nonce":    func(s *grpclink.Seat) { s.Nonce = "guess" },
		"no nonce": func(s *grpclink.Seat) { s.Nonce = "" },
		"circle":   func(s *grpclink.Seat) { s.Circle = grpclink.CircleHost },
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			change(&s)
			for _, more := range []string{"", "rondo-ask-socket"} {
				md := grpclink.Hello(s)
				if more != "" {
					md.Set(more, "1")
				}
				start := time.Now()
				err := rawStream(t, w.address, md, nil)
				want := "FailedPrecondition desc = " + refused
				if name == "circle" { // this worker is in none, so nobody knows its generation
					want = "Unavailable desc = it does not have the plan of this generation yet"
				}
				if !strings.HasSuffix(err.Error(), want) {
					t.Errorf("%s: %v, want %q", more, err, want)
				}
				if took := time.Since(start); took > linktest.Moment {
					t.Errorf("%s: the refusal took %v", more, took)
				}
			}
		})
	}
	t.Run("another's proof", func(t *testing.T) {
		md := grpclink.Hello(good)
		md.Set("rondo-to-rank", "2")
		if err := rawStream(t, w.address, md, nil); !strings.HasSuffix(err.Error(), refused) {
			t.Errorf("%v, want %q", err, refused)
		}
	})
	t.Run("newer than the plan", func(t *testing.T) {
		s := good
		s.Generation = 6
		cfg := w.dial
		cfg.Timeout = 3 * brief
		_, err := grpclink.Dial(context.Background(), w.address, s, cfg)
		if want := "does not have the plan"; err == nil || !strings.Contains(err.Error(), want) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want %q", err, want)
		}
	})
	// The right predecessor is still accepted after that, and a second one is not.
	s, err := grpclink.Dial(context.Background(), w.address, good, w.dial)
	if err != nil {
		t.Fatal(err)
	}
	p := <-links
	_, err = grpclink.Dial(context.Background(), w.address, good, w.dial)
	if err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("a second link: %v, want %q", err, refused)
	}
	// Nobody's abort breaks the link, unless it comes on the link's own connection: not even that
	// of one who knows all.
	for _, nonce := range []string{"", "secret"} {
		stranger := good
		stranger.Nonce = nonce
		md := grpclink.Hello(stranger)
		md.Set("rondo-abort-bin", "stranger")
		if err := rawStream(t, w.address, md, nil); !strings.Contains(err.Error(), "EOF") {
			t.Errorf("a stranger's abort: %v", err)
		}
	}
	if p.Err() != nil {
		t.Errorf("the link ended: %v", p.Err())
	}
	s.Abort("its own neighbour's")
	<-p.Broken()
	if p.Err() == nil || !strings.Contains(p.Err().Error(), "its own neighbour's") {
		t.Errorf("the neighbour's abort: %v", p.Err())
	}
	p.Close()
	s.Close()
}

// TestFarFuture: streams of later generations, which nothing proves, do not keep the right
// predecessor out that comes before its successor has the plan.
func TestFarFuture(t *testing.T) {
	for name, far := range map[string]allreduce.Generation{"far": 1 << 40, "next": 2} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, "opticks", grpclink.ServerConfig{})
			ctx, cancel := context.WithCancel(t.Context())
			var strangers sync.WaitGroup
			defer strangers.Wait()
			defer cancel()
			opened := make(chan struct{}, 64)
			for range 64 {
				strangers.Go(func() {
					s := grpclink.Seat{Job: "opticks", Generation: far, Rank: 0, World: 2}
					cfg := w.dial
					cfg.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
						select {
						case opened <- struct{}{}:
						default:
						}
						return new(net.Dialer).DialContext(ctx, "tcp", address)
					}
					if link, err := grpclink.Dial(ctx, w.address, s, cfg); err == nil {
						t.Error("a stranger is accepted")
						link.Close()
					}
				})
			}
			for range 32 {
				<-opened
			}
			right := grpclink.Seat{Job: "opticks", Generation: 2, Rank: 0, World: 2, Nonce: "s"}
			linked := make(chan error, 1)
			go func() {
				s, err := grpclink.Dial(ctx, w.address, right, w.dial)
				if err == nil {
					defer s.Close()
				}
				linked <- err
			}()
			own := right
			own.Rank = 1
			p, err := w.server.Accept(ctx, own, "a")
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			if err := <-linked; err != nil {
				t.Errorf("the right predecessor: %v", err)
			}
		})
	}
}

func TestMetadataRefused(t *testing.T) {
	w := startWorker(t, "opticks", grpclink.ServerConfig{})
	for _, test := range []struct {
		change func(metadata.MD)
		want   string
	}{
		{func(md metadata.MD) { md.Set("rondo-format", "1") }, "ring format 1, this worker 3"},
		{func(md metadata.MD) { md.Delete("rondo-format") }, "rondo-format has 0 values"},
		{func(md metadata.MD) { md.Append("rondo-world", "3") }, "rondo-world has 2 values"},
		{func(md metadata.MD) { md.Set("rondo-world", "-1") }, `"-1" is not a number`},
		{func(md metadata.MD) { md.Set("rondo-world", "99999") }, "rondo-world is 99999"},
		{func(md metadata.MD) { md.Set("rondo-job-bin", strings.Repeat("x", 2000)) }, "2000 bytes"},
		{func(md metadata.MD) { md.Set("rondo-generation", "") }, `"" is not a number`},
		{func(md metadata.MD) { md.Set("rondo-circle", "outer") }, `there is no circle "outer"`},
	} {
		md := grpclink.Hello(seat(0, 2))
		test.change(md)
		if err := rawStream(t, w.address, md, nil); !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// rawCodec sends []byte messages unchanged.
type rawCodec struct{}

func (rawCodec) Name() string                         { return "raw" }
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// rawStream opens a stream as any program could, sends the messages, and returns the stream's
// error.
func rawStream(t *testing.T, address string, md metadata.MD, messages [][]byte) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), linktest.Moment)
	defer cancel()
	stream, err := rondov1.NewRingClient(conn).Link(metadata.NewOutgoingContext(ctx, md))
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range messages {
		if err := stream.SendMsg(message); err != nil {
			break
		}
	}
	for err == nil { // the server may send heartbeats
		err = stream.RecvMsg(nil)
	}
	return err
}

// TestCorruptMessages: a damaged message ends the receiver's collective at once, with an error that
// names the sender and the damage.
func TestCorruptMessages(t *testing.T) {
	chunk := func(change func([]byte)) []byte {
		b := make([]byte, framing.HeaderBytes+40)
		copy(b, "RnD\x03\x01")
		binary.LittleEndian.PutUint64(b[8:], 1)
		binary.LittleEndian.PutUint64(b[16:], 1)
		binary.LittleEndian.PutUint32(b[28:], 10)
		binary.LittleEndian.PutUint64(b[40:], 20)
		change(b)
		return b
	}
	for _, test := range []struct {
		name, want string
		message    []byte
	}{
		{"magic", `starts with "XnD"`, chunk(func(b []byte) { b[0] = 'X' })},
		{"truncated",
			"20 numbers of fp32 and carries 40 bytes", chunk(func(b []byte) { b[28] = 20 })},
		{"generation", "generation 2, this ring is", chunk(func(b []byte) { b[8] = 2 })},
		{"sequence", "sent {collective 3", chunk(func(b []byte) { b[16] = 3 })},
		{"oversized", "larger than max",
			make([]byte, framing.HeaderBytes+allreduce.MaxChunkBytes+1)},
		{"empty", "0 bytes is shorter than its header", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorker(t, "opticks", grpclink.ServerConfig{})
			links := accept(t, w, seat(1, 2))
			ended := make(chan error, 1)
			messages := [][]byte{test.message}
			go func() { ended <- rawStream(t, w.address, grpclink.Hello(seat(0, 2)), messages) }()
			successor, _ := allreduce.Pipe(
				allreduce.Peer{Rank: 1}, allreduce.Peer{Rank: 0, Address: "host-a:7000"})
			rings := onlyRank(t, 1, allreduce.Links{Predecessor: <-links, Successor: successor})
			err := rings.AllReduce(context.Background(), make([]float32, 20))
			for _, want := range []string{test.want, "rank 0 (host-a:7000)"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("all-reduce: %v, want %q in it", err, want)
				}
			}
			if err := <-ended; !strings.Contains(err.Error(), test.want) {
				t.Errorf("the sender was told %v, want %q", err, test.want)
			}
		})
	}
}

func onlyRank(t *testing.T, rank allreduce.Rank, links allreduce.Links) *allreduce.Ring {
	t.Helper()
	ring, err := allreduce.New(allreduce.Config{
		Rank: rank, World: 2, Generation: 1, ChunkTimeout: time.Minute, StepTimeout: time.Hour,
	}, links)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ring.Close() })
	return ring
}

// TestNobodyThere: for each way in which a successor may fail to answer, Dial ends at its deadline
// with an error that names it.
func TestNobodyThere(t *testing.T) {
	listen := func(t *testing.T) net.Listener {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		return listener
	}
	for _, test := range []struct {
		name    string
		address func(t *testing.T) string
		want    string
	}{
		{"nobody listens", func(t *testing.T) string {
			return port.ForTest(t).Address()
		}, "refused"},
		{"never answers", func(t *testing.T) string {
			return listen(t).Addr().String()
		}, "no answer"},
		{"has no plan", func(t *testing.T) string {
			return startWorker(t, "opticks", grpclink.ServerConfig{}).address
		}, "no answer"},
		{"is no ring", func(t *testing.T) string {
			listener := listen(t)
			g := grpc.NewServer()
			go g.Serve(listener)
			t.Cleanup(g.Stop)
			return listener.Addr().String()
		}, "unknown service"},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := test.address(t)
			start := time.Now()
			_, err := grpclink.Dial(context.Background(), address, seat(0, 2),
				grpclink.DialConfig{Timeout: brief})
			if took := time.Since(start); took > linktest.Moment {
				t.Errorf("it took %v", took)
			}
			for _, want := range []string{test.want, "rank 1 (" + address + ")", "generation 1"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q in it", err, want)
				}
			}
		})
	}
}

// TestStuckNeighbour: a live neighbour that does nothing after joining the ring exceeds the step
// timeout, and is named.
func TestStuckNeighbour(t *testing.T) {
	nodes := form(t, 2, grpclink.ByTCP)
	rings := linktest.Rings(t, nodes, 1, 0, brief)
	err := rings[0].AllReduce(context.Background(), make([]float32, 100))
	want := "collective 1, ring step 1 of 2, chunk 1 of 1, " +
		nodes[0].Predecessor.Peer().String() +
		": is alive, but no chunk came for 200ms"
	if err == nil || err.Error() != want {
		t.Errorf("all-reduce: %v, want %q", err, want)
	}
	select {
	case <-rings[1].Broken():
		if err := rings[1].Err(); !strings.HasSuffix(err.Error(), "at rank 0: "+want) {
			t.Errorf("the stuck rank was told %v", err)
		}
	case <-time.After(linktest.Moment):
		t.Error("the stuck rank was not told")
	}
}

func await(t *testing.T, closed <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(linktest.Moment):
		t.Fatalf("%s did not come within %v", what, linktest.Moment)
	}
}

// TestLateSuccessor: a worker may dial before its successor is up or has the plan.
func TestLateSuccessor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "late")
	type result struct {
		s   allreduce.Successor
		err error
	}
	dialled := make(chan result, 1)
	refused, connected := make(chan struct{}), make(chan struct{})
	var firstRefused, firstConnected sync.Once
	go func() {
		s, err := grpclink.Dial(context.Background(), "unix:"+socket, seat(0, 2),
			grpclink.DialConfig{Timeout: linktest.Moment,
				Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
					if err != nil {
						firstRefused.Do(func() { close(refused) })
					} else {
						firstConnected.Do(func() { close(connected) })
					}
					return conn, err
				}})
		dialled <- result{s, err}
	}()
	await(t, refused, "an attempt before the successor is up")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := grpclink.NewServer("opticks", grpclink.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpclink.ServerOptions(nil)...)
	server.Register(g)
	go g.Serve(listener)
	t.Cleanup(g.Stop)
	await(t, connected, "a connection before the successor has the plan")
	links := accept(t, &worker{server: server}, seat(1, 2))
	r := <-dialled
	if r.err != nil {
		t.Fatal(r.err)
	}
	p := <-links
	p.Close()
	r.s.Close()
}

func TestConnectRefusesItsArguments(t *testing.T) {
	w := startWorker(t, "opticks", grpclink.ServerConfig{})
	ctx := context.Background()
	for _, test := range []struct {
		seat      grpclink.Seat
		addresses []string
		want      string
	}{
		{grpclink.Seat{Generation: 1, World: 1}, []string{"a"}, "no job"},
		{grpclink.Seat{Job: "opticks", World: 1}, []string{"a"}, "generation 0"},
		{grpclink.Seat{Job: "opticks", Generation: 1, Rank: 2, World: 2}, nil, "rank 2"},
		{grpclink.Seat{Job: "opticks", Generation: 1}, nil, "world 0"},
		{seat(0, 2), []string{"a"}, "ring of 2: 1 addresses"},
		{seat(0, 2), []string{"a", ""}, "no address"},
		{grpclink.Seat{Job: "other", Generation: 1, World: 2}, []string{"a", "b"},
			`server of job "opticks": asked for a link of job "other"`},
	} {
		_, err := grpclink.Connect(ctx, w.server, test.seat, test.addresses, w.dial)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.seat, err, test.want)
		}
	}
}

// TestGenerations: each Connect needs a newer generation, in a ring of one too, and ends waiting
// calls of older ones.
func TestGenerations(t *testing.T) {
	w := startWorker(t, "opticks", grpclink.ServerConfig{})
	ctx := context.Background()
	older := make(chan error, 1)
	go func() {
		_, err := w.server.Accept(ctx, grpclink.Seat{Job: "opticks", Generation: 3, World: 2}, "a")
		older <- err
	}()
	awaitGeneration(t, w)
	one := grpclink.Seat{Job: "opticks", Generation: 100, World: 1}
	links, err := grpclink.Connect(ctx, w.server, one, []string{"a"}, w.dial)
	if err != nil || links != (allreduce.Links{}) {
		t.Errorf("a ring of one: %v, %v", links, err)
	}
	if err := <-older; err == nil {
		t.Error("the older Accept succeeded")
	}
	_, err = w.server.Accept(ctx, seat(0, 2), "a")
	want := "generation 1 is not newer than 100"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an older generation: %v, want %q", err, want)
	}
}

// TestOtherServices: the ring's codec does not affect other services of the same gRPC server.
func TestOtherServices(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpclink.ServerOptions(nil)...)
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	go g.Serve(listener)
	defer g.Stop()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), linktest.Moment)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx,
		&grpc_health_v1.HealthCheckRequest{})
	if err != nil || answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health check: %v, %v", answer, err)
	}
}
