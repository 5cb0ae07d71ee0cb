package grpclink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"rondo/allreduce"
	rondov1 "rondo/proto/rondo/v1"
)

// maxWaiting bounds the streams that wait for this worker to reach their generation.
const maxWaiting = 16

// ServerConfig is how a worker takes its predecessor's stream.
type ServerConfig struct {
	// PlanTimeout is how long a predecessor that is at a newer generation than this worker waits
	// for it to follow; 0 is 30 s. The predecessor tries again until its own deadline.
	PlanTimeout time.Duration

	// Memory is whether the predecessor's offer of shared memory is taken.
	Memory Memory
}

// Server is a worker's Ring service, for all generations of one job. It serves one link at a
// time, that of the newest generation.
type Server struct {
	rondov1.UnimplementedRingServer
	job string
	cfg ServerConfig

	mu         sync.Mutex
	generation allreduce.Generation // the newest that Accept was called for
	expected   *expectation         // nil when no Accept waits
	live       *predecessor         // the newest link
	changed    chan struct{}        // closed and replaced when generation changes
	waiting    int
}

// expectation is an Accept that waits.
type expectation struct {
	seat    Seat
	address string
	link    chan *predecessor // gets one: nil when a newer generation takes its place
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
	return &Server{job: job, cfg: cfg, changed: make(chan struct{})}, nil
}

// Register adds the service to a gRPC server that was made with [ServerOptions].
func (s *Server) Register(server grpc.ServiceRegistrar) { rondov1.RegisterRingServer(server, s) }

// Accept waits for the predecessor of the worker in seat to open its link. address names the
// predecessor in errors. A generation is accepted once, and each is newer than the last; from
// then on streams of older ones are refused.
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
		err = fmt.Errorf("nobody called: %w", context.Cause(ctx))
		if s.withdraw(e) {
			break
		}
		if link = <-e.link; link != nil {
			link.Abort("this worker no longer waits for its predecessor")
			link.Close()
			link = nil
		}
	}
	if link == nil {
		from := allreduce.Peer{Rank: seat.predecessor(), Address: address}
		return nil, &allreduce.PeerError{Peer: from, Err: fmt.Errorf(
			"ring link of generation %d from %v: %w", seat.Generation, from, err)}
	}
	if link.receiver != nil {
		return newMappedPredecessor(link), nil
	}
	return link, nil
}

// withdraw takes back an Accept that waits no longer, unless its answer is on the way.
func (s *Server) withdraw(e *expectation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected != e {
		return false
	}
	s.expected = nil
	return true
}

// advance makes seat's generation the server's, with e the Accept that waits in it.
func (s *Server) advance(seat Seat, e *expectation) error {
	if err := seat.validate(); err != nil {
		return err
	}
	if seat.Job != s.job {
		return fmt.Errorf("ring server of job %q: asked for a link of job %q", s.job, seat.Job)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if seat.Generation <= s.generation {
		return fmt.Errorf("ring server: generation %d comes after %d",
			seat.Generation, s.generation)
	}
	if s.expected != nil {
		s.expected.link <- nil
	}
	s.generation, s.expected = seat.Generation, e
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// Link serves one predecessor's stream, or its abort of the stream it has.
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
	if reason := md.Get(keyAbort); len(reason) > 0 {
		s.abort(h, reason[0])
		return nil
	}
	link, deliver, err := s.admit(ctx, h)
	if err != nil {
		return err
	}
	link.stream = stream
	answer := hello{Seat: link.seat, to: h.Rank}.metadata()
	link.fetch(ctx, s.cfg.Memory, md, answer)
	if err := stream.SendHeader(answer); err != nil {
		link.End(fmt.Errorf("is gone: %w", err))
	}
	deliver <- link
	return link.serve(ctx)
}

// admit waits until the worker is in the caller's generation, and gives the caller the place of
// the predecessor in it.
func (s *Server) admit(ctx context.Context, h hello) (*predecessor, chan<- *predecessor, error) {
	deadline := time.NewTimer(s.cfg.PlanTimeout)
	defer deadline.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting >= maxWaiting {
		return nil, nil, status.Errorf(codes.Unavailable,
			"%d streams wait for this worker's plan already", s.waiting)
	}
	s.waiting++
	defer func() { s.waiting-- }()
	for h.Generation > s.generation {
		at, changed := s.generation, s.changed
		s.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			err = status.Errorf(codes.Unavailable,
				"it is still at generation %d, not at %d, after %v", at, h.Generation,
				s.cfg.PlanTimeout)
		}
		s.mu.Lock()
		if err != nil {
			return nil, nil, err
		}
	}
	e := s.expected
	if h.Generation < s.generation {
		return nil, nil, refusal(fmt.Errorf("generation %d is stale, this worker is at %d",
			h.Generation, s.generation))
	}
	if e == nil {
		return nil, nil, refusal(fmt.Errorf("this worker waits for no link of generation %d",
			h.Generation))
	}
	if err := e.seat.check(h, e.seat.predecessor()); err != nil {
		return nil, nil, refusal(err)
	}
	s.expected = nil
	s.live = newPredecessor(e.seat, e.address)
	return s.live, e.link, nil
}

func refusal(err error) error {
	return status.Error(codes.FailedPrecondition, "refused: "+err.Error())
}

// abort breaks the live link if it is the caller's.
func (s *Server) abort(h hello, reason string) {
	s.mu.Lock()
	link := s.live
	s.mu.Unlock()
	if link != nil && link.seat.check(h, link.seat.predecessor()) == nil {
		link.End(&allreduce.AbortError{Reason: shorten(reason)})
	}
}

// errLost is a stream that ended without a word.
var errLost = errors.New("is gone: its stream ended without a word")
