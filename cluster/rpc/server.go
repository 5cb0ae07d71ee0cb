package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// Server is the Coordinator service of one process. It answers while the process leads; otherwise
// it says who does. It implements coordinator.Audience.
type Server struct {
	rondov1.UnimplementedCoordinatorServer
	id     string
	job    cluster.Job
	leader func(context.Context) (cluster.Leader, error)
	events chan cluster.Event

	// Heard, if set before the server serves, is called with each event that watchers are told.
	// An event is retold if an earlier leader had it. Several goroutines call it, and wait for it.
	Heard func(e *rondov1.Event, retold bool)

	mu       sync.Mutex
	term     *term // nil: this process does not lead
	sequence uint64
	streams  int
	told     bool          // a watcher was told the job's end
	quieter  chan struct{} // closed when a stream ends
}

// term is one leadership.
type term struct {
	hub  *hub
	over chan struct{} // closed when the leadership has ended

	mu      sync.Mutex
	plan    cluster.Plan
	planned chan struct{} // closed at the next plan
	ended   chan struct{} // closed when the job has
	done    map[string]*rondov1.DoneEvent
	scaling chan struct{} // one call of Scale at a time, so that each sees its own limit stored
	// The newest that were reported.
	step       *rondov1.StepEvent
	checkpoint *rondov1.CheckpointEvent
}

// NewServer returns the service of the coordinator id of a job. leader looks up who leads, for
// callers that came to the wrong place.
func NewServer(id string, job cluster.Job,
	leader func(context.Context) (cluster.Leader, error)) (*Server, error) {
	if id == "" || leader == nil {
		return nil, fmt.Errorf("rpc: a server needs an id and a way to find the leader; id %q", id)
	}
	return &Server{
		id: id, job: job, leader: leader, events: make(chan cluster.Event),
		quieter: make(chan struct{}),
	}, nil
}

// GRPC returns a gRPC server with this service and its limits.
func (s *Server) GRPC(options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(MessageLimit),
		grpc.MaxConcurrentStreams(StreamLimit),
		grpc.ConnectionTimeout(answerTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAlive, Timeout: answerTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: keepAlive / 2, PermitWithoutStream: true,
		}),
	}, options...)...)
	rondov1.RegisterCoordinatorServer(server, s)
	return server
}

// Events is what workers and people have said, for coordinator.Config.
func (s *Server) Events() <-chan cluster.Event { return s.events }

// Lead implements coordinator.Audience: the service answers from now on.
func (s *Server) Lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != nil {
		panic(fmt.Sprintf("rpc: %s leads already, and is elected again", s.id))
	}
	s.term = &term{
		hub: newHub(HistoryLimit), over: make(chan struct{}), planned: make(chan struct{}),
		ended: make(chan struct{}), done: make(map[string]*rondov1.DoneEvent),
		scaling: make(chan struct{}, 1),
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
		}})
	}
}

// Planned implements coordinator.Audience. With the end of the job watchers get their last event:
// failure, or what the first rank that reported its end has said.
func (s *Server) Planned(p cluster.Plan) {
	t := s.leads()
	if t == nil {
		return
	}
	t.mu.Lock()
	wasEnded := t.plan.Phase == cluster.Ended
	t.plan = p
	close(t.planned)
	t.planned = make(chan struct{})
	last := t.lastEvent()
	t.mu.Unlock()
	if p.Phase != cluster.Ended || wasEnded {
		return
	}
	s.publish(t, last)
	t.hub.finish()
	close(t.ended)
}

// lastEvent is what watchers are told at the job's end. The lock is held.
func (t *term) lastEvent() *rondov1.Event {
	if t.plan.Failed {
		return &rondov1.Event{Kind: &rondov1.Event_Failure{
			Failure: &rondov1.FailureEvent{Text: t.plan.Reason, Usage: t.plan.Usage},
		}}
	}
	for _, m := range t.plan.Members {
		if done := t.done[m.ID]; done != nil {
			if done.Stopped && strings.HasPrefix(t.plan.Reason, "stopped") {
				done.Reason = t.plan.Reason
			}
			return &rondov1.Event{Kind: &rondov1.Event_Done{Done: done}}
		}
	}
	if len(t.plan.Members) == 0 {
		done := &rondov1.DoneEvent{Stopped: true, Loss: math.NaN(), Step: t.step.GetStep(),
			Reason: t.plan.Reason}
		if t.checkpoint != nil { // what was done since went with the workers
			done.Step, done.Checkpoint = t.checkpoint.Step, t.checkpoint.Path
		}
		return &rondov1.Event{Kind: &rondov1.Event_Done{Done: done}}
	}
	// The job ended under another leader, which knew the figures.
	return &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Text: "the job has ended: " + t.plan.Reason},
	}}
}

// publish adds a record of the coordinator's own. The hub takes a source's records in order alone,
// so the lock is held until it has this one.
func (s *Server) publish(t *term, e *rondov1.Event) {
	s.mu.Lock()
	s.sequence++
	added := t.hub.add(&rondov1.Record{Source: s.id, Sequence: s.sequence, Event: e})
	s.mu.Unlock()
	if added && s.Heard != nil {
		s.Heard(e, false)
	}
}

// tell adds a worker's record, unless the hub has it.
func (s *Server) tell(t *term, r *rondov1.Record) {
	if t.hub.add(r) && s.Heard != nil {
		s.Heard(r.Event, r.Retold)
	}
}

// Drain returns when the job's end has been told to at least one watcher, and all streams have
// ended, or ctx has. It is for a process that wants to leave after the end of the job.
func (s *Server) Drain(ctx context.Context) error {
	for {
		s.mu.Lock()
		streams, told, quieter := s.streams, s.told, s.quieter
		s.mu.Unlock()
		if streams == 0 && told {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("coordinator %s: %d streams still open: %w", s.id, streams, ctx.Err())
		case <-quieter:
		}
	}
}

func (s *Server) leads() *term {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term
}

// enter returns the term that answers a call, and what is to be called at the call's end.
func (s *Server) enter(ctx context.Context) (*term, func(), error) {
	s.mu.Lock()
	t := s.term
	if t != nil {
		s.streams++
	}
	s.mu.Unlock()
	if t == nil {
		return nil, nil, s.elsewhere(ctx)
	}
	return t, s.exit, nil
}

func (s *Server) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
	close(s.quieter)
	s.quieter = make(chan struct{})
}

// elsewhere is the answer of a coordinator that does not lead.
func (s *Server) elsewhere(ctx context.Context) error {
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

// deliver hands an event to the coordinator's loop. After the job's end nobody needs it.
func (s *Server) deliver(ctx context.Context, t *term, e cluster.Event) error {
	select {
	case s.events <- e:
		return nil
	case <-t.ended:
		return nil
	case <-t.over:
		return s.elsewhere(ctx)
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
	// An answer at once, so that a watcher of a job in which nothing happens knows it is heard.
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
			s.told = true
			s.mu.Unlock()
			return nil
		}
		select {
		case <-changed:
		case <-t.over:
			return s.elsewhere(ctx)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// reportStream is a worker's stream as the server has it.
type reportStream = grpc.BidiStreamingServer[rondov1.Record, rondov1.Receipt]

// Report implements the service.
func (s *Server) Report(stream reportStream) error {
	ctx := stream.Context()
	t, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	// Receiving cannot be interrupted from here but by returning, which ends the stream and
	// with it the goroutine.
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, t) }()
	select {
	case err := <-received:
		return err
	case <-t.over:
		return s.elsewhere(ctx)
	}
}

// receive takes a worker's records until the stream ends.
func (s *Server) receive(stream reportStream, t *term) error {
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	if hello.Source == "" || hello.Event != nil {
		return status.Error(codes.InvalidArgument,
			"the first record of a report must have a source, and no event")
	}
	known, ok := t.hub.open(hello.Source)
	if !ok {
		return status.Errorf(codes.ResourceExhausted,
			"more than %d workers have reported in this term", SourceLimit)
	}
	if err := stream.Send(&rondov1.Receipt{Sequence: known}); err != nil {
		return err
	}
	for {
		record, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			s.broken(t, hello.Source, err)
			return err
		}
		if record.Source != hello.Source || record.Event.GetKind() == nil {
			return status.Errorf(codes.InvalidArgument,
				"record %d of %q on the stream of %q has no event, or is not its own",
				record.Sequence, record.Source, hello.Source)
		}
		if err := s.take(stream.Context(), t, record); err != nil {
			return err
		}
		if err := stream.Send(&rondov1.Receipt{Sequence: record.Sequence}); err != nil {
			return err
		}
	}
}

// take passes a record on: ends and failures to the coordinator, which decides what they mean for
// the job, everything else to the watchers.
func (s *Server) take(ctx context.Context, t *term, r *rondov1.Record) error {
	if t.hub.knows(r.Source, r.Sequence) {
		return nil
	}
	if kind, ok := r.Event.Kind.(*rondov1.Event_Done); ok {
		t.mu.Lock()
		t.done[r.Source] = kind.Done
		t.mu.Unlock()
	}
	event := ClusterEvent(r)
	if event == nil {
		t.note(r.Event)
		s.tell(t, r)
		return nil
	}
	if err := s.deliver(ctx, t, event); err != nil {
		return err
	}
	if r.Event.GetWorker() != nil { // people want to see it too
		s.tell(t, r)
		return nil
	}
	t.hub.mark(r.Source, r.Sequence)
	return nil
}

// note keeps what the job's end may need, if nobody is left to tell it.
func (t *term) note(e *rondov1.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if step := e.GetStep(); step != nil {
		t.step = step
	}
	if checkpoint := e.GetCheckpoint(); checkpoint != nil {
		t.checkpoint = checkpoint
	}
}

// ClusterEvent returns what the coordinator decides about; nil for what is for watchers alone.
func ClusterEvent(r *rondov1.Record) cluster.Event {
	switch kind := r.Event.Kind.(type) {
	case *rondov1.Event_Done:
		return cluster.Done{ID: r.Source, Generation: generation(kind.Done.Generation)}
	case *rondov1.Event_Failure:
		f := kind.Failure
		return cluster.Failed{ID: cmp.Or(f.Id, r.Source), Generation: generation(f.Generation),
			Text: f.Text, Usage: f.Usage, Fatal: f.Fatal, Resync: f.Resync}
	case *rondov1.Event_Suspect:
		e := kind.Suspect
		return cluster.Suspected{ID: r.Source, Generation: generation(e.Generation),
			Rank: cluster.Rank(e.Rank), Text: e.Text, Slow: e.Slow, Resync: e.Resync}
	case *rondov1.Event_Worker:
		return cluster.Seated{ID: r.Source, Generation: generation(kind.Worker.Generation)}
	case *rondov1.Event_Leaving:
		return cluster.Leaving{ID: r.Source, Generation: generation(kind.Leaving.Generation)}
	}
	return nil
}

// generation is one that came over the wire; an absurd one is of no ring.
func generation(g uint64) cluster.Generation {
	return cluster.Generation(min(g, math.MaxInt64))
}

// broken notes that a worker's stream ended without its doing, while the job goes on.
func (s *Server) broken(t *term, source string, err error) {
	select {
	case <-t.over:
	case <-t.ended:
	default:
		s.Notify(source, "its report stream broke: "+status.Convert(err).Message())
	}
}
