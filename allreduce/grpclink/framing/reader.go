package framing

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"rondo/allreduce"
)

const (
	// WindowBytes is the number of bytes that a predecessor may send before they are read, per
	// stream and per connection. It has room for the longest chunk, and mostly for another that the
	// ring still uses: the ring must not wait for a chunk before it has released the one before.
	// With a larger window received chunks queue up and leave the processor's cache.
	WindowBytes = 2 << 20

	// PingInterval is that of gRPC's keepalive, which ends the connections that a silent neighbour
	// leaves behind. The ring's own beats detect such a neighbour.
	PingInterval = 10 * time.Second
	// PingTimeout limits the wait for an answer to a ping, and for a write.
	PingTimeout = 20 * time.Second

	// blockBytes is the size of one read from the connection; smallBlockBytes before the first
	// chunk.
	blockBytes      = 256 << 10
	smallBlockBytes = 4 << 10

	// PrefixBytes precede each gRPC message: a compression flag and the message's length.
	PrefixBytes = 5

	// headBytes is the length of a message without its payload.
	headBytes = PrefixBytes + HeaderBytes

	// prefaceBytes is the length of a client's HTTP/2 connection preface.
	prefaceBytes = 24

	// creditBytes is the window space that is returned to a predecessor at a time. gRPC returns a
	// quarter of a window at a time. Both amounts outstanding together leave room for the longest
	// chunk.
	creditBytes = WindowBytes / 8

	// lifeInterval is how often gRPC gets an empty frame while a payload arrives. Without it gRPC's
	// keepalive would count a predecessor as dead that needs a minute for a chunk on a slow link.
	lifeInterval = PingInterval / 2

	// maxBlocks is the largest number of blocks. A predecessor's windows fill at most half of them,
	// together with gRPC's bytes between.
	maxBlocks = 4 * WindowBytes / blockBytes
)

// More constants of HTTP/2 (RFC 9113, section 6).
const (
	windowUpdateFrame      = 8
	windowUpdateFrameBytes = frameHeaderBytes + 4
	reservedBit            = 1 << 31 // of a stream's number
)

// Reader is the connection under a server without TLS, the counterpart of [Writer]. It keeps
// chunk payloads out of gRPC, which would copy them frame by frame. It reads the connection in
// large blocks and passes their bytes to gRPC, except for the payload of a message longer than one
// frame. Of such a message gRPC gets only the header, as a message of its own, when the whole
// payload is in the blocks. The receiver then claims the payload by that header. A header without a
// held payload is refused like any damaged message.
//
// gRPC counts only the bytes that it gets against the flow control windows. The Reader counts the
// held payloads itself. When the ring has used a payload, it returns the window space by frames of
// its own, between gRPC's frames.
//
// It passes everything to gRPC until a link's handler has called open. Then it holds payloads of
// one stream only, the first that carries a ring's message. If that stream does something that
// gRPC's Go client never does, such as to pad a frame or to start a message in another message's
// frame, the Reader stops: gRPC gets all later bytes, after the held part of the current message.
type Reader struct {
	net.Conn

	// Used by Read only, which one goroutine calls.
	block   *block
	at, end int       // range of block that is read but not parsed
	pass    int       // bytes to come that go to gRPC unchanged
	take    int       // payload bytes to come in this frame
	left    int       // bytes to come of the payload
	shown   time.Time // when gRPC last got a frame
	now     *Payload  // the payload that is arriving
	head    []byte    // of the arriving message, as gRPC will get it; in headAt
	small   []byte    // bytes for gRPC's next Read; in scratch
	stream  uint32    // stream with held payloads; 0 before its first message
	off     bool      // no payloads are held any more
	headAt  [headBytes]byte
	scratch [2*frameHeaderBytes + headBytes]byte

	over atomic.Bool // the link's handler has returned; set under mu

	mu         sync.Mutex
	opened     bool
	queue      []*Payload // held payloads whose headers go to gRPC
	spare      []*Payload
	blocks     []*block // free blocks
	made       int      // number of blocks
	unreturned int      // payload bytes not returned to the predecessor's window
	returnable int      // part of unreturned that may be returned

	writing sync.Mutex
	written frameEnds
	updates [2 * windowUpdateFrameBytes]byte
}

// block is memory that a Reader reads into.
type block struct {
	bytes []byte
	held  int // number of payloads and readers that use it
}

// Payload is a payload that the Reader holds for the ring.
type Payload struct {
	from   *Reader
	header [HeaderBytes]byte
	Bytes  int
	Pieces [][]byte // valid until Release
	blocks []*block
}

func newReader(conn net.Conn) *Reader {
	i := &Reader{Conn: conn, pass: prefaceBytes}
	i.head = i.headAt[:0]
	return i
}

// Open allows the Reader to hold payloads. The caller has not answered its predecessor yet, so no
// chunk has been sent.
func (i *Reader) Open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opened = true
}

// Read returns the next bytes for gRPC.
func (i *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if len(i.small) > 0 {
			n := copy(p, i.small)
			i.small = i.small[n:]
			return n, nil
		}
		want, err := 1, error(nil)
		switch {
		case i.pass > 0 && i.at < i.end:
			n := copy(p, i.block.bytes[i.at:min(i.end, i.at+i.pass)])
			i.at, i.pass = i.at+n, i.pass-n
			return n, nil
		case i.pass > 0:
		case i.take > 0 && i.at < i.end:
			err, want = i.keep(), 0
		case i.take > 0:
		default:
			want, err = i.parse(i.block.from(i.at, i.end))
		}
		if err == nil && len(i.small) == 0 && i.end-i.at < want {
			err = i.fill(want)
		}
		if err != nil {
			return 0, err
		}
	}
}

// from returns the bytes [at, end) of a block, and none of a nil block.
func (b *block) from(at, end int) []byte {
	if b == nil {
		return nil
	}
	return b.bytes[at:end]
}

// fill reads from the connection. It first makes room for want bytes from at on.
func (i *Reader) fill(want int) error {
	if err := i.makeRoom(want); err != nil {
		return err
	}
	n, err := i.Conn.Read(i.block.bytes[i.end:])
	i.end += n
	if i.left > 0 && n > 0 && time.Since(i.shown) > lifeInterval {
		i.small = appendDataHeader(i.scratch[:0], 0, i.stream) // an empty data frame
		i.shown = time.Now()
	}
	if n > 0 {
		return nil
	}
	return err
}

// makeRoom makes the block large enough for want bytes from at on. It reuses the memory if no
// payload is in it. Blocks get their full size with the first chunk.
func (i *Reader) makeRoom(want int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	size := smallBlockBytes
	if i.stream != 0 {
		size = blockBytes
	}
	b, rest := i.block, i.block.from(i.at, i.end)
	switch {
	case b != nil && len(b.bytes) >= size && b.held == 1:
	case b != nil && len(b.bytes)-i.end >= max(want, size/16):
		return nil
	case len(i.blocks) == 0 && i.made >= maxBlocks:
		return errors.New("chunks that wait, and the bytes between them, fill the memory")
	default:
		i.block = i.freeBlock(size)
		i.letGo(b)
	}
	i.at, i.end = 0, copy(i.block.bytes, rest)
	return nil
}

// freeBlock returns a block of at least size bytes. The caller of freeBlock or letGo holds i.mu.
func (i *Reader) freeBlock(size int) *block {
	for n := len(i.blocks); n > 0; n = len(i.blocks) {
		b := i.blocks[n-1]
		i.blocks = i.blocks[:n-1]
		if len(b.bytes) >= size {
			b.held = 1
			return b
		}
		i.made--
	}
	i.made++
	return &block{bytes: make([]byte, size), held: 1}
}

func (i *Reader) letGo(b *block) {
	if b == nil {
		return
	}
	if b.held--; b.held == 0 {
		i.blocks = append(i.blocks, b)
	}
}

// keep stores the received part of a payload.
func (i *Reader) keep() error {
	n := min(i.take, i.end-i.at)
	a := i.now
	a.Pieces = append(a.Pieces, i.block.bytes[i.at:i.at+n])
	i.at, i.take, i.left = i.at+n, i.take-n, i.left-n
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unreturned += n; i.unreturned > WindowBytes {
		return errors.New("more has come of chunks than there was room for")
	}
	if len(a.blocks) == 0 || a.blocks[len(a.blocks)-1] != i.block {
		a.blocks = append(a.blocks, i.block)
		i.block.held++
	}
	if i.left > 0 {
		return nil
	}
	i.now = nil
	i.passHead(0)
	if i.over.Load() {
		i.returnable += a.Bytes
		i.forget(a)
	} else {
		i.queue = append(i.queue, a)
	}
	return nil
}

// parse reads the frame at the start of b and decides where its bytes go. want is the number of
// bytes that it needs to do so.
func (i *Reader) parse(b []byte) (want int, err error) {
	if len(b) < frameHeaderBytes {
		return frameHeaderBytes, nil
	}
	length := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	stream := binary.BigEndian.Uint32(b[5:]) &^ reservedBit
	i.pass = frameHeaderBytes + length
	if i.over.Load() {
		i.stop()
	}
	switch {
	case b[3] != dataFrame || i.off || stream == 0 || i.stream != 0 && stream != i.stream:
	case i.left > 0 && (b[4] != 0 || length > min(i.left, FrameBytes)):
		i.stopHolding()
	case i.left > 0:
		i.at, i.pass, i.take = i.at+frameHeaderBytes, 0, length
	case i.stream == 0 && !i.isOpen():
	default:
		want = frameHeaderBytes + min(length, headBytes-len(i.head))
		if len(b) < want {
			i.pass = 0
			return want, nil
		}
		i.begin(b[:want], length, stream)
	}
	return 1, nil
}

func (i *Reader) isOpen() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.opened
}

// begin reads a part of a message's head. frame has the frame's header and that part; length is the
// frame's payload length. A head is split over frames if the predecessor's window was nearly full.
func (i *Reader) begin(frame []byte, length int, stream uint32) {
	part := frame[frameHeaderBytes:]
	whole := len(i.head) == 0
	if frame[4] != 0 || length == 0 || length > FrameBytes {
		i.giveUp(0, stream)
		return
	}
	i.head = append(i.head, part...)
	size := HeaderBytes
	if len(i.head) >= PrefixBytes {
		size = int(binary.BigEndian.Uint32(i.head[1:]))
	}
	rest := length - len(part) // of the payload, in this frame
	payload := size - HeaderBytes
	good := payload >= rest && payload <= allreduce.MaxChunkBytes && i.head[0] == 0
	if good && len(i.head) == headBytes {
		_, err := ParseHeader(i.head[PrefixBytes:], size)
		good = err == nil // otherwise the receiver gets it from gRPC and refuses it
	}
	if !good {
		i.giveUp(len(frame), stream)
		return
	}
	i.mu.Lock()
	i.stream = stream
	i.mu.Unlock()
	switch {
	case len(i.head) < headBytes:
		i.at, i.pass = i.at+len(frame), 0
	case whole && payload == rest: // the frame holds the whole message
		i.head = i.head[:0]
	case payload == 0:
		i.at, i.pass = i.at+len(frame), 0
		i.passHead(0)
	default:
		i.at, i.pass = i.at+len(frame), 0
		i.hold(payload, rest)
	}
}

// hold starts to hold a payload. inFrame bytes of it are in the current frame.
func (i *Reader) hold(payload, inFrame int) {
	i.take, i.left, i.shown = inFrame, payload, time.Now()
	i.mu.Lock()
	i.now = i.newPayload()
	i.mu.Unlock()
	copy(i.now.header[:], i.head[PrefixBytes:])
	i.now.Bytes = payload
	binary.BigEndian.PutUint32(i.head[1:], HeaderBytes)
}

// giveUp hands the connection to gRPC at the head of a message. taken is the part of the current
// frame, its header included, that i.head already has.
func (i *Reader) giveUp(taken int, stream uint32) {
	i.off = true
	part := max(taken-frameHeaderBytes, 0)
	if len(i.head) == part { // nothing of earlier frames is held
		i.head = i.head[:0]
		return
	}
	i.mu.Lock()
	i.stream = stream
	i.mu.Unlock()
	i.at, i.pass = i.at+taken, i.pass-taken
	if taken == 0 {
		i.passHead(0)
	} else {
		i.passHead(i.pass)
	}
}

// passHead passes the head to gRPC as a frame of its own. If rest > 0, the header of a frame of
// rest bytes follows, and those bytes are passed unchanged.
func (i *Reader) passHead(rest int) {
	i.small = i.scratch[:0]
	i.small = appendDataHeader(i.small, len(i.head), i.stream)
	i.small = append(i.small, i.head...)
	if rest > 0 {
		i.small = appendDataHeader(i.small, rest, i.stream)
	}
	i.head = i.head[:0]
}

func appendDataHeader(b []byte, length int, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), dataFrame, 0)
	return binary.BigEndian.AppendUint32(b, stream)
}

func (i *Reader) newPayload() *Payload {
	n := len(i.spare)
	if n == 0 {
		return &Payload{from: i}
	}
	a := i.spare[n-1]
	i.spare = i.spare[:n-1]
	return a
}

// Claim returns the held payload of a message whose header came from gRPC; nil: the message has no
// held payload.
func (i *Reader) Claim(header []byte) *Payload {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 || string(i.queue[0].header[:]) != string(header) {
		return nil
	}
	a := i.queue[0]
	i.queue = append(i.queue[:0], i.queue[1:]...)
	return a
}

// Release frees a payload's memory, and returns its window space to the predecessor.
func (a *Payload) Release() {
	i := a.from
	i.mu.Lock()
	i.returnable += a.Bytes
	i.forget(a)
	i.mu.Unlock()
	i.giveBack()
}
