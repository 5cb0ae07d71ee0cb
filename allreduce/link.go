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

// MaxFlight is the largest number of messages whose payloads a link may still read.
const MaxFlight = 4

// Phase says what the receiver of a chunk does with it.
type Phase uint8

const (
	// ReduceScatter chunks are added to the receiver's floats.
	ReduceScatter Phase = 1
	// AllGather chunks replace the receiver's floats.
	AllGather Phase = 2
	// Carried chunks go from a rank to its successor ahead of a sum, and are not part of it.
	Carried Phase = 3
	// Heartbeat messages have no payload; they show that the sender is alive.
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

// Element is the wire format of a number in a payload, little endian.
type Element uint8

// The elements. The arithmetic is float32 with each of them.
const (
	Float32  Element = 0
	BFloat16 Element = 1 // the upper half of a float32
	Float16  Element = 2 // IEEE 754 binary16
)

// Bytes returns the size of one number.
func (e Element) Bytes() int {
	if e == Float32 {
		return 4
	}
	return 2
}

// String returns the element's name in --wire.
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

// Header identifies a message's chunk. Offset, Length and Total count numbers.
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

func (h Header) of(floats []float32) []float32 { return floats[h.Offset : h.Offset+h.Length] }

// Message is a received chunk. Its payload is Header.Length numbers of Header.Element, in the
// link's buffers. The pieces may have any length and address, and may split a number. They are
// valid until Release.
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
	Address string // host:port, or another name of the link for people
}

// String returns the peer as errors name it.
func (p Peer) String() string { return fmt.Sprintf("rank %d (%s)", p.Rank, p.Address) }

// ErrLeft is the error of a link whose neighbour has closed its end in good order.
var ErrLeft = errors.New("has left the ring")

// ErrClosed is the error of a link or a ring after its own Close.
var ErrClosed = errors.New("closed")

// PeerError is a failure that this rank observed itself, on its link to Peer.
type PeerError struct {
	Peer Peer
	Err  error // names the peer too
}

// Error returns the failure.
func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *PeerError) Unwrap() error { return e.Err }

// AbortError is the error of a link whose neighbour has called Abort.
type AbortError struct {
	Reason string // written by the rank that broke off first
}

// Error returns the reason.
func (e *AbortError) Error() string { return e.Reason }

// Link is the common part of both ends of a connection between neighbours. Its methods, unlike
// those of [Successor] and [Predecessor], may be called from any goroutine.
//
// Calls that wait take no context: they end when the link is aborted or closed, as with net.Conn.
// [Ring] limits their waits.
type Link interface {
	Peer() Peer
	// Broken is closed when the neighbour has aborted, or is gone without Close. A neighbour that
	// left in good order ends only the calls that still need it.
	Broken() <-chan struct{}
	// Err returns why the link has ended; nil while it is open.
	Err() error
	// Abort sends the neighbour the reason, if that takes only a moment, and ends all calls.
	Abort(reason string)
	// Close leaves in good order: chunks already sent still arrive. It releases all resources of
	// the link and ends all calls. It may wait a moment for the neighbour.
	Close() error
}

// Successor is the link to the next rank, for sending. One goroutine at a time calls Send and
// Flush.
type Successor interface {
	Link
	// Send sends one chunk, of h.Length numbers of h.Element: one number to MaxChunkBytes, or no
	// payload for a heartbeat. It waits while the link's bounded buffers are full. The link may
	// read payload until the neighbour has all of it, MaxFlight more messages have been sent, or
	// Flush has returned.
	Send(h Header, payload []byte) error
	// Flush waits until the link has stopped reading payloads.
	Flush() error
	// Beats returns the number of [Predecessor.Beat] calls received from the successor. Any
	// goroutine may call it.
	Beats() uint64
}

// Predecessor is the link to the previous rank, for receiving. Chunks arrive in the order in which
// they were sent. One goroutine at a time calls Receive.
type Predecessor interface {
	Link
	// Receive waits for the next chunk and fills m, which must have been released. The pieces hold
	// exactly m.Header.Length numbers.
	Receive(m *Message) error
	// Beat sends the predecessor a sign of life. Without it, a predecessor whose chunks are not
	// taken cannot tell a dead neighbour from a busy one. It never waits: it does nothing while the
	// link has not sent the last beat. One goroutine at a time calls it.
	Beat()
}

// Links are the links to a rank's two neighbours, which are the same rank in a ring of two.
type Links struct {
	Predecessor Predecessor
	Successor   Successor
}

// Bytes returns the memory of floats as bytes. [New] refuses big-endian machines, so they are the
// bytes of the wire.
func Bytes(floats []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(floats))), 4*len(floats))
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }
