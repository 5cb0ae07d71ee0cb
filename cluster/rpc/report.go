package rpc

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// reportStream is the server's side of a worker's stream.
type reportStream = grpc.BidiStreamingServer[rondov1.Record, rondov1.Receipt]

// Report implements the service.
func (s *Server) Report(stream reportStream) error {
	ctx := stream.Context()
	t, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	// A Recv can only be interrupted by returning from here, which ends the stream and its
	// goroutine.
	received, opened := make(chan error, 1), make(chan struct{})
	go func() { received <- s.receive(stream, t, opened) }()
	silence := time.NewTimer(answerTimeout)
	defer silence.Stop()
	for {
		select {
		case err := <-received:
			return err
		case <-t.over:
			return s.notLeading(ctx)
		case <-opened:
			opened = nil
			silence.Stop()
			s.reporters.Add(1)
			defer s.reporters.Add(-1)
			defer s.keep(ctx)()
		case <-silence.C:
			return status.Errorf(codes.DeadlineExceeded, "no first record within %v",
				answerTimeout)
		}
	}
}

// receive takes a worker's records, and closes opened when it has named itself.
func (s *Server) receive(stream reportStream, t *term, opened chan<- struct{}) error {
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	if hello.Source == "" || len(hello.Source) > SourceBytes || hello.Event != nil {
		return status.Errorf(codes.InvalidArgument, "the first record of a report must have a "+
			"source of at most %d bytes, and no event", SourceBytes)
	}
	known, ok := t.hub.open(hello.Source)
	if !ok {
		return status.Errorf(codes.ResourceExhausted,
			"more than %d workers have reported in this term", SourceLimit)
	}
	close(opened)
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
				"record %d of %.40q on the stream of %.40q has no event, or is not its own",
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

// take passes a record on. Ends and failures go to the coordinator, which decides their effect on
// the job; all others go to the watchers.
func (s *Server) take(ctx context.Context, t *term, r *rondov1.Record) error {
	if t.hub.knows(r.Source, r.Sequence) {
		return nil
	}
	event := ClusterEvent(r)
	if event == nil {
		t.note(r.Event)
		s.forward(t, r)
		return nil
	}
	if err := s.deliver(ctx, t, event); err != nil {
		return err
	}
	if r.Event.GetWorker() != nil { // watchers get it too
		s.forward(t, r)
		return nil
	}
	t.hub.mark(r.Source, r.Sequence)
	return nil
}

// note keeps figures for lastEvent, in case no worker is left.
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

// ClusterEvent returns a record's event for the coordinator; nil if only watchers need it. It is
// about the record's source, whatever id the event has.
func ClusterEvent(r *rondov1.Record) cluster.Event {
	switch kind := r.Event.Kind.(type) {
	case *rondov1.Event_Done:
		result, err := proto.MarshalOptions{Deterministic: true}.Marshal(kind.Done)
		if err != nil { // invalid UTF-8
			result = nil
		}
		return cluster.Done{ID: r.Source, Generation: generation(kind.Done.Generation),
			Result: string(result)}
	case *rondov1.Event_Failure:
		f := kind.Failure
		return cluster.Failed{ID: r.Source, Generation: generation(f.Generation),
			Text: f.Text, Usage: f.Usage, Fatal: f.Fatal, Resync: f.Resync}
	case *rondov1.Event_Suspect:
		e := kind.Suspect
		return cluster.Suspected{ID: r.Source, Generation: generation(e.Generation),
			Rank: cluster.Rank(e.Rank), Text: e.Text, Slow: e.Slow, Resync: e.Resync,
			Unreachable: e.Unreachable}
	case *rondov1.Event_Worker:
		return cluster.Seated{ID: r.Source, Generation: generation(kind.Worker.Generation)}
	case *rondov1.Event_Leaving:
		return cluster.Leaving{ID: r.Source, Generation: generation(kind.Leaving.Generation)}
	}
	return nil
}

// generation converts a generation from the wire. A value out of range matches no ring.
func generation(g uint64) cluster.Generation {
	return cluster.Generation(min(g, math.MaxInt64))
}

// broken notifies people that a worker's stream broke while the job goes on.
func (s *Server) broken(t *term, source string, err error) {
	select {
	case <-t.over:
	case <-t.ended:
	default:
		s.Notify(source, "its report stream broke: "+status.Convert(err).Message())
	}
}
