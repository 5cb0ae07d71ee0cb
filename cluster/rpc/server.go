package rpc

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// Server is the Coordinator service of one process. While the process leads, it answers; otherwise
// it names the leader. It implements coordinator.Audience.
type Server struct {
	rondov1.UnimplementedCoordinatorServer
	id     string
	job    cluster.Job
	leader func(context.Context) (cluster.Leader, error)
	events chan cluster.Event

	// Heard is called with each event for watchers. Set it before the server serves. retold: an
	// earlier leader had the event. Several goroutines call it, and wait for it.
	Heard func(e *rondov1.Event, retold bool)
	// Keep, if set, is called with the address of each reporter and watcher, and its result when
	// their call ends; see connlimit.Listener. Set it before the server serves.
	Keep func(remote net.Addr) (release func())

	reporters atomic.Int32 // workers that report: those of the ring and those that wait for a seat

	mu          sync.Mutex
	term        *term // nil: this process does not lead
	sequence    uint64
	streams     int
	watchers    int
	endSeen     bool          // a watcher has received the job's end
	streamEnded chan struct{} // closed when a stream ends
}

// term is one leadership.
type term struct {
	hub  *hub
	over chan struct{} // closed at the end of the leadership

	mu      sync.Mutex
	plan    cluster.Plan
	planned chan struct{} // closed at the next plan
	ended   chan struct{} // closed at the end of the job
	scaling chan struct{} // one Scale call at a time, so that each waits for its own limit
	// The newest reported ones.
	step       *rondov1.StepEvent
	checkpoint *rondov1.CheckpointEvent
}

// NewServer returns the service of coordinator id of a job. leader returns the present leader, for
// calls to a coordinator that does not lead.
func NewServer(id string, job cluster.Job,
	leader func(context.Context) (cluster.Leader, error)) (*Server, error) {
	if id == "" || leader == nil {
		return nil, fmt.Errorf("rpc: a server needs an id and a way to find the leader; id %q", id)
	}
	return &Server{
		id: id, job: job, leader: leader, events: make(chan cluster.Event),
		streamEnded: make(chan struct{}),
	}, nil
}

// GRPC returns a gRPC server with this service and its limits.
func (s *Server) GRPC(options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(MessageLimit),
		grpc.MaxConcurrentStreams(StreamLimit),
		grpc.MaxHeaderListSize(HeaderLimit),
		// Constant windows: gRPC would let a sender's grow to 16 MiB.
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(streamWindow),
		grpc.ConnectionTimeout(answerTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAlive, Timeout: answerTimeout,
			MaxConnectionIdle: idleLimit}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: keepAlive / 2, PermitWithoutStream: true,
		}),
	}, options...)...)
	rondov1.RegisterCoordinatorServer(server, s)
	return server
}

// Events returns the reports and requests, for coordinator.Config.
func (s *Server) Events() <-chan cluster.Event { return s.events }

// Lead implements coordinator.Audience: the service answers from now on.
func (s *Server) Lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != nil {
		panic(fmt.Sprintf("rpc: %s leads already, and is elected again", s.id))
	}
	s.term = &term{
		hub: newHub(HistoryLimit, HistoryBytes), over: make(chan struct{}),
		planned: make(chan struct{}), ended: make(chan struct{}), scaling: make(chan struct{}, 1),
	}
}

// Follow implements coordinator.Audience: all streams end, and callers are sent to the leader.
func (s *Server) Follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != nil {
		close(s.term.over)
		s.term = nil
	}
}

// Notify implements coordinator.Audience.
func (s *Server) Notify(id, text string) {
	if t := s.leads(); t != nil {
		s.publish(t, &rondov1.Event{Kind: &rondov1.Event_Notice{
			Notice: &rondov1.NoticeEvent{Id: id, Text: text},
		}}, false)
	}
}

// Planned implements coordinator.Audience. At the end of the job watchers get a last event: the
// failure, or the report of the first rank, in rank order, that reported its end.
func (s *Server) Planned(p cluster.Plan) {
	t := s.leads()
	if t == nil {
		return
	}
	t.mu.Lock()
	wasEnded := t.plan.Phase == cluster.Ended
	// Workers ended in a ring that this leader has not led: an earlier one has announced the end.
	retold := t.plan.Equal(cluster.Plan{}) && p.Result != ""
	t.plan = p
	close(t.planned)
	t.planned = make(chan struct{})
	last := t.lastEvent()
	t.mu.Unlock()
	if p.Phase != cluster.Ended || wasEnded {
		return
	}
	s.publish(t, last, retold)
	t.hub.finish()
	close(t.ended)
}

// lastEvent returns the watchers' last event of the job. The caller holds the lock.
func (t *term) lastEvent() *rondov1.Event {
	if t.plan.Failed {
		return &rondov1.Event{Kind: &rondov1.Event_Failure{
			Failure: &rondov1.FailureEvent{Text: t.plan.Reason, Usage: t.plan.Usage},
		}}
	}
	done := &rondov1.DoneEvent{}
	if r := t.plan.Result; r != "" && proto.Unmarshal([]byte(r), done) == nil {
		if done.Stopped && strings.HasPrefix(t.plan.Reason, "stopped") {
			done.Reason = t.plan.Reason
		}
		return &rondov1.Event{Kind: &rondov1.Event_Done{Done: done}}
	}
	if len(t.plan.Members) == 0 {
		done = &rondov1.DoneEvent{Stopped: true, Loss: math.NaN(), Step: t.step.GetStep(),
			Reason: t.plan.Reason}
		if t.checkpoint != nil { // later steps are lost with the workers
			done.Step, done.Checkpoint = t.checkpoint.Step, t.checkpoint.Path
		}
		return &rondov1.Event{Kind: &rondov1.Event_Done{Done: done}}
	}
	// The job's leader was of a version that stored no result.
	return &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Text: "the job has ended: " + t.plan.Reason},
	}}
}

// publish adds a record of the coordinator. retold: an earlier leader had the event. The lock is
// held until the hub has the record, because the hub accepts a source's records only in order.
func (s *Server) publish(t *term, e *rondov1.Event, retold bool) {
	s.mu.Lock()
	s.sequence++
	added := t.hub.add(&rondov1.Record{Source: s.id, Sequence: s.sequence, Event: e})
	s.mu.Unlock()
	if added && s.Heard != nil {
		s.Heard(e, retold)
	}
}

// forward adds a worker's record, unless the hub has it.
func (s *Server) forward(t *term, r *rondov1.Record) {
	if t.hub.add(r) && s.Heard != nil {
		s.Heard(r.Event, r.Retold)
	}
}

// Drain waits until at least one watcher has received the job's end, and all streams have ended, or
// until ctx ends. A process calls it before it exits after the job's end.
func (s *Server) Drain(ctx context.Context) error {
	for {
		s.mu.Lock()
		streams, seen, ended := s.streams, s.endSeen, s.streamEnded
		s.mu.Unlock()
		if streams == 0 && seen {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("coordinator %s: %d streams still open: %w", s.id, streams, ctx.Err())
		case <-ended:
		}
	}
}

func (s *Server) leads() *term {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term
}

// enter returns the term for a call, and a function to call when the call ends.
func (s *Server) enter(ctx context.Context) (*term, func(), error) {
	s.mu.Lock()
	t := s.term
	if t != nil {
		s.streams++
	}
	s.mu.Unlock()
	if t == nil {
		return nil, nil, s.notLeading(ctx)
	}
	return t, s.exit, nil
}

// watching changes the number of watchers, and returns false if there are too many.
func (s *Server) watching(change int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers+change > WatchLimit {
		return false
	}
	s.watchers += change
	return true
}

func (s *Server) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
	close(s.streamEnded)
	s.streamEnded = make(chan struct{})
}

// notLeading returns the error of a coordinator that does not lead. It names the leader.
func (s *Server) notLeading(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	leader, err := s.leader(limited)
	switch {
	case err != nil:
		return status.Errorf(codes.Unavailable,
			"coordinator %s does not lead the job: %v", s.id, err)
	case leader.ID == s.id:
		return status.Errorf(codes.Unavailable, "coordinator %s is about to lead the job", s.id)
	}
	return status.Errorf(codes.Unavailable,
		"coordinator %s does not lead the job; %s at %s does", s.id, leader.ID, leader.Address)
}

// deliver passes an event to the coordinator's loop. After the job's end it drops the event.
func (s *Server) deliver(ctx context.Context, t *term, e cluster.Event) error {
	select {
	case s.events <- e:
		return nil
	case <-t.ended:
		return nil
	case <-t.over:
		return s.notLeading(ctx)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Watch implements the service.
func (s *Server) Watch(_ *rondov1.WatchRequest,
	stream grpc.ServerStreamingServer[rondov1.Record]) error {
	ctx := stream.Context()
	t, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !s.watching(1) {
		return status.Errorf(codes.ResourceExhausted, "%d others watch this job already",
			WatchLimit)
	}
	defer s.watching(-1)
	defer s.keep(ctx)()
	// The header is sent at once, so that a watcher of a quiet job knows that the leader answers.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for at := uint64(0); ; {
		batch, changed, over := t.hub.after(at)
		for _, n := range batch {
			if err := stream.Send(n.record); err != nil {
				return err
			}
			at = n.number
		}
		if len(batch) > 0 {
			continue
		}
		if over {
			s.mu.Lock()
			s.endSeen = true
			s.mu.Unlock()
			return nil
		}
		select {
		case <-changed:
		case <-t.over:
			return s.notLeading(ctx)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// keep marks a call's connection as one that is in use, until the returned function is called.
func (s *Server) keep(ctx context.Context) (release func()) {
	from, ok := peer.FromContext(ctx)
	if s.Keep == nil || !ok {
		return func() {}
	}
	return s.Keep(from.Addr)
}

// Connections returns how many open connections the leader has room for: some for each worker that
// the ring may have now, one for each that reports, and some for people.
func (s *Server) Connections() int {
	const perWorker, more = 4, 32
	plan := cluster.Plan{}
	if t := s.leads(); t != nil {
		t.mu.Lock()
		plan = t.plan
		t.mu.Unlock()
	}
	return perWorker*s.job.Limit(plan) + int(s.reporters.Load()) + more
}
