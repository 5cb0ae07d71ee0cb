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
	// outgoingLimit is the number of messages that gRPC may hold, as many as the ring keeps
	// unchanged. gRPC's own write quota accepts the next message only when most of the last is
	// written.
	outgoingLimit = allreduce.MaxFlight

	// closeGrace is how long Close waits until the neighbour has read everything.
	closeGrace = 2 * time.Second
)

// successor is the client's end of a link.
type successor struct {
	*allreduce.Ending
	peer   allreduce.Peer
	self   hello
	client // carries the stream
	stream grpc.ClientStream
	cancel context.CancelFunc // of the stream
	ended  chan struct{}      // closed when the stream has ended

	sealed  bool       // messages have a checksum
	sending sync.Mutex // held by Send; only its holder may close the stream for sending
	free    chan *outgoing
	flight  atomic.Int32  // messages that gRPC may still read
	drained chan struct{} // has a token after flight became 0
	beats   atomic.Uint64 // received from the successor

	cfg      DialConfig
	public   client      // at the successor's address
	local    string      // name of the unix socket that carries the stream; empty: none
	noSocket string      // why a wanted unix socket is not used
	sender   *shm.Sender // nil: chunks go over the stream
	noMemory string      // why memory that was wanted is not shared
}

// Dial opens the link from the worker in seat to its successor at address, and returns when the
// successor has accepted it. It retries while the successor is not up or not yet in this
// generation, until ctx or cfg.Timeout ends; for cfg.Refusals if its host refuses connections, and
// for cfg.Silence if none opens. A refusal by the successor itself is final.
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
	err = s.connectInTime(ctx)
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
		err := &TransportError{Peer: s.peer, Transport: cfg.Transport, Why: why}
		s.Abort(fmt.Sprintf("rank %d: %v", seat.name(), err))
		return nil, errors.Join(err, s.Close())
	}
	s.sealed = s.under.isCarried()
	for range outgoingLimit {
		o := newOutgoing()
		o.done = func() { s.recycle(o) }
		o.freed = o.done
		if under := s.under.writer(); under != nil {
			o.freed = func() { under.Release(o.done) }
		}
		s.free <- o
	}
	return s, nil
}

// connectInTime is connect, and gives up after cfg.Silence unless a connection has opened. If most
// of that time has passed when something else ends the try, the successor is unreachable too.
func (s *successor) connectInTime(ctx context.Context) error {
	if s.cfg.Silence == 0 {
		return s.connect(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(s.cfg.Silence, func() {
		if !s.public.under.isReached() {
			cancel(fmt.Errorf("it is cut off, or its host is down: %w", ErrUnreachable))
		}
	}).Stop()
	began := time.Now()
	err := s.connect(ctx)
	if err != nil && !errors.Is(err, ErrUnreachable) && !s.public.under.isReached() &&
		time.Since(began) >= s.cfg.Silence*3/4 {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// connect opens the stream. It retries while the successor is unavailable.
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
		if gone := s.cfg.Refusals; gone > 0 && s.public.under.refuses(gone) {
			return fmt.Errorf("its process has ended: %w: %w", ErrUnreachable, last)
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

// pause waits until another attempt makes sense: until gRPC leaves the state of failed connections,
// or lastRetry has passed.
func (s *successor) pause(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, lastRetry)
	defer cancel()
	if s.conn.GetState() == connectivity.TransientFailure {
		s.conn.WaitForStateChange(limited, connectivity.TransientFailure)
	} else { // the successor answered: it has no room, or has ended
		<-limited.Done()
	}
}

// open makes one attempt. ctx limits the handshake only; the stream may outlive it.
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
			err = errors.New("its answer lacks the metadata of a ring")
		}
	}
	var answer hello
	if err == nil {
		answer, err = parseHello(md)
		answer.answer = true
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

// watch counts the successor's beats until the stream ends, and records why it ended.
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
		s.sender.Interrupt() // ends a waiting Send
	}
}

// hear counts beats. It returns when the stream has ended or another message has arrived.
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

// Send passes the chunk to gRPC, which reads payload in place.
func (s *successor) Send(h allreduce.Header, payload []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case o := <-s.free:
		o.load(h, payload, s.sealed)
		s.flight.Add(1)
		if err := s.stream.SendMsg(o); err != nil {
			s.cancel() // only watch knows the reason
			<-s.ended
			return s.Err()
		}
		return nil
	case <-s.Over():
		return s.Err()
	}
}

func (s *successor) recycle(o *outgoing) {
	s.free <- o // never waits: it has room for all messages
	if s.flight.Add(-1) == 0 {
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
}

// Flush waits until all chunks are written, or copied to gRPC's write buffer. A successor that has
// received them all may have left already. gRPC then frees the messages within a moment.
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

// Abort sends the reason in a separate call, because the stream's flow control may block it.
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
		_ = stream.RecvMsg(&incoming{}) // its end is the answer
	}
	s.cancel()
	<-s.ended
}

// Close ends the stream after the messages sent. If the link is not broken, it waits up to
// closeGrace for the successor to read them. Then it closes the connection.
func (s *successor) Close() error {
	if s.End(allreduce.ErrClosed) && s.sending.TryLock() {
		_ = s.stream.CloseSend() // always returns nil
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
