package allreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

// Rank is a worker's place in the ring of one generation, 0 to N-1.
type Rank int

// Generation grows each time a ring is formed anew. Messages of another generation are refused.
type Generation uint64

// MaxChunkBytes is the largest payload of a message.
const MaxChunkBytes = 1 << 20

// MaxFlight is how many messages a link may have in hand at most, so that it may still read their
// payloads.
const MaxFlight = 4

// Phase says what the receiver of a chunk does with it.
type Phase uint8

const (
	// ReduceScatter chunks are added to what the receiver has.
	ReduceScatter Phase = 1
	// AllGather chunks replace what the receiver has.
	AllGather Phase = 2
	// Carried chunks are no part of the sum: they go from a rank to its successor ahead of it.
	Carried Phase = 3
	// Heartbeat messages have no payload and say only that the sender lives.
	Heartbeat Phase = 4
)

// String returns the phase's name in the literature.
func (p Phase) String() string {
	switch p {
	case ReduceScatter:
		return "reduce-scatter"
	case AllGather:
		return "all-gather"
	case Carried:
		return "carry"
	case Heartbeat:
		return "heartbeat"
	}
	return fmt.Sprintf("phase %d", uint8(p))
}

// Element is the form that a number of a payload has on the wire, little endian.
type Element uint8

// The elements. What is added is float32 whatever travels.
const (
	Float32  Element = 0
	BFloat16 Element = 1 // the upper half of a float32
	Float16  Element = 2 // IEEE 754 binary16
)

// Bytes is the size of one.
func (e Element) Bytes() int {
	if e == Float32 {
		return 4
	}
	return 2
}

// String returns the name that --wire has for it.
func (e Element) String() string {
	switch e {
	case Float32:
		return "fp32"
	case BFloat16:
		return "bf16"
	case Float16:
		return "fp16"
	}
	return fmt.Sprintf("element %d", uint8(e))
}

// Header says which chunk a message carries. Offset, Length and Total count numbers.
type Header struct {
	Generation Generation
	Sequence   uint64 // of the collective on its ring, from 1
	Phase      Phase
	Element    Element
	Step       int // ring step of the collective, from 0
	Offset     int // of the chunk in the buffer
	Length     int // of the chunk
	Total      int // of the buffer
}

// String names the chunk, for errors.
func (h Header) String() string {
	switch h.Phase {
	case Carried:
		return fmt.Sprintf("collective %d, %v, floats [%d:%d] of %d",
			h.Sequence, h.Phase, h.Offset, h.Offset+h.Length, h.Total)
	case Heartbeat:
		return fmt.Sprintf("%v of generation %d", h.Phase, h.Generation)
	}
	return fmt.Sprintf("collective %d, %v step %d, floats [%d:%d] of %d",
		h.Sequence, h.Phase, h.Step+1, h.Offset, h.Offset+h.Length, h.Total)
}

// of returns the chunk's range of the buffer.
func (h Header) of(floats []float32) []float32 { return floats[h.Offset : h.Offset+h.Length] }

// Message is a chunk that has been received. The payload is Header.Length numbers of
// Header.Element, in the link's own buffers: pieces of any length, at any address, that may split
// a number. They are valid until Release.
type Message struct {
	Header Header
	Pieces [][]byte

	// OnRelease, set by the link, takes the pieces back.
	OnRelease func()
}

// Release gives the pieces back to the link. A second call does nothing.
func (m *Message) Release() {
	free := m.OnRelease
	m.Pieces, m.OnRelease = m.Pieces[:0], nil
	if free != nil {
		free()
	}
}

// Peer names a neighbour.
type Peer struct {
	Rank    Rank
	Address string // host:port, or what names the link to a person
}

// String returns the peer as errors name it.
func (p Peer) String() string { return fmt.Sprintf("rank %d (%s)", p.Rank, p.Address) }

// ErrLeft is what a link returns when the neighbour has closed its end in good order.
var ErrLeft = errors.New("has left the ring")

// ErrClosed is what a link or a ring returns after its own Close.
var ErrClosed = errors.New("closed")

// PeerError is a failure of a ring that this rank saw with its own eyes, on its link to Peer.
type PeerError struct {
	Peer Peer
	Err  error // names the peer too
}

// Error returns the failure.
func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *PeerError) Unwrap() error { return e.Err }

// AbortError is what a link returns when the neighbour has called Abort.
type AbortError struct {
	Reason string // as the rank that broke off first wrote it
}

// Error returns the reason.
func (e *AbortError) Error() string { return e.Reason }

// Link is what both ends of a connection between neighbours have in common. Its methods, unlike
// those of [Successor] and [Predecessor], may be called from any goroutine.
//
// Calls that wait take no context: they end when the link is aborted or closed, as with net.Conn.
// [Ring] watches over them.
type Link interface {
	Peer() Peer
	// Broken is closed when the neighbour has aborted or is gone without a word. A neighbour that
	// left in good order ends only the calls that still need it.
	Broken() <-chan struct{}
	// Err says how the link has ended; it is nil while it is open.
	Err() error
	// Abort tells the neighbour the reason, if it can within a moment, and ends all calls.
	Abort(reason string)
	// Close leaves in good order: what was sent still arrives. It releases everything that the
	// link holds, and ends all calls. It may wait a moment for the neighbour.
	Close() error
}

// Successor is the link to the next rank, which chunks are sent to. Send and Flush are called by
// one goroutine at a time.
type Successor interface {
	Link
	// Send hands over one chunk, of h.Length numbers of h.Element: at least 1 and at most
	// MaxChunkBytes of them, or none for a heartbeat. It waits while the link's bounded buffers
	// are full. The link may read payload until the neighbour has all of it, MaxFlight more
	// messages have been sent, or Flush has returned.
	Send(h Header, payload []byte) error
	// Flush waits until the link reads no payload any more.
	Flush() error
	// Beats counts what has come of the successor's [Predecessor.Beat], from any goroutine.
	Beats() uint64
}

// Predecessor is the link to the previous rank, which chunks come from, in the order in which
// they were sent. Receive is called by one goroutine at a time.
type Predecessor interface {
	Link
	// Receive waits for the next chunk and fills m, which must have been released. The pieces
	// hold exactly m.Header.Length numbers.
	Receive(m *Message) error
	// Beat gives the predecessor a sign of life, against the stream: without it a predecessor
	// whose chunks are not taken could not tell a dead neighbour from one that is busy. It never
	// waits: while the link still has the last one in hand it does nothing. One goroutine at a
	// time calls it.
	Beat()
}

// Links are a rank's two neighbours. In a ring of two they are the same rank.
type Links struct {
	Predecessor Predecessor
	Successor   Successor
}

// Bytes returns the memory of floats. [New] refuses a machine where those are not the bytes of the
// wire, which are little endian.
func Bytes(floats []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(floats))), 4*len(floats))
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }
