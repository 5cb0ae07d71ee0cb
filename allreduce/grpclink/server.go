package grpclink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
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

	// Way is the way by which chunks may come. The predecessor chooses one; a way that this Way
	// excludes is refused.
	Way Way
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

	mu         sync.Mutex
	generation allreduce.Generation // newest generation passed to Accept
	expected   *expectation         // nil: no Accept waits
	live       *predecessor         // the newest link
	changed    chan struct{}        // closed and replaced when generation changes
	waiting    int
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
	if seat.Generation <= c.generation {
		return fmt.Errorf("ring server: generation %d is not newer than %d",
			seat.Generation, c.generation)
	}
	if c.expected != nil {
		c.expected.link <- nil
	}
	c.generation, c.expected = seat.Generation, e
	close(c.changed)
	c.changed = make(chan struct{})
	return nil
}

// Link serves one predecessor's stream, or its abort of an earlier stream.
func (s *Server) Link(stream rondov1.Ring_LinkServer) error {
	ctx := stream.Context()
	md, _ := metadata.FromIncomingContext(ctx)
	h, err := parseHello(md)
	if err != nil {
		return status.Error(codes.InvalidArgument, "refused: "+err.Error())
	}
	if h.Job != s.job {
		return refusal(Seat{Job: s.job}.check(h, 0))
	}
	if len(md.Get(keyAsk)) > 0 {
		return stream.SendHeader(s.answerAsk())
	}
	circle := s.circles[h.Circle]
	if reason := md.Get(keyAbort); len(reason) > 0 {
		circle.abort(h, reason[0])
		return nil
	}
	link, deliver, err := circle.admit(ctx, h)
	if err != nil {
		return err
	}
	link.stream = stream
	answer := hello{Seat: link.seat, to: h.Rank}.metadata()
	link.fetch(ctx, s.cfg.Way, md, answer)
	if link.reader = framing.ReaderOf(ctx); link.reader != nil {
		link.reader.Open()
		defer link.reader.Leave()
	}
	if err := stream.SendHeader(answer); err != nil {
		link.End(fmt.Errorf("is gone: %w", err))
	}
	deliver <- link
	return link.serve(ctx)
}

// admit waits until the worker has reached the caller's generation, and accepts the caller as the
// predecessor in it.
func (c *circleServer) admit(
	ctx context.Context, h hello,
) (*predecessor, chan<- *predecessor, error) {
	deadline := time.NewTimer(c.cfg.PlanTimeout)
	defer deadline.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting >= maxWaiting {
		return nil, nil, status.Errorf(codes.Unavailable,
			"%d streams wait for this worker's plan already", c.waiting)
	}
	c.waiting++
	defer func() { c.waiting-- }()
	for h.Generation > c.generation {
		at, changed := c.generation, c.changed
		c.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			err = status.Errorf(codes.Unavailable,
				"it is still at generation %d, not at %d, after %v", at, h.Generation,
				c.cfg.PlanTimeout)
		}
		c.mu.Lock()
		if err != nil {
			return nil, nil, err
		}
	}
	e := c.expected
	if h.Generation < c.generation {
		return nil, nil, refusal(fmt.Errorf("generation %d is stale, this worker is at %d",
			h.Generation, c.generation))
	}
	if e == nil {
		return nil, nil, refusal(fmt.Errorf("this worker waits for no link of generation %d",
			h.Generation))
	}
	if err := e.seat.check(h, e.seat.predecessor()); err != nil {
		return nil, nil, refusal(err)
	}
	c.expected = nil
	c.live = newPredecessor(e.seat, e.address)
	return c.live, e.link, nil
}

func refusal(err error) error {
	return status.Error(codes.FailedPrecondition, "refused: "+err.Error())
}

func (c *circleServer) abort(h hello, reason string) {
	c.mu.Lock()
	link := c.live
	c.mu.Unlock()
	if link != nil && link.seat.check(h, link.seat.predecessor()) == nil {
		link.End(&allreduce.AbortError{Reason: shorten(reason)})
	}
}

// errLost is the error of a stream that ended without a reason.
var errLost = errors.New("is gone: its stream ended without a reason")
