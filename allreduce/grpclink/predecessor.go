package grpclink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
	"rondo/allreduce/shm"
	rondov1 "rondo/proto/rondo/v1"
)

// predecessor is the server's end of a link.
type predecessor struct {
	*allreduce.Ending
	peer    allreduce.Peer
	seat    Seat // this worker's seat
	stream  rondov1.Ring_LinkServer
	reader  *framing.Reader // under the stream; nil with TLS
	verdict chan error      // result of the handler, set once by Close, Abort or the end
	ended   chan struct{}   // closed when the handler has returned
	spare   chan *incoming
	beat    chan *outgoing // the message for beats, while it is free

	connection *framing.Connection // carries the stream

	// receiving is held by Receive: if the stream breaks meanwhile, only Receive knows the reason.
	receiving sync.Mutex

	receiver *shm.Receiver // nil: chunks come over the stream
	noMemory string        // why memory that was wanted is not shared
}

func newPredecessor(seat Seat, address string) *predecessor {
	p := &predecessor{
		Ending:  allreduce.NewEnding(),
		peer:    seat.peer(seat.predecessor(), address),
		seat:    seat,
		verdict: make(chan error, 1),
		ended:   make(chan struct{}),
		spare:   make(chan *incoming, 2),
		beat:    make(chan *outgoing, 1),
	}
	o := newOutgoing()
	o.freed = func() { p.beat <- o } // never waits: there is only one
	p.beat <- o
	return p
}

// serve is the stream's handler. It keeps the stream open until either side ends the link.
func (p *predecessor) serve(ctx context.Context) error {
	defer close(p.ended)
	select {
	case err := <-p.verdict:
		p.interrupt()
		return err
	case <-ctx.Done():
		p.interrupt()
		p.receiving.Lock()
		defer p.receiving.Unlock()
		p.End(errLost)
		return status.FromContextError(ctx.Err()).Err()
	}
}

// interrupt ends a Receive that waits for shared memory. The stream's end ends any other.
func (p *predecessor) interrupt() {
	if p.receiver != nil {
		p.receiver.Interrupt()
	}
}

// conclude makes the handler return err, unless it already has a result.
func (p *predecessor) conclude(err error) {
	select {
	case p.verdict <- err:
	default:
	}
}

func (p *predecessor) Peer() allreduce.Peer { return p.peer }

func (p *predecessor) Receive(m *allreduce.Message) error {
	if err := p.Err(); err != nil {
		return err
	}
	p.receiving.Lock()
	defer p.receiving.Unlock()
	in := p.take()
	if err := p.stream.RecvMsg(in); err != nil {
		p.end(err)
		return p.Err()
	}
	if err := in.open(m, p.reader); err != nil {
		in.release()
		p.End(err)
		return p.Err()
	}
	m.OnRelease = in.release
	return nil
}

func (p *predecessor) end(err error) {
	switch st := status.Convert(err); {
	case errors.Is(err, io.EOF):
		p.End(allreduce.ErrLeft)
		p.conclude(nil) // the sender waits until everything is read
	case st.Code() == codes.Canceled || st.Code() == codes.DeadlineExceeded:
		p.End(errLost)
	default:
		p.End(fmt.Errorf("%s", st.Message()))
	}
}

func (p *predecessor) take() *incoming {
	select {
	case in := <-p.spare:
		return in
	default:
	}
	in := &incoming{}
	in.release = func() {
		in.free()
		select {
		case p.spare <- in:
		default:
		}
	}
	return in
}

// Beat never waits: gRPC accepts a message at once while it holds no other.
func (p *predecessor) Beat() {
	if p.Err() != nil {
		return
	}
	select {
	case o := <-p.beat:
		o.load(allreduce.Header{Generation: p.seat.Generation, Phase: allreduce.Heartbeat}, nil,
			false)
		_ = p.stream.SendMsg(o) // the handler sees an ended stream
	default:
	}
}

func (p *predecessor) Abort(reason string) {
	p.End(allreduce.ErrClosed)
	p.conclude(status.Error(codes.Aborted, shorten(reason)))
}

func (p *predecessor) Close() error {
	p.End(allreduce.ErrClosed)
	p.conclude(nil)
	<-p.ended
	if p.receiver != nil {
		p.receiver.Close()
	}
	return nil
}
