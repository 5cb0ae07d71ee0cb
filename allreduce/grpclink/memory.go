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
	"rondo/allreduce/shm"
)

// Way says by what chunks go between neighbours. In shared memory the stream has only the
// handshake, the successor's signs of life, and the ending.
type Way int

const (
	// ByTCP is gRPC at the worker's address, as between hosts.
	ByTCP Way = iota
	// ByAny is, between neighbours on one host, the first of shared memory and a unix socket that
	// they can have, and TCP elsewhere.
	ByAny
	// ByUnix is gRPC on a unix socket, and fails where there can be none.
	ByUnix
	// ByShm is shared memory, and fails where there can be none.
	ByShm
)

// String is what --link calls it.
func (w Way) String() string {
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

// WayError says that neighbours cannot be linked as they must.
type WayError struct {
	Peer allreduce.Peer
	Way  Way // ByUnix or ByShm
	Why  string
}

// Error names the peer and the way out.
func (e *WayError) Error() string {
	what := "shared memory"
	if e.Way == ByUnix {
		what = "unix socket"
	}
	return fmt.Sprintf("no %s with %v: %s; --link auto takes TCP there", what, e.Peer, e.Why)
}

// A predecessor that wants to share memory offers it in the metadata; the answer takes it, or
// says why not. It is not there when the neighbour does not know of shared memory.
const (
	keyOffer    = "rondo-memory"
	keyTaken    = "rondo-memory-taken"
	keyNotTaken = "rondo-memory-not-taken-bin"
)

// offer makes an offer and adds it to the metadata of a stream, if one is to be made and can be.
func (s *successor) offer(md metadata.MD) *shm.Offer {
	if s.cfg.Way != ByAny && s.cfg.Way != ByShm {
		return nil
	}
	offer, err := shm.NewOffer()
	if err != nil {
		s.unshared = err.Error()
		return nil
	}
	md.Set(keyOffer, string(offer.Ticket()))
	return offer
}

// settle returns this end of the memory that the successor's answer says it has taken, nil if it
// has none.
func (s *successor) settle(
	ctx context.Context, offer *shm.Offer, answer metadata.MD,
) (*shm.Sender, error) {
	if offer == nil {
		return nil, nil
	}
	if len(answer.Get(keyTaken)) == 0 {
		s.unshared = "the neighbour's version knows no shared memory"
		if why := answer.Get(keyNotTaken); len(why) > 0 {
			s.unshared = shorten(why[0])
		}
		return nil, nil
	}
	sender, err := offer.Wait(ctx)
	if err != nil {
		err = fmt.Errorf("it says that it has the shared memory: %w", err)
	}
	return sender, err
}

// fetch takes what the predecessor's metadata offer, if anything, and says in the answer's how
// that went.
func (p *predecessor) fetch(ctx context.Context, way Way, offered, answer metadata.MD) {
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
		p.unshared = err.Error()
		answer.Set(keyNotTaken, shorten(p.unshared))
		return
	}
	answer.Set(keyTaken, "1")
}

// handovers is how often an offer is tried: the first may fail of a moment without time or memory,
// and what it would cost is a ring over gRPC for as long as it lasts, or none at all. More would be
// worth less than an answer before the neighbour waits no longer.
const handovers = 3

// take takes the offer. Its error is that of the first try, which others may have come of.
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

// Describe says by what each neighbour is linked, for a person: "shm to rank 1, tcp from rank 3
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
	unshared := s.unshared
	if unshared == "" {
		unshared = s.apart
	}
	return way(s.sender != nil, s.under.kind(), "to", s.peer, unshared)
}

func (p *predecessor) way() string {
	network := "tcp"
	if from, ok := peer.FromContext(p.stream.Context()); ok {
		network = from.Addr.Network()
	}
	return way(p.receiver != nil, network, "from", p.peer, p.unshared)
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

// mappedSuccessor is a successor whose chunks go through shared memory.
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
	appendHeader(m.head[:0], h)
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

// errHungUp is of a neighbour whose stream stays although its socket has gone.
var errHungUp = errors.New("is gone: it has closed its end of the shared memory")

// awaitEnd gives the stream, which says why, a moment to end as the socket has.
func (m *mappedSuccessor) awaitEnd() {
	select {
	case <-m.Over():
	case <-time.After(closeGrace):
	}
}

// Flush has nothing to wait for: Send has copied everything.
func (m *mappedSuccessor) Flush() error { return nil }

// Close lets the successor take what was sent, as that of a link without memory does.
func (m *mappedSuccessor) Close() error {
	if m.Err() == nil && m.sending.TryLock() { // a Send that waits will not get through
		m.sender.Finish()
		m.sending.Unlock()
	}
	err := m.successor.Close()
	m.sending.Lock() // a Send that waited has been interrupted
	defer m.sending.Unlock()
	m.closing.Do(m.sender.Close)
	return err
}

// mappedPredecessor is a predecessor whose chunks come through shared memory.
type mappedPredecessor struct {
	*predecessor
	release func()
}

func newMappedPredecessor(p *predecessor) *mappedPredecessor {
	return &mappedPredecessor{predecessor: p, release: p.receiver.Release}
}

// Receive returns the chunk where it lies in the memory.
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
	h, err := parseHeader(head[:headerBytes], headerBytes+len(body))
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

// explain ends the link when nothing can be received any more. When the socket has ended, or the
// call was interrupted, the stream says why.
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
