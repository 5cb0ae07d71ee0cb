package grpclink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
	"rondo/allreduce/shm"
)

// Transport is how chunks travel between neighbours. With shared memory the stream carries only the
// handshake, the successor's beats and the end.
type Transport int

const (
	// ByTCP is gRPC at the worker's address, as between hosts.
	ByTCP Transport = iota
	// ByAny is the first of shared memory, a unix socket and TCP that works.
	ByAny
	// ByUnix is gRPC on a unix socket, and fails without one.
	ByUnix
	// ByShm is shared memory, and fails without it.
	ByShm
)

// String returns the way's name in --link.
func (w Transport) String() string {
	switch w {
	case ByTCP:
		return "tcp"
	case ByUnix:
		return "unix"
	case ByShm:
		return "shm"
	}
	return "auto"
}

// TransportError says that neighbours cannot use the required Transport.
type TransportError struct {
	Peer      allreduce.Peer
	Transport Transport // ByUnix or ByShm
	Why       string
}

// Error names the peer, the reason and the remedy.
func (e *TransportError) Error() string {
	what := "shared memory"
	if e.Transport == ByUnix {
		what = "unix socket"
	}
	return fmt.Sprintf("no %s with %v: %s; --link auto takes TCP there", what, e.Peer, e.Why)
}

// Metadata keys. A predecessor offers shared memory in keyOffer. The answer has keyTaken, or
// keyNotTaken with the reason, or neither if the neighbour's version does not support it.
const (
	keyOffer    = "rondo-memory"
	keyTaken    = "rondo-memory-taken"
	keyNotTaken = "rondo-memory-not-taken-bin"
)

// offer adds an offer of shared memory to md. It returns nil if none is wanted or possible.
func (s *successor) offer(md metadata.MD) *shm.Offer {
	if s.cfg.Transport != ByAny && s.cfg.Transport != ByShm {
		return nil
	}
	offer, err := shm.NewOffer()
	if err != nil {
		s.noMemory = err.Error()
		return nil
	}
	md.Set(keyOffer, string(offer.Ticket()))
	return offer
}

// settle returns this end of the shared memory if the successor's answer says that it has taken the
// offer, and nil otherwise.
func (s *successor) settle(
	ctx context.Context, offer *shm.Offer, answer metadata.MD,
) (*shm.Sender, error) {
	if offer == nil {
		return nil, nil
	}
	if len(answer.Get(keyTaken)) == 0 {
		s.noMemory = "the neighbour's version knows no shared memory"
		if why := answer.Get(keyNotTaken); len(why) > 0 {
			s.noMemory = shorten(why[0])
		}
		return nil, nil
	}
	sender, err := offer.Wait(ctx)
	if err != nil {
		err = fmt.Errorf("it says that it has the shared memory: %w", err)
	}
	return sender, err
}

// fetch takes the memory that the predecessor's metadata offer, if any, and writes the result into
// answer.
func (p *predecessor) fetch(ctx context.Context, way Transport, offered, answer metadata.MD) {
	ticket := offered.Get(keyOffer)
	if len(ticket) == 0 {
		return
	}
	var err error
	if way != ByAny && way != ByShm {
		err = errors.New("the neighbour is to use none")
	} else {
		p.receiver, err = take(ctx, shm.Ticket(ticket[0]))
	}
	if err != nil {
		p.noMemory = err.Error()
		answer.Set(keyNotTaken, shorten(p.noMemory))
		return
	}
	answer.Set(keyTaken, "1")
}

// handovers is the number of tries to take an offer. A first try may fail for a moment's lack of
// time or memory, and the ring would lose shared memory for good. More tries could last longer than
// the neighbour waits for the answer.
const handovers = 3

// take takes the offer. It returns the first try's error, which may have caused the later ones.
func take(ctx context.Context, ticket shm.Ticket) (*shm.Receiver, error) {
	var first error
	for range handovers {
		receiver, err := shm.Take(ctx, ticket)
		if err == nil {
			return receiver, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// Describe returns how each neighbour is linked, for people: "shm to rank 1, tcp from rank 3
// (why)". It is empty for a ring of one.
func Describe(links allreduce.Links) string {
	var ways []string
	if s, ok := links.Successor.(interface{ way() string }); ok {
		ways = append(ways, s.way())
	}
	if p, ok := links.Predecessor.(interface{ way() string }); ok {
		ways = append(ways, p.way())
	}
	return strings.Join(ways, ", ")
}

func (s *successor) way() string {
	unshared := s.noMemory
	if unshared == "" {
		unshared = s.noSocket
	}
	return way(s.sender != nil, s.under.kind(), "to", s.peer, unshared)
}

func (p *predecessor) way() string {
	network := "tcp"
	if from, ok := peer.FromContext(p.stream.Context()); ok {
		network = from.Addr.Network()
	}
	return way(p.receiver != nil, network, "from", p.peer, p.noMemory)
}

func way(shared bool, network, direction string, peer allreduce.Peer, unshared string) string {
	switch {
	case shared:
		return fmt.Sprintf("%v %s rank %d", ByShm, direction, peer.Rank)
	case unshared != "":
		return fmt.Sprintf("%s %s rank %d (%s)", network, direction, peer.Rank, unshared)
	}
	return fmt.Sprintf("%s %s rank %d", network, direction, peer.Rank)
}

// mappedSuccessor is a successor that sends chunks through shared memory.
type mappedSuccessor struct {
	*successor
	head    [shm.HeadBytes]byte
	closing sync.Once
}

// Send copies the chunk into the memory.
func (m *mappedSuccessor) Send(h allreduce.Header, payload []byte) error {
	m.sending.Lock()
	defer m.sending.Unlock()
	if err := m.Err(); err != nil {
		return err
	}
	framing.AppendHeader(m.head[:0], h)
	err := m.sender.Send(m.head[:], payload)
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		m.awaitEnd()
		err = errHungUp
	}
	m.End(err)
	return m.Err()
}

// errHungUp is the error when the neighbour's socket has ended but its stream has not.
var errHungUp = errors.New("is gone: it has closed its end of the shared memory")

// awaitEnd gives the stream a moment to end like the socket. The stream knows the reason.
func (m *mappedSuccessor) awaitEnd() {
	select {
	case <-m.Over():
	case <-time.After(closeGrace):
	}
}

// Flush has nothing to wait for: Send has copied everything.
func (m *mappedSuccessor) Flush() error { return nil }

// Close lets the successor receive the chunks sent, as a link without shared memory does.
func (m *mappedSuccessor) Close() error {
	if m.Err() == nil && m.sending.TryLock() { // a waiting Send cannot finish any more
		m.sender.Finish()
		m.sending.Unlock()
	}
	err := m.successor.Close()
	m.sending.Lock() // a waiting Send has been interrupted by now
	defer m.sending.Unlock()
	m.closing.Do(m.sender.Close)
	return err
}

// mappedPredecessor is a predecessor that receives chunks through shared memory.
type mappedPredecessor struct {
	*predecessor
	release func()
}

func newMappedPredecessor(p *predecessor) *mappedPredecessor {
	return &mappedPredecessor{predecessor: p, release: p.receiver.Release}
}

// Receive returns the chunk in the shared memory.
func (m *mappedPredecessor) Receive(message *allreduce.Message) error {
	if err := m.Err(); err != nil {
		return err
	}
	m.receiving.Lock()
	defer m.receiving.Unlock()
	head, body, err := m.receiver.Receive()
	if err != nil {
		m.explain(err)
		return m.Err()
	}
	h, err := framing.ParseHeader(head[:framing.HeaderBytes], framing.HeaderBytes+len(body))
	if err != nil {
		m.End(err)
	}
	if err := m.Err(); err != nil { // nothing is delivered after an abort
		m.release()
		return err
	}
	message.Header, message.Pieces = h, message.Pieces[:0]
	if len(body) > 0 {
		message.Pieces = append(message.Pieces, body)
	}
	message.OnRelease = m.release
	return nil
}

// explain ends the link when no chunk can be received any more. If the socket has ended or the call
// was interrupted, the stream gives the reason.
func (m *mappedPredecessor) explain(err error) {
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		m.End(err)
		return
	}
	in := m.take()
	defer in.release()
	if err := m.stream.RecvMsg(in); err != nil {
		m.end(err)
		return
	}
	m.End(errors.New("sent a chunk on the stream, beside the shared memory"))
}
