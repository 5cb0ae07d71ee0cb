package grpclink

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
	// blockBytes is how much an intake asks the connection for at once, and smallBlockBytes before
	// the first chunk.
	blockBytes      = 256 << 10
	smallBlockBytes = 4 << 10

	// prefixBytes go before each message of gRPC: whether it is compressed, and its length.
	prefixBytes = 5

	// headBytes are all of a message but its payload.
	headBytes = prefixBytes + headerBytes

	// prefaceBytes are what a client says before its first frame.
	prefaceBytes = 24

	// creditBytes is how much room a predecessor is given back at a time. gRPC gives back a quarter
	// of a window at a time. What both may owe it leaves it room for the longest chunk.
	creditBytes = windowBytes / 8

	// lifeInterval is after how long gRPC gets a sign that a payload is coming: else its keepalive
	// takes a predecessor on a slow link, which needs a minute for a chunk, for dead.
	lifeInterval = pingInterval / 2

	// maxBlocks is how many blocks payloads may lie in. A predecessor's windows fill half of them
	// at most, with what gRPC gets between.
	maxBlocks = 4 * windowBytes / blockBytes
)

// What an intake knows of HTTP/2 besides (RFC 9113, section 6).
const (
	windowUpdateFrame      = 8
	windowUpdateFrameBytes = frameHeaderBytes + 4
	reservedBit            = 1 << 31 // of a stream's number
)

// intake is the connection under a server without TLS, what [gather] is under a client: it keeps
// the payloads of chunks out of gRPC, which would copy them and take them up frame by frame. It
// reads the connection in large blocks, and hands on what it reads but for the payload of a message
// that takes more than a frame. Of that gRPC gets the header alone, as a message by itself, when
// all the rest lies in the blocks. Whoever receives it takes the payload by the header; a header
// for which no payload was set aside is refused as ever.
//
// gRPC counts against the windows only what it gets. So the intake holds the predecessor to the
// rest itself, and gives it back, when the ring has made use of a payload, by frames of its own
// between those that gRPC writes.
//
// It keeps nothing from gRPC before a link's handler has called open, and then only of one stream,
// the first that carries a message of a ring. When that does what gRPC's client in Go never does,
// such as to pad a frame, or to begin a message in the frame in which another ends, gRPC gets all
// bytes from there on, and before them what has been kept of a message.
type intake struct {
	net.Conn

	// Of Read, which one goroutine calls.
	block   *block
	at, end int       // of the block: what has been read and not parsed
	pass    int       // bytes to come that go to gRPC as they are
	take    int       // bytes to come of a frame that are payload
	left    int       // bytes to come of the payload
	shown   time.Time // when gRPC last got a sign of it
	now     *aside    // the payload that is coming
	head    []byte    // of the message that is coming, as gRPC gets it, in headAt
	small   []byte    // what gRPC gets next, in scratch
	stream  uint32    // whose payloads are set aside; 0 before the first message
	off     bool      // nothing is set aside any more
	headAt  [headBytes]byte
	scratch [2*frameHeaderBytes + headBytes]byte

	over atomic.Bool // the link's handler has returned; set under mu

	mu     sync.Mutex
	opened bool
	queue  []*aside // whose headers gRPC has got, or is about to
	spare  []*aside
	blocks []*block // that are free
	made   int      // blocks that there are
	held   int      // bytes of payloads that the predecessor has not been given back
	owed   int      // of these, what it may have

	writing sync.Mutex
	written frameEnds
	updates [2 * windowUpdateFrameBytes]byte
}

// block is memory that an intake reads into.
type block struct {
	bytes []byte
	held  int // by how many payloads and readers
}

// aside is a payload that has been set aside.
type aside struct {
	from   *intake
	header [headerBytes]byte
	bytes  int
	pieces [][]byte
	blocks []*block
}

func newIntake(conn net.Conn) *intake {
	i := &intake{Conn: conn, pass: prefaceBytes}
	i.head = i.headAt[:0]
	return i
}

// open begins to set payloads aside. The caller has not answered its predecessor, which sends no
// chunks before.
func (i *intake) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opened = true
}

// Read returns the next bytes that are for gRPC.
func (i *intake) Read(p []byte) (int, error) {
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

// from returns the bytes between two places of a block; a block that is nil has none.
func (b *block) from(at, end int) []byte {
	if b == nil {
		return nil
	}
	return b.bytes[at:end]
}

// fill reads from the connection, to where want bytes from at on have room.
func (i *intake) fill(want int) error {
	if err := i.makeRoom(want); err != nil {
		return err
	}
	n, err := i.Conn.Read(i.block.bytes[i.end:])
	i.end += n
	if i.left > 0 && n > 0 && time.Since(i.shown) > lifeInterval {
		i.small = appendDataHeader(i.scratch[:0], 0, i.stream) // of a frame without data
		i.shown = time.Now()
	}
	if n > 0 {
		return nil
	}
	return err
}

// makeRoom sees to it that the block has some behind its end, in the same memory if no payload
// lies there. It is as long as a link needs once there is one.
func (i *intake) makeRoom(want int) error {
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
		return errors.New("short chunks wait, with more between them than a link has to say")
	default:
		i.block = i.freeBlock(size)
		i.letGo(b)
	}
	i.at, i.end = 0, copy(i.block.bytes, rest)
	return nil
}

// freeBlock returns a block of at least size bytes. i.mu is held, as it is by letGo.
func (i *intake) freeBlock(size int) *block {
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

func (i *intake) letGo(b *block) {
	if b == nil {
		return
	}
	if b.held--; b.held == 0 {
		i.blocks = append(i.blocks, b)
	}
}

// keep sets aside what has come of a payload.
func (i *intake) keep() error {
	n := min(i.take, i.end-i.at)
	a := i.now
	a.pieces = append(a.pieces, i.block.bytes[i.at:i.at+n])
	i.at, i.take, i.left = i.at+n, i.take-n, i.left-n
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held += n; i.held > windowBytes {
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
	i.handOnHead(0)
	if i.over.Load() {
		i.owed += a.bytes
		i.forget(a)
	} else {
		i.queue = append(i.queue, a)
	}
	return nil
}

// parse looks at b, which begins with a frame, and says what is to be done with it, or how many
// bytes of it that takes.
func (i *intake) parse(b []byte) (want int, err error) {
	if len(b) < frameHeaderBytes {
		return frameHeaderBytes, nil
	}
	length := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	stream := binary.BigEndian.Uint32(b[5:]) &^ reservedBit
	i.pass = frameHeaderBytes + length
	if i.over.Load() {
		i.resign()
	}
	switch {
	case b[3] != dataFrame || i.off || stream == 0 || i.stream != 0 && stream != i.stream:
	case i.left > 0 && (b[4] != 0 || length > min(i.left, frameBytes)):
		i.takeBack()
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

func (i *intake) isOpen() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.opened
}

// begin looks at the head of a message, of which a frame of length bytes has what is behind its
// header. A head lies in several frames where the predecessor had room for no more at a time.
func (i *intake) begin(frame []byte, length int, stream uint32) {
	part := frame[frameHeaderBytes:]
	whole := len(i.head) == 0
	if frame[4] != 0 || length == 0 || length > frameBytes {
		i.giveUp(0, stream)
		return
	}
	i.head = append(i.head, part...)
	size := headerBytes
	if len(i.head) >= prefixBytes {
		size = int(binary.BigEndian.Uint32(i.head[1:]))
	}
	rest := length - len(part) // of the payload, in this frame
	payload := size - headerBytes
	good := payload >= rest && payload <= allreduce.MaxChunkBytes && i.head[0] == 0
	if good && len(i.head) == headBytes {
		_, err := parseHeader(i.head[prefixBytes:], size)
		good = err == nil // else who gets it from gRPC says so
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
	case whole && payload == rest: // all of the message
		i.head = i.head[:0]
	case payload == 0:
		i.at, i.pass = i.at+len(frame), 0
		i.handOnHead(0)
	default:
		i.at, i.pass = i.at+len(frame), 0
		i.setAside(payload, rest)
	}
}

// setAside begins to set a payload aside, of which the frame has some.
func (i *intake) setAside(payload, inFrame int) {
	i.take, i.left, i.shown = inFrame, payload, time.Now()
	i.mu.Lock()
	i.now = i.freeAside()
	i.mu.Unlock()
	copy(i.now.header[:], i.head[prefixBytes:])
	i.now.bytes = payload
	binary.BigEndian.PutUint32(i.head[1:], headerBytes)
}

// giveUp leaves all to gRPC from here on: first the head, of which taken bytes, a frame's header
// among them, are not passed on as they are.
func (i *intake) giveUp(taken int, stream uint32) {
	i.off = true
	part := max(taken-frameHeaderBytes, 0)
	if len(i.head) == part { // nothing is kept but what passes
		i.head = i.head[:0]
		return
	}
	i.mu.Lock()
	i.stream = stream
	i.mu.Unlock()
	i.at, i.pass = i.at+taken, i.pass-taken
	if taken == 0 {
		i.handOnHead(0)
	} else {
		i.handOnHead(i.pass)
	}
}

// handOnHead gives the head to gRPC as a frame, and the header of another one of rest bytes that
// pass behind it, if there are any.
func (i *intake) handOnHead(rest int) {
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

func (i *intake) freeAside() *aside {
	n := len(i.spare)
	if n == 0 {
		return &aside{from: i}
	}
	a := i.spare[n-1]
	i.spare = i.spare[:n-1]
	return a
}

// claim returns the payload of a message of which gRPC has handed on the header alone. It is nil
// if the message has none that was set aside.
func (i *intake) claim(header []byte) *aside {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 || string(i.queue[0].header[:]) != string(header) {
		return nil
	}
	a := i.queue[0]
	i.queue = append(i.queue[:0], i.queue[1:]...)
	return a
}

// release gives a payload's memory back, and its room in the windows to the predecessor.
func (a *aside) release() {
	i := a.from
	i.mu.Lock()
	i.owed += a.bytes
	i.forget(a)
	i.mu.Unlock()
	i.giveBack()
}
