package grpclink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
	rondov1 "rondo/proto/rondo/v1"
)

// maxWaiting is the largest number of streams that wait for this worker to reach their generation.
const maxWaiting = 16

// ServerConfig sets how a worker accepts its predecessor's stream.
type ServerConfig struct {
	// PlanTimeout is how long a predecessor at a newer generation waits for this worker to follow;
	// 0 is 30 s. The predecessor retries until its own deadline.
	PlanTimeout time.Duration

	// Transport is the allowed transport of chunks. The predecessor chooses one; any other is
	// refused.
	Transport Transport

	// Keep, if set, is called with the address of a predecessor whose link is accepted, and its
	// result when the link has ended; see connlimit.Listener.
	Keep func(remote net.Addr) (release func())
}

// Server is a worker's Ring service, for all generations of one job. In each circle it serves one
// link at a time, that of the newest generation.
type Server struct {
	rondov1.UnimplementedRingServer
	job     string
	cfg     ServerConfig
	circles map[Circle]*circleServer
	local   atomic.Pointer[string] // name of this host's unix socket; nil: none
}

// circleServer accepts the predecessor's link in one circle.
type circleServer struct {
	cfg ServerConfig

	mu       sync.Mutex
	seat     Seat          // of the newest generation; zero: there was none
	expected *expectation  // nil: no Accept waits
	live     *predecessor  // the newest link
	changed  chan struct{} // closed and replaced when seat changes
	waiting  []*waiter     // the oldest first
}

// expectation is an Accept that waits.
type expectation struct {
	seat    Seat
	address string
	link    chan *predecessor // receives the link once, or nil if a newer generation replaces it
}

// NewServer returns the Ring service of a worker of job.
func NewServer(job string, cfg ServerConfig) (*Server, error) {
	if job == "" || len(job) > maxJobBytes {
		return nil, fmt.Errorf("ring server: a job's name of %d bytes, want 1 to %d",
			len(job), maxJobBytes)
	}
	if cfg.PlanTimeout < 0 {
		return nil, fmt.Errorf("ring server: plan timeout %v is negative", cfg.PlanTimeout)
	}
	if cfg.PlanTimeout == 0 {
		cfg.PlanTimeout = 30 * time.Second
	}
	s := &Server{job: job, cfg: cfg, circles: map[Circle]*circleServer{}}
	for _, circle := range circles() {
		s.circles[circle] = &circleServer{cfg: cfg, changed: make(chan struct{})}
	}
	return s, nil
}

// World returns the number of workers in the newest ring; 0: there was none.
func (s *Server) World() int {
	c := s.circles[CircleAll]
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seat.World
}

// Register adds the service to a gRPC server that was made with [ServerOptions].
func (s *Server) Register(server grpc.ServiceRegistrar) { rondov1.RegisterRingServer(server, s) }

// Accept waits for the predecessor of the worker in seat to open its link. address names the
// predecessor in errors. Each call for a circle needs a newer generation than the last; streams of
// older ones are refused from then on.
func (s *Server) Accept(
	ctx context.Context, seat Seat, address string,
) (allreduce.Predecessor, error) {
	e := &expectation{seat: seat, address: address, link: make(chan *predecessor, 1)}
	if err := s.advance(seat, e); err != nil {
		return nil, err
	}
	var link *predecessor
	err := errors.New("a newer generation has come")
	select {
	case link = <-e.link:
	case <-ctx.Done():
		err = fmt.Errorf("no connection came: %w", context.Cause(ctx))
		if s.circles[seat.Circle].withdraw(e) {
			break
		}
		if link = <-e.link; link != nil {
			link.Abort("this worker no longer waits for its predecessor")
			link.Close()
			link = nil
		}
	}
	if link == nil {
		from := seat.peer(seat.predecessor(), address)
		return nil, &allreduce.PeerError{Peer: from, Err: fmt.Errorf(
			"ring link of generation %d from %v: %w", seat.Generation, from, err)}
	}
	if link.receiver != nil {
		return newMappedPredecessor(link), nil
	}
	return link, nil
}

// withdraw removes an Accept that waits no longer. It returns false if its answer is already on the
// way.
func (c *circleServer) withdraw(e *expectation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expected != e {
		return false
	}
	c.expected = nil
	return true
}

// advance makes seat's generation the server's newest, with e as its waiting Accept.
func (s *Server) advance(seat Seat, e *expectation) error {
	if err := seat.validate(); err != nil {
		return err
	}
	if seat.Job != s.job {
		return fmt.Errorf("ring server of job %q: asked for a link of job %q", s.job, seat.Job)
	}
	return s.circles[seat.Circle].advance(seat, e)
}

func (c *circleServer) advance(seat Seat, e *expectation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seat.Generation <= c.seat.Generation {
		return fmt.Errorf("ring server: generation %d is not newer than %d",
			seat.Generation, c.seat.Generation)
	}
	if c.expected != nil {
		c.expected.link <- nil
	}
	c.seat, c.expected = seat, e
	close(c.changed)
	c.changed = make(chan struct{})
	return nil
}

// Link serves one predecessor's stream, its question for the unix socket, or its abort of an
// earlier stream. Anyone but the neighbour gets the same refusal, whatever is wrong, and learns
// nothing of the job.
func (s *Server) Link(stream rondov1.Ring_LinkServer) error {
	ctx := stream.Context()
	md, _ := metadata.FromIncomingContext(ctx)
	h, err := parseHello(md)
	if err != nil {
		return status.Error(codes.InvalidArgument, "refused: "+err.Error())
	}
	circle := s.circles[h.Circle]
	if reason := md.Get(keyAbort); len(reason) > 0 {
		circle.abort(framing.ConnectionOf(ctx), h, reason[0])
		return nil
	}
	if h.Job != s.job {
		return errRefused
	}
	if err := circle.await(ctx, h); err != nil {
		return err
	}
	if len(md.Get(keyAsk)) > 0 {
		return stream.SendHeader(s.answerAsk())
	}
	link, deliver, err := circle.admit(framing.ConnectionOf(ctx), h)
	if err != nil {
		return err
	}
	defer s.cfg.keep(ctx)()
	link.stream = stream
	answer := hello{Seat: link.seat, to: h.Rank, answer: true}.metadata()
	link.fetch(ctx, s.cfg.Transport, md, answer)
	if link.connection != nil && link.connection.Reader != nil {
		link.reader = link.connection.Reader
		link.reader.Open()
		defer link.reader.Leave()
	}
	if err := stream.SendHeader(answer); err != nil {
		link.End(fmt.Errorf("is gone: %w", err))
	}
	deliver <- link
	return link.serve(ctx)
}

// keep marks a stream's connection as one that carries a link, until the returned function is
// called.
func (c ServerConfig) keep(ctx context.Context) (release func()) {
	from, ok := peer.FromContext(ctx)
	if c.Keep == nil || !ok {
		return func() {}
	}
	return c.Keep(from.Addr)
}

// errRefused is the answer to everyone but the neighbour.
var errRefused = status.Error(codes.FailedPrecondition,
	"refused: this worker expects another neighbour")

// await waits until the worker has reached the caller's generation, and returns an error unless the
// caller is the predecessor in it.
func (c *circleServer) await(ctx context.Context, h hello) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Generation > c.seat.Generation {
		if err := c.waitFor(ctx, h.Generation); err != nil {
			return err
		}
	}
	if c.seat.check(h, c.seat.predecessor()) != nil {
		return errRefused
	}
	return nil
}

// waiter is a stream that waits for this worker to reach its generation.
type waiter struct {
	generation allreduce.Generation
	out        chan struct{} // closed when another one takes its place
}

// waitFor waits until the worker has reached a generation. Nothing proves yet that the caller is
// the predecessor. So one that waits for the highest generation makes room for others: strangers
// who guess high keep nobody out, and those who guess the next one are out with the next caller.
// The caller holds the lock, which is released meanwhile.
func (c *circleServer) waitFor(ctx context.Context, generation allreduce.Generation) error {
	deadline := time.NewTimer(c.cfg.PlanTimeout)
	defer deadline.Stop()
	own := &waiter{generation, make(chan struct{})}
	if len(c.waiting) >= maxWaiting {
		highest := 0
		for i, w := range c.waiting {
			if w.generation > c.waiting[highest].generation {
				highest = i // the oldest of these
			}
		}
		if c.waiting[highest].generation < generation {
			return errNoPlan
		}
		close(c.waiting[highest].out)
		c.waiting = slices.Delete(c.waiting, highest, highest+1)
	}
	c.waiting = append(c.waiting, own)
	defer func() {
		c.waiting = slices.DeleteFunc(c.waiting, func(w *waiter) bool { return w == own })
	}()
	for generation > c.seat.Generation {
		changed := c.changed
		c.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			err = errNoPlan
		case <-own.out:
			err = errNoPlan
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// errNoPlan sends a caller of a later generation away, for another try.
var errNoPlan = status.Error(codes.Unavailable,
	"it does not have the plan of this generation yet")

// admit accepts the caller as the predecessor, once.
func (c *circleServer) admit(
	from *framing.Connection, h hello,
) (*predecessor, chan<- *predecessor, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.expected
	if e == nil || e.seat.check(h, e.seat.predecessor()) != nil {
		return nil, nil, errRefused
	}
	c.expected = nil
	c.live = newPredecessor(e.seat, e.address)
	c.live.connection = from
	return c.live, e.link, nil
}

// abort ends the live link if the call comes on that link's own connection.
func (c *circleServer) abort(from *framing.Connection, h hello, reason string) {
	c.mu.Lock()
	link := c.live
	c.mu.Unlock()
	if link != nil && from != nil && link.connection == from &&
		link.seat.check(h, link.seat.predecessor()) == nil {
		link.End(&allreduce.AbortError{Reason: shorten(reason)})
	}
}

// errLost is the error of a stream that ended without a reason.
var errLost = errors.New("is gone: its stream ended without a reason")
