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
	rondov1 "rondo/proto/rondo/v1"
)

// maxWaiting bounds the streams that wait for this worker to reach their generation.
const maxWaiting = 16

// ServerConfig is how a worker takes its predecessor's stream.
type ServerConfig struct {
	// PlanTimeout is how long a predecessor that is at a newer generation than this worker waits
	// for it to follow; 0 is 30 s. The predecessor tries again until its own deadline.
	PlanTimeout time.Duration

	// Way is by what chunks come from the predecessor, who chooses: what it does not name is
	// refused.
	Way Way
}

// Server is a worker's Ring service, for all generations of one job. Of each circle it serves one
// link at a time, that of the newest generation.
type Server struct {
	rondov1.UnimplementedRingServer
	job   string
	cfg   ServerConfig
	doors map[Circle]*door
	local atomic.Pointer[string] // the name of the socket of this host, if there is one
}

// door is where the predecessor in one circle comes in.
type door struct {
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
	s := &Server{job: job, cfg: cfg, doors: map[Circle]*door{}}
	for _, circle := range circles() {
		s.doors[circle] = &door{cfg: cfg, changed: make(chan struct{})}
	}
	return s, nil
}

// Register adds the service to a gRPC server that was made with [ServerOptions].
func (s *Server) Register(server grpc.ServiceRegistrar) { rondov1.RegisterRingServer(server, s) }

// Accept waits for the predecessor of the worker in seat to open its link. address names the
// predecessor in errors. Of a circle a generation is accepted once, and each is newer than the
// last; from then on streams of older ones are refused.
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
		if s.doors[seat.Circle].withdraw(e) {
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

// withdraw takes back an Accept that waits no longer, unless its answer is on the way.
func (d *door) withdraw(e *expectation) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.expected != e {
		return false
	}
	d.expected = nil
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
	return s.doors[seat.Circle].advance(seat, e)
}

func (d *door) advance(seat Seat, e *expectation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if seat.Generation <= d.generation {
		return fmt.Errorf("ring server: generation %d comes after %d",
			seat.Generation, d.generation)
	}
	if d.expected != nil {
		d.expected.link <- nil
	}
	d.generation, d.expected = seat.Generation, e
	close(d.changed)
	d.changed = make(chan struct{})
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
	if len(md.Get(keyAsk)) > 0 {
		return stream.SendHeader(s.answerAsk())
	}
	door := s.doors[h.Circle]
	if reason := md.Get(keyAbort); len(reason) > 0 {
		door.abort(h, reason[0])
		return nil
	}
	link, deliver, err := door.admit(ctx, h)
	if err != nil {
		return err
	}
	link.stream = stream
	answer := hello{Seat: link.seat, to: h.Rank}.metadata()
	link.fetch(ctx, s.cfg.Way, md, answer)
	if link.intake = intakeOf(ctx); link.intake != nil {
		link.intake.open()
		defer link.intake.leave()
	}
	if err := stream.SendHeader(answer); err != nil {
		link.End(fmt.Errorf("is gone: %w", err))
	}
	deliver <- link
	return link.serve(ctx)
}

// admit waits until the worker is in the caller's generation, and gives the caller the place of
// the predecessor in it.
func (d *door) admit(ctx context.Context, h hello) (*predecessor, chan<- *predecessor, error) {
	deadline := time.NewTimer(d.cfg.PlanTimeout)
	defer deadline.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting >= maxWaiting {
		return nil, nil, status.Errorf(codes.Unavailable,
			"%d streams wait for this worker's plan already", d.waiting)
	}
	d.waiting++
	defer func() { d.waiting-- }()
	for h.Generation > d.generation {
		at, changed := d.generation, d.changed
		d.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		case <-deadline.C:
			err = status.Errorf(codes.Unavailable,
				"it is still at generation %d, not at %d, after %v", at, h.Generation,
				d.cfg.PlanTimeout)
		}
		d.mu.Lock()
		if err != nil {
			return nil, nil, err
		}
	}
	e := d.expected
	if h.Generation < d.generation {
		return nil, nil, refusal(fmt.Errorf("generation %d is stale, this worker is at %d",
			h.Generation, d.generation))
	}
	if e == nil {
		return nil, nil, refusal(fmt.Errorf("this worker waits for no link of generation %d",
			h.Generation))
	}
	if err := e.seat.check(h, e.seat.predecessor()); err != nil {
		return nil, nil, refusal(err)
	}
	d.expected = nil
	d.live = newPredecessor(e.seat, e.address)
	return d.live, e.link, nil
}

func refusal(err error) error {
	return status.Error(codes.FailedPrecondition, "refused: "+err.Error())
}

// abort breaks the live link if it is the caller's.
func (d *door) abort(h hello, reason string) {
	d.mu.Lock()
	link := d.live
	d.mu.Unlock()
	if link != nil && link.seat.check(h, link.seat.predecessor()) == nil {
		link.End(&allreduce.AbortError{Reason: shorten(reason)})
	}
}

// errLost is a stream that ended without a word.
var errLost = errors.New("is gone: its stream ended without a word")
