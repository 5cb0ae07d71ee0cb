package grpclink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"rondo/allreduce"
	"rondo/allreduce/shm"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// outgoingLimit is how many chunks may be in gRPC's hands: as many as the ring leaves alone.
	// Its own write quota lets it take the next one only when most of the last has been written.
	outgoingLimit = allreduce.MaxFlight

	// closeGrace is how long Close waits for the neighbour to have read everything.
	closeGrace = 2 * time.Second
)

// successor is the client's end of a link.
type successor struct {
	*allreduce.Ending
	peer   allreduce.Peer
	self   hello
	client // what the stream is on
	stream grpc.ClientStream
	cancel context.CancelFunc // of the stream
	ended  chan struct{}      // closed when the stream has

	sending sync.Mutex // held by Send; whoever cannot have it may not touch the stream's end
	free    chan *outgoing
	flight  atomic.Int32  // messages that gRPC may still read
	drained chan struct{} // has a token after flight became 0
	beats   atomic.Uint64 // of the successor

	cfg      DialConfig
	public   client      // at the successor's address
	local    string      // the name of the socket of this host that the stream goes by, if it does
	apart    string      // why it does not, if it was to
	sender   *shm.Sender // nil where chunks go over the stream
	unshared string      // why no memory is shared, if any was to be
}

// Dial opens the link from the worker in seat to its successor at address, and returns when the
// successor has taken it. It tries again while the successor is not up or not yet in this
// generation, until ctx or cfg.Timeout ends; a refusal is final.
func Dial(
	ctx context.Context, address string, seat Seat, cfg DialConfig,
) (allreduce.Successor, error) {
	cfg, err := cfg.validate()
	if err == nil {
		err = seat.validate()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	s := &successor{
		Ending:  allreduce.NewEnding(),
		peer:    seat.peer(seat.successor(), address),
		self:    hello{Seat: seat, to: seat.successor()},
		ended:   make(chan struct{}),
		free:    make(chan *outgoing, outgoingLimit),
		drained: make(chan struct{}, 1),
		cfg:     cfg,
	}
	if s.public, err = cfg.client(address); err != nil {
		return nil, err
	}
	s.client = s.public
	err = s.connect(ctx)
	if err != nil {
		s.client.close()
	}
	if s.client != s.public {
		s.public.close()
	}
	if err != nil {
		return nil, &allreduce.PeerError{Peer: s.peer, Err: fmt.Errorf(
			"ring link of generation %d to %v: %w", seat.Generation, s.peer, err)}
	}
	go s.watch()
	if s.sender != nil {
		return &mappedSuccessor{successor: s}, nil
	}
	if why := s.missed(); why != "" {
		err := &WayError{Peer: s.peer, Way: cfg.Way, Why: why}
		s.Abort(fmt.Sprintf("rank %d: %v", seat.called(), err))
		return nil, errors.Join(err, s.Close())
	}
	for range outgoingLimit {
		o := newOutgoing()
		o.done = func() { s.recycle(o) }
		o.freed = o.done
		if under := s.under.gathering(); under != nil {
			o.freed = func() { under.release(o) }
		}
		s.free <- o
	}
	return s, nil
}

// connect opens the stream, again and again while nobody answers.
func (s *successor) connect(ctx context.Context) error {
	start, last := time.Now(), error(nil)
	for {
		err := s.open(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && status.Code(err) != codes.Unavailable {
			return errors.New(status.Convert(err).Message())
		}
		if status.Code(err) == codes.Unavailable {
			last = errors.New(status.Convert(err).Message())
		}
		s.pause(ctx)
		if ctx.Err() == nil {
			continue
		}
		after := time.Since(start).Round(time.Millisecond)
		if last == nil {
			return fmt.Errorf("no answer after %v: %w", after, context.Cause(ctx))
		}
		return fmt.Errorf("no link after %v: %w (the last try: %w)",
			after, context.Cause(ctx), last)
	}
}

// pause waits until another attempt makes sense: as long as gRPC, which goes on trying to connect,
// has not come further, but for lastRetry at most.
func (s *successor) pause(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, lastRetry)
	defer cancel()
	if s.conn.GetState() == connectivity.TransientFailure {
		s.conn.WaitForStateChange(limited, connectivity.TransientFailure)
	} else { // the successor was there, and has no room or has gone
		<-limited.Done()
	}
}

// open makes one attempt. The stream outlives ctx, which bounds the handshake alone.
func (s *successor) open(ctx context.Context) error {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	if err := s.approach(ctx); err != nil {
		cancel()
		return err
	}
	said := s.self.metadata()
	offer := s.offer(said)
	if offer != nil {
		defer offer.Close()
	}
	streamCtx = metadata.NewOutgoingContext(streamCtx, said)
	stream, err := rondov1.NewRingClient(s.conn).Link(streamCtx)
	if err != nil {
		cancel()
		return err
	}
	md, err := stream.Header() // the successor's acceptance
	if err == nil && len(md.Get(keyFormat)) == 0 {
		if err = stream.RecvMsg(&incoming{}); err == nil || errors.Is(err, io.EOF) {
			err = errors.New("it answered without saying who it is")
		}
	}
	var answer hello
	if err == nil {
		answer, err = parseHello(md)
	}
	if err == nil {
		err = s.self.check(answer, s.self.to)
	}
	var sender *shm.Sender
	if err == nil {
		sender, err = s.settle(ctx, offer, md)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		if sender != nil {
			sender.Close()
		}
		return err
	}
	s.stream, s.cancel, s.sender = stream, cancel, sender
	return nil
}

// watch counts the successor's signs of life until it ends the stream, and learns why it does.
func (s *successor) watch() {
	defer close(s.ended)
	err := s.hear()
	switch st := status.Convert(err); {
	case errors.Is(err, io.EOF):
		s.End(allreduce.ErrLeft)
	case st.Code() == codes.Aborted:
		s.End(&allreduce.AbortError{Reason: st.Message()})
	default:
		s.End(fmt.Errorf("is gone: %s", st.Message()))
	}
	s.cancel()
	if s.sender != nil {
		s.sender.Interrupt() // a Send that waits
	}
}

// hear returns when the stream has ended, or something came that is no heartbeat.
func (s *successor) hear() error {
	var in incoming
	var m allreduce.Message
	want := allreduce.Header{Generation: s.self.Generation, Phase: allreduce.Heartbeat}
	for {
		err := s.stream.RecvMsg(&in)
		if err != nil {
			return err
		}
		if err = in.open(&m, nil); err == nil && m.Header != want {
			err = fmt.Errorf("{%v}", m.Header)
		}
		in.free()
		if err != nil {
			s.End(fmt.Errorf("sent a message against the stream: %w", err))
			return err
		}
		s.beats.Add(1)
	}
}

func (s *successor) Beats() uint64 { return s.beats.Load() }

func (s *successor) Peer() allreduce.Peer { return s.peer }

// Send hands the chunk to gRPC, which reads payload where it is.
func (s *successor) Send(h allreduce.Header, payload []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case o := <-s.free:
		o.load(h, payload)
		s.flight.Add(1)
		if err := s.stream.SendMsg(o); err != nil {
			s.cancel() // SendMsg does not know why; the watch does
			<-s.ended
			return s.Err()
		}
		return nil
	case <-s.Over():
		return s.Err()
	}
}

func (s *successor) recycle(o *outgoing) {
	s.free <- o // never waits: there is room for all that exist
	if s.flight.Add(-1) == 0 {
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
}

// Flush waits until all chunks have been written, or copied to gRPC's write buffer. A successor
// that has them all may have left already; what it has left unread is given back in a moment.
func (s *successor) Flush() error {
	for s.flight.Load() > 0 {
		select {
		case <-s.drained:
			continue
		case <-s.Over():
		}
		if !errors.Is(s.Err(), allreduce.ErrLeft) {
			return s.Err()
		}
		select {
		case <-s.drained:
		case <-time.After(closeGrace):
			return s.Err()
		}
	}
	return nil
}

// Abort says why in a call of its own beside the stream, whose flow control may be shut.
func (s *successor) Abort(reason string) {
	if !s.End(allreduce.ErrClosed) {
		s.cancel()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.AbortGrace)
	defer cancel()
	md := s.self.metadata()
	md.Set(keyAbort, shorten(reason))
	stream, err := rondov1.NewRingClient(s.conn).Link(metadata.NewOutgoingContext(ctx, md))
	if err == nil {
		_ = stream.RecvMsg(&incoming{}) // its end is the answer; after the grace, so be it
	}
	s.cancel()
	<-s.ended
}

// Close ends the stream after what was sent, waits a moment for the successor to have it all, if
// the link is not broken, and closes the connection.
func (s *successor) Close() error {
	if s.End(allreduce.ErrClosed) && s.sending.TryLock() {
		_ = s.stream.CloseSend() // it returns nil
		select {
		case <-s.ended:
		case <-time.After(closeGrace):
		}
		s.sending.Unlock()
	}
	s.cancel()
	<-s.ended
	if err := s.client.close(); err != nil && status.Code(err) != codes.Canceled {
		return fmt.Errorf("ring link to %v: %w", s.peer, err)
	}
	return nil
}
